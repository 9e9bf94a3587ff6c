// The fills of FlashInfer's form on the host: known answers by hand for each phase, the reference
// against lists built another way, and lengths that do not fit refused where they are known.
#include <gtest/gtest.h>

#include <array>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/metadata_kv_indices.h"
#include "tests/kv_indices_cases.h"

namespace tpjitter {
namespace {

using kernels::DecodeMetadataArgs;
using kernels::DecodePhase;
using kernels::IntType;
using kernels::KvIndicesArgs;
using kernels::KvIndicesWrapper;
using test::kKvPoison;
using test::KvIndicesCase;
using test::KvIndicesOutputs;
using Ints = std::vector<std::int32_t>;

// Three requests in pool rows 2, 0, 1 with 3, 0 and 5 tokens; row r holds slots 10 * (r + 1) + j.
class MetadataKvIndices : public ::testing::Test {
 protected:
  KvIndicesWrapper wrapper() {
    return {.kv_indptr = kv_indptr_.data(),
            .kv_indices = kv_indices_.data(),
            .qo_indptr = qo_indptr_.data(),
            .capacity = static_cast<std::int64_t>(kv_indices_.size())};
  }
  KvIndicesArgs fill(DecodePhase phase, std::int32_t seqlen_offset, std::int32_t q_stride) {
    const DecodeMetadataArgs metadata = {.req_pool_indices = req_pool_indices_.data(),
                                         .seq_lens = seq_lens_.data(),
                                         .req_to_token = req_to_token_.data(),
                                         .req_to_token_stride = 8,
                                         .batch_size = 3,
                                         .seqlen_offset = seqlen_offset,
                                         .q_stride = q_stride,
                                         .req_pool_indices_type = IntType::kInt64,
                                         .seq_lens_type = IntType::kInt32};
    return kv_indices_args(phase, metadata, wrapper());
  }
  KvIndicesArgs decode_fill() { return fill(DecodePhase::kNormalDecode, 0, 0); }

  static constexpr std::int32_t P = kKvPoison;
  const std::vector<std::int64_t> req_pool_indices_ = {2, 0, 1};
  const std::vector<std::int32_t> seq_lens_ = {3, 0, 5};
  const Ints req_to_token_ = {10, 11, 12, 13, 14, 15, 16, 17, 20, 21, 22, 23,
                              24, 25, 26, 27, 30, 31, 32, 33, 34, 35, 36, 37};
  Ints kv_indptr_ = {0, P, P, P, P};
  Ints kv_indices_ = Ints(18, P);
  Ints qo_indptr_ = Ints(5, P);
};

TEST_F(MetadataKvIndices, DecodeJoinsTheSlotsOfAllRequests) {
  reference_kv_indices(decode_fill());
  EXPECT_EQ(kv_indptr_, (Ints{0, 3, 3, 8, P}));
  EXPECT_EQ(kv_indices_, (Ints{30, 31, 32, 20, 21, 22, 23, 24, P, P, P, P, P, P, P, P, P, P}));
  EXPECT_EQ(qo_indptr_, Ints(5, P));  // decode has none
}

TEST_F(MetadataKvIndices, ASlidingWindowKeepsTheLastTokensAndTranslatesThem) {
  std::vector<std::int64_t> full_to_swa(40);
  for (std::size_t i = 0; i < full_to_swa.size(); ++i) full_to_swa[i] = 100 + static_cast<int>(i);
  full_to_swa[23] = -1;  // evicted from the window's pool
  Ints swa_indptr = kv_indptr_, swa_indices(7, P);
  const KvIndicesWrapper swa_wrapper = {.kv_indptr = swa_indptr.data(),
                                        .kv_indices = swa_indices.data(),
                                        .qo_indptr = qo_indptr_.data(),
                                        .capacity = 7};
  const KvIndicesArgs full = decode_fill();
  reference_kv_indices(with_sliding_window(full, 1, full_to_swa.data(), swa_wrapper));
  reference_kv_indices(full);
  EXPECT_EQ(swa_indptr, (Ints{0, 2, 2, 4, P}));
  EXPECT_EQ(swa_indices, (Ints{131, 132, -1, 124, P, P, P}));
  EXPECT_EQ(kv_indptr_, (Ints{0, 3, 3, 8, P}));
  EXPECT_EQ(qo_indptr_, Ints(5, P));
}

TEST_F(MetadataKvIndices, AWindowsFillTranslatesTheSlotsThatSlidingLayersWrite) {
  std::vector<std::int64_t> full_to_swa(40);
  for (std::size_t i = 0; i < full_to_swa.size(); ++i) full_to_swa[i] = 100 + static_cast<int>(i);
  full_to_swa[7] = -1;
  const std::vector<std::int64_t> locations = {32, -1, 7};
  std::vector<std::int64_t> swa_locations(5, 9);
  KvIndicesArgs args = with_sliding_window(decode_fill(), 1, full_to_swa.data(), wrapper());
  args.swa_out = {.out_cache_loc = locations.data(),
                  .swa_out_cache_loc = swa_locations.data(),
                  .num_locations = 3,
                  .length = 4};
  reference_kv_indices(args);
  EXPECT_EQ(swa_locations, (std::vector<std::int64_t>{132, -1, -1, 0, 9}));
  args.swa_out.num_locations = 5;
  EXPECT_THROW(reference_kv_indices(args), std::invalid_argument) << "more than there is room for";
  args.swa_out.num_locations = 3;
  args.full_to_swa = nullptr;
  EXPECT_THROW(reference_kv_indices(args), std::invalid_argument) << "no mapping";
}

TEST_F(MetadataKvIndices, VerifyAddsItsDraftTokensToLengthsAndQueries) {
  reference_kv_indices(fill(DecodePhase::kTargetVerify, 3, 0));
  EXPECT_EQ(kv_indptr_, (Ints{0, 6, 9, 17, P}));
  EXPECT_EQ(kv_indices_,
            (Ints{30, 31, 32, 33, 34, 35, 10, 11, 12, 20, 21, 22, 23, 24, 25, 26, 27, P}));
  EXPECT_EQ(qo_indptr_, (Ints{0, 3, 6, 9, P}));
}

TEST_F(MetadataKvIndices, DraftExtendKeepsLengthsAndStridesQueries) {
  reference_kv_indices(fill(DecodePhase::kDraftExtendStrided, 0, 4));
  EXPECT_EQ(kv_indptr_, (Ints{0, 3, 3, 8, P}));
  EXPECT_EQ(qo_indptr_, (Ints{0, 4, 8, 12, P}));
  EXPECT_THROW(fill(DecodePhase::kDraftExtendCumsum, 0, 0), std::invalid_argument);
}

TEST_F(MetadataKvIndices, EachDraftStepReadsOneTokenMoreIntoItsOwnBuffers) {
  Ints indptr(2 * 5, P), indices(2 * 16, P);
  indptr[0] = indptr[5] = 0;
  KvIndicesArgs first = fill(DecodePhase::kDraftDecode, 0, 0);
  first.wrapper = {.kv_indptr = indptr.data(), .kv_indices = indices.data(), .capacity = 32};
  std::array<KvIndicesArgs, 2> fills;
  draft_step_fills(first, 5, 16, fills);
  for (const KvIndicesArgs& step : fills) {
    EXPECT_EQ(step.wrapper.capacity, 16);
    reference_kv_indices(step);
  }
  EXPECT_EQ(indptr, (Ints{0, 4, 5, 11, P, 0, 5, 7, 14, P}));
  EXPECT_EQ(indices, (Ints{30, 31, 32, 33, 10, 20, 21, 22, 23, 24, 25, P,  P,  P,  P, P,  //
                           30, 31, 32, 33, 34, 10, 11, 20, 21, 22, 23, 24, 25, 26, P, P}));
}

TEST_F(MetadataKvIndices, AGivenStartSelectsTheTokens) {
  const Ints starts = {1, 7, 3};
  KvIndicesArgs args = decode_fill();
  args.kv_start_idx = starts.data();
  args.kv_start_idx_type = IntType::kInt32;
  reference_kv_indices(args);
  EXPECT_EQ(kv_indptr_, (Ints{0, 3, 3, 8, P}));
  EXPECT_EQ(Ints(kv_indices_.begin(), kv_indices_.begin() + 9),
            (Ints{31, 32, 33, 23, 24, 25, 26, 27, P}));
}

TEST_F(MetadataKvIndices, PaddingRowsWithTheirFillValueReadOneTokenOfRowZero) {
  const std::vector<std::int64_t> padded_rows = {2, 0, 0};
  const std::vector<std::int64_t> padded_lens = {3, 1, 1};
  KvIndicesArgs args = decode_fill();
  args.req_pool_indices = padded_rows.data();
  args.seq_lens = padded_lens.data();
  args.seq_lens_type = IntType::kInt64;
  reference_kv_indices(args);
  EXPECT_EQ(kv_indptr_, (Ints{0, 3, 4, 5, P}));
  EXPECT_EQ(Ints(kv_indices_.begin(), kv_indices_.begin() + 6), (Ints{30, 31, 32, 10, 10, P}));
}

TEST_F(MetadataKvIndices, ARowPastTheCapacityIsCutAndShowsInTheLastPrefix) {
  KvIndicesArgs args = decode_fill();
  args.wrapper.capacity = 5;
  reference_kv_indices(args);
  EXPECT_EQ(kv_indptr_, (Ints{0, 3, 3, 8, P}));  // what was needed
  EXPECT_EQ(Ints(kv_indices_.begin(), kv_indices_.begin() + 6), (Ints{30, 31, 32, 20, 21, P}));
}

TEST_F(MetadataKvIndices, ALengthPastTheRowOfThePoolReadsNoOtherRequest) {
  const std::vector<std::int32_t> lens = {9, -4, 1};
  KvIndicesArgs args = decode_fill();
  args.seq_lens = lens.data();
  reference_kv_indices(args);
  EXPECT_EQ(kv_indptr_, (Ints{0, 9, 9, 10, P}));
  EXPECT_EQ(Ints(kv_indices_.begin() + 7, kv_indices_.begin() + 11), (Ints{37, -1, 20, P}));
}

void expect_refused(const KvIndicesArgs& args, const std::vector<std::int64_t>& lens,
                    const std::string& text) {
  try {
    check_kv_indices(args, lens.data());
    ADD_FAILURE() << "accepted; expected: " << text;
  } catch (const std::invalid_argument& error) {
    EXPECT_EQ(std::string(error.what()), text);
  }
}

TEST_F(MetadataKvIndices, RefusesKnownLengthsByRowNeededAndAvailable) {
  KvIndicesArgs args = fill(DecodePhase::kTargetVerify, 3, 0);
  args.wrapper.capacity = 16;
  expect_refused(args, {3, 0, 5},
                 "kv_indices: row 2 of 8 tokens needs 17 entries with the rows before it, but "
                 "kv_indices has 16");
  expect_refused(args, {3, 6, 1}, "kv_indices: row 1 has 9 tokens, past the req_to_token row of 8");
  args.wrapper.capacity = 17;
  EXPECT_NO_THROW(check_kv_indices(args, std::vector<std::int64_t>{3, 0, 5}.data()));
  args.sliding_window = 1;
  args.wrapper.capacity = 5;
  expect_refused(args, {3, 0, 5},
                 "kv_indices: row 2 of 2 tokens needs 6 entries with the rows before it, but "
                 "kv_indices has 5");
  args = decode_fill();
  args.req_to_token_stride = std::int64_t{1} << 31;
  args.wrapper.capacity = std::int64_t{1} << 33;
  expect_refused(args, {1 << 30, 1, 1 << 30},
                 "kv_indices: row 2 of 1073741824 tokens needs 2147483649 entries with the rows "
                 "before it, more than the int32 of kv_indptr holds");
}

TEST_F(MetadataKvIndices, RefusesArgumentsThatMakeNoSense) {
  const KvIndicesArgs good = fill(DecodePhase::kTargetVerify, 3, 0);
  EXPECT_TRUE(is_valid(good));
  std::vector<KvIndicesArgs> bad(9, good);
  bad[0].seq_lens = nullptr;
  bad[1].req_pool_indices = nullptr;
  bad[2].req_to_token = nullptr;
  bad[3].wrapper.kv_indptr = nullptr;
  bad[4].wrapper.kv_indices = nullptr;
  bad[5].q_stride = 0;
  bad[6].sliding_window = -2;
  bad[7].sliding_window = 4;
  bad[7].kv_start_idx = seq_lens_.data();
  bad[8].wrapper.capacity = -1;
  for (std::size_t i = 0; i < bad.size(); ++i) {
    EXPECT_FALSE(is_valid(bad[i])) << i;
    EXPECT_THROW(reference_kv_indices(bad[i]), std::invalid_argument) << i;
  }
  EXPECT_EQ(kv_indptr_, (Ints{0, P, P, P, P}));
  EXPECT_EQ(qo_indptr_, Ints(5, P));
  KvIndicesArgs empty;
  EXPECT_NO_THROW(reference_kv_indices(empty));  // no batch, nothing to refuse
}

TEST(MetadataKvIndicesRandom, EqualsListsBuiltAnotherWayAndLeavesTailsAlone) {
  for (const KvIndicesCase& c : test::random_kv_cases()) {
    KvIndicesOutputs outputs = poisoned_outputs(c);
    const KvIndicesArgs args = bind(c, outputs);
    EXPECT_NO_THROW(check_kv_indices(args, c.seq_lens.data())) << c.name;
    reference_kv_indices(args);
    ASSERT_EQ(first_difference(outputs, joined_lists(c)), "") << c.name;
  }
}

TEST(MetadataKvIndicesRandom, IsCutAtAnyCapacity) {
  for (const std::int64_t capacity : {0, 1, 255, 256, 1000}) {
    const KvIndicesCase c = test::make_kv_case(
        {.batch_size = 33, .context = 200, .translated = true, .capacity = capacity}, 77);
    KvIndicesOutputs outputs = poisoned_outputs(c);
    const KvIndicesArgs args = bind(c, outputs);
    reference_kv_indices(args);
    ASSERT_EQ(first_difference(outputs, joined_lists(c)), "") << capacity;
    EXPECT_GT(outputs.kv_indptr[33], capacity);
    EXPECT_THROW(check_kv_indices(args, c.seq_lens.data()), std::invalid_argument);
  }
}

}  // namespace
}  // namespace tpjitter
