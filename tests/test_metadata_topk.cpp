// Tree-drafting metadata on the host: answers by hand for small trees, the reference against a
// sort, the op-by-op form against the reference, and what does not fit refused where it is known.
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/tensor_ops_recording.h"
#include "kernels/tensor_ops_reference.h"
#include "tests/topk_cases.h"

namespace tpjitter {
namespace {

using kernels::ReferenceTensorOps;
using kernels::TensorAllocator;
using kernels::TopkDraftArgs;
using kernels::TopkVerifyArgs;
using test::TopkCase;
using test::TopkOutputs;
using Ints = std::vector<std::int32_t>;
constexpr std::int32_t P = test::kTopkPoison;

// Two requests in pool rows 2 and 1; row r of req_to_token holds slots 100 * r + j.
TopkCase two_requests() {
  TopkCase c;
  c.batch_size = c.live_rows = 2;
  c.req_pool_indices = {2, 1};
  c.stride = 12;
  c.pool_rows = 3;
  for (std::int32_t r = 0; r < 3; ++r) {
    for (std::int32_t j = 0; j < 12; ++j) c.req_to_token.push_back(100 * r + j);
  }
  return c;
}

TEST(TopkDraft, OfPagesOfOneTokenReadsThePrefixAndTheBranchesSlots) {
  TopkCase c = two_requests();
  c.seq_lens = {3, 1};
  c.width = 4;
  c.step = 1;
  // [bs, topk, num_steps]
  c.out_cache_loc = {50, 51, 52, 60, 61, 62, 70, 71, 72, 80, 81, 82};
  const TopkOutputs got = reference_outputs(c);
  EXPECT_EQ(got.prefix.cache_seqlens, (Ints{3, 1, P}));
  EXPECT_EQ(got.prefix.cu_seqlens_k, (Ints{0, 3, 4, P}));
  EXPECT_EQ(got.prefix.cu_seqlens_q, (Ints{0, 2, 4}));
  EXPECT_EQ(got.prefix.page_table, (Ints{200, 201, 202, P, P, P, P, 100, P, P, P, P, P, P}));
  EXPECT_EQ(got.expand.cache_seqlens, (Ints{2, 2, 2, 2, P}));
  EXPECT_EQ(got.expand.cu_seqlens_k, (Ints{0, 2, 4, 6, 8, P}));
  EXPECT_EQ(got.expand.cu_seqlens_q, (Ints{0, 1, 2, 3, 4}));
  EXPECT_EQ(got.expand.page_table, (Ints{50, 51, P, P, P, P, 60, 61, P, P, P, P,  //
                                         70, 71, P, P, P, P, 80, 81, P, P, P, P}));
}

TEST(TopkDraft, OfLargerPagesLeavesTheBegunPageToTheBranches) {
  TopkCase c = two_requests();
  c.page_size = 4;
  c.width = 2;
  c.seq_lens = {6, 4};  // a page and two tokens; a page
  c.step = 2;
  // Branches of request 0 begin inside a page of their own; the second one crosses into the next.
  c.out_cache_loc = {42, 43, 44, 51, 52, 53, 60, 61, 62, 64, 65, 66};
  TopkOutputs got = poisoned_outputs(c);
  reference_topk_draft(bind_draft(c, got));
  EXPECT_EQ(got.prefix.cache_seqlens, (Ints{4, 4, P}));
  EXPECT_EQ(got.prefix.cu_seqlens_k, (Ints{0, 4, 8, P}));
  EXPECT_EQ(got.prefix.page_table, (Ints{50, P, P, P, P, 25, P, P, P, P}));
  EXPECT_EQ(got.expand.cache_seqlens, (Ints{5, 5, 3, 3, P}));
  EXPECT_EQ(got.expand.cu_seqlens_k, (Ints{0, 5, 10, 13, 16, P}));
  EXPECT_EQ(got.expand.page_table, (Ints{10, 11, 0, P, P, P, 12, 13, 0, P, P, P,  //
                                         15, 0,  0, P, P, P, 16, 0,  0, P, P, P}));
  // A replay with fewer pages leaves no stale one behind.
  c.step = 0;
  TopkDraftArgs next = bind_draft(c, got);
  reference_topk_draft(next);
  EXPECT_EQ(Ints(got.expand.page_table.begin(), got.expand.page_table.begin() + 3),
            (Ints{10, 0, 0}));
}

TEST(TopkVerify, GathersTheTokensThatTheTreeShows) {
  TopkCase c = two_requests();
  c.verify = true;
  c.draft_tokens = 3;
  c.width = 4;
  c.seq_lens = {2, 1};
  // Request 0: a chain 0 - 1 and a second branch 0 - 2; request 1: rows see themselves only.
  c.custom_mask = {1, 1, 1, 0, 0,  //
                   1, 1, 1, 1, 0,  //
                   1, 1, 1, 0, 1,  //
                   1, 1, 0, 0,     //
                   1, 0, 1, 0,     //
                   1, 0, 0, 1};
  EXPECT_EQ(kernels::tree_mask_length(c.seq_lens.data(), 2, 3), 27);
  const TopkOutputs got = reference_outputs(c);
  EXPECT_EQ(got.prefix.cache_seqlens, (Ints{2, 1, P}));
  EXPECT_EQ(got.prefix.cu_seqlens_k, (Ints{0, 2, 3, P}));
  EXPECT_EQ(got.prefix.cu_seqlens_q, (Ints{0, 3, 6}));
  EXPECT_EQ(got.expand.cache_seqlens, (Ints{1, 2, 2, 1, 1, 1, P}));
  EXPECT_EQ(got.expand.cu_seqlens_k, (Ints{0, 1, 3, 5, 6, 7, 8, P}));
  EXPECT_EQ(got.expand.page_table, (Ints{202, 203, 204, P, P, P, 202, 203, 204, P, P, P,  //
                                         202, 204, 203, P, P, P, 101, 102, 103, P, P, P,  //
                                         102, 101, 103, P, P, P, 103, 101, 102, P, P, P}));
}

TEST(TopkVerify, PaddedRowsTakeTheMasksFirstByte) {
  TopkCase c = two_requests();
  c.verify = true;
  c.live_rows = 1;
  c.draft_tokens = 2;
  c.seq_lens = {1, 1};
  for (const std::int32_t first : {0, 1}) {
    c.custom_mask = {static_cast<std::uint8_t>(first), 1, 0, 1, 1, 1};
    const TopkOutputs got = reference_outputs(c);
    EXPECT_EQ(got.expand.cache_seqlens, (Ints{1, 2, 2 * first, 2 * first, P}));
  }
}

// Written apart from the reference: keys sorted, as the engine does.
TopkOutputs sorted_verify(const TopkCase& c) {
  TopkOutputs outputs = reference_outputs(c);
  const std::int32_t q = c.draft_tokens;
  std::size_t mask_at = 0;
  std::int32_t total = 0;
  for (std::int32_t row = 0; row < c.expand_rows(); ++row) {
    const std::int64_t tokens = c.seq_lens[row / q];
    const bool live = row / q < c.live_rows;
    std::vector<std::pair<std::int32_t, std::int32_t>> keyed;
    for (std::int32_t j = 0; j < q; ++j) {
      const std::size_t at = live ? mask_at + static_cast<std::size_t>(tokens + j) : 0;
      const bool visible = c.custom_mask[at] != 0;
      keyed.emplace_back(visible ? j : j + q, j);
      total += visible ? 1 : 0;
    }
    if (live) mask_at += static_cast<std::size_t>(tokens + q);
    std::sort(keyed.begin(), keyed.end());
    outputs.expand.cache_seqlens[row] = total - outputs.expand.cu_seqlens_k[row];
    outputs.expand.cu_seqlens_k[row + 1] = total;
    for (std::int32_t j = 0; j < q; ++j) {
      outputs.expand.page_table[row * (q + test::kTopkStridePadding) + j] =
          c.req_to_token[c.req_pool_indices[row / q] * c.stride + tokens + keyed[j].second];
    }
  }
  return outputs;
}

TEST(TopkRandom, TheReferenceEqualsASortOfTheKeys) {
  for (const TopkCase& c : test::random_topk_cases()) {
    if (!c.verify) continue;
    ASSERT_EQ(first_difference(reference_outputs(c), sorted_verify(c)), "") << c.name;
  }
}

TEST(TopkRandom, TheOperationsEqualTheReferenceInEveryWord) {
  TensorAllocator allocator(kernels::host_block_source());
  ReferenceTensorOps ops(allocator);
  for (const TopkCase& c : test::random_topk_cases()) {
    TopkOutputs outputs = poisoned_outputs(c);
    const int status =
        c.verify
            ? rebuild_topk_verify_aten(ops, bind_verify(c, outputs), c.seq_lens.data(), c.pool_rows)
            : rebuild_topk_draft_aten(ops, bind_draft(c, outputs), c.seq_lens.data(), c.pool_rows);
    ASSERT_EQ(status, 0);
    ASSERT_EQ(first_difference(outputs, aten_outputs(c)), "") << c.name;
    ASSERT_EQ(allocator.blocks_in_use(), 0);
  }
}

TEST(TopkRandom, KnownLengthsThatFitPassTheChecks) {
  for (const TopkCase& c : test::random_topk_cases()) {
    TopkOutputs outputs = poisoned_outputs(c);
    if (c.verify) {
      EXPECT_NO_THROW(check_topk_verify(bind_verify(c, outputs), c.seq_lens.data())) << c.name;
    } else {
      EXPECT_NO_THROW(check_topk_draft(bind_draft(c, outputs), c.seq_lens.data())) << c.name;
    }
  }
}

template <class Call>
void expect_refused(Call call, const std::string& text) {
  try {
    call();
    ADD_FAILURE() << "accepted; expected: " << text;
  } catch (const std::invalid_argument& error) {
    EXPECT_EQ(std::string(error.what()), text);
  }
}

TEST(TopkChecks, NameRowNeededAndAvailable) {
  TopkCase c = two_requests();
  c.seq_lens = {3, 5};
  c.width = 4;
  TopkOutputs outputs = poisoned_outputs(c);
  expect_refused([&] { check_topk_draft(bind_draft(c, outputs), c.seq_lens.data()); },
                 "topk draft: row 1 has 5 tokens, past the prefix table of 4");
  c.seq_lens = {3, 13};
  expect_refused([&] { check_topk_draft(bind_draft(c, outputs), c.seq_lens.data()); },
                 "topk draft: row 1 has 13 tokens, past the req_to_token row of 12");
  c.verify = true;
  c.seq_lens = {3, 2};
  c.custom_mask.assign(51, 1);
  outputs = poisoned_outputs(c);
  expect_refused([&] { check_topk_verify(bind_verify(c, outputs), c.seq_lens.data()); },
                 "topk verify: custom_mask has 51 entries, needed 52");
  c.custom_mask.assign(52, 1);
  EXPECT_NO_THROW(check_topk_verify(bind_verify(c, outputs), c.seq_lens.data()));
}

TEST(TopkChecks, RefuseArgumentsThatMakeNoSense) {
  TopkCase c = two_requests();
  c.seq_lens = {3, 1};
  c.out_cache_loc.assign(12, 5);
  c.custom_mask.assign(100, 1);
  TopkOutputs outputs = poisoned_outputs(c);
  const TopkOutputs untouched = outputs;
  const TopkDraftArgs draft = bind_draft(c, outputs);
  ASSERT_TRUE(is_valid(draft));
  std::vector<TopkDraftArgs> bad(9, draft);
  bad[0].topk = 1;
  bad[1].step = 3;
  bad[2].num_out_tokens = 11;
  bad[3].num_out_tokens = 15;
  bad[4].expand.rows = 3;
  bad[5].expand.width = 0;
  bad[6].prefix.page_size = bad[6].expand.page_size = 3;
  bad[7].prefix.page_size = 2;
  bad[8].seq_lens = nullptr;
  for (std::size_t i = 0; i < bad.size(); ++i) {
    EXPECT_THROW(reference_topk_draft(bad[i]), std::invalid_argument) << i;
  }
  c.verify = true;
  TopkOutputs verify_outputs = poisoned_outputs(c);
  const TopkVerifyArgs verify = bind_verify(c, verify_outputs);
  ASSERT_TRUE(is_valid(verify));
  std::vector<TopkVerifyArgs> worse(6, verify);
  worse[0].draft_tokens = 65;
  worse[1].num_positions = 9;
  worse[2].num_positions = 7;
  worse[3].custom_mask = nullptr;
  worse[4].expand.page_size = 2;
  worse[5].expand.page_table_stride = 3;
  for (std::size_t i = 0; i < worse.size(); ++i) {
    EXPECT_THROW(reference_topk_verify(worse[i]), std::invalid_argument) << i;
  }
  EXPECT_EQ(outputs, untouched);
}

std::string totals(const TopkCase& c) {
  kernels::AddressSource addresses;
  TensorAllocator allocator(addresses.block_source());
  kernels::RecordingTensorOps ops(allocator, c.seq_lens[0]);
  TopkOutputs outputs = poisoned_outputs(c);
  if (c.verify) {
    rebuild_topk_verify_aten(ops, bind_verify(c, outputs), c.seq_lens.data(), c.pool_rows);
  } else {
    rebuild_topk_draft_aten(ops, bind_draft(c, outputs), c.seq_lens.data(), c.pool_rows);
  }
  const kernels::OperationCounts counts = ops.counts();
  return std::to_string(counts.calls) + " calls, " + std::to_string(counts.kernel_launches) +
         " launches, " + std::to_string(counts.copies) + " copies, " +
         std::to_string(counts.syncs) + " syncs";
}

TEST(TopkRecorded, CostsTheseOperations) {
  TopkCase c;
  c.batch_size = c.live_rows = 8;
  fill_case(c, 3);
  EXPECT_EQ(totals(c), "17 calls, 6 launches, 1 copies, 0 syncs");
  c.page_size = 64;
  fill_case(c, 3);
  EXPECT_EQ(totals(c), "17 calls, 9 launches, 1 copies, 0 syncs");
  c.page_size = 1;
  c.verify = true;
  fill_case(c, 3);
  EXPECT_EQ(totals(c), "45 calls, 28 launches, 4 copies, 0 syncs");
}

}  // namespace
}  // namespace tpjitter
