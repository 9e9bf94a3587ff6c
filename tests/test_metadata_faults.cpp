// The faults that serving engines had around their metadata, injected one by one into a copy of a
// healthy rebuild: the forward's checksum, the comparison with the reference, or a guard must
// notice. Those that need a runner or two ranks are tested with the compositions.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/decode_body.h"
#include "kernels/linear_state.h"
#include "kernels/metadata_aten.h"
#include "kernels/metadata_kv_indices_ops.h"
#include "kernels/tensor_ops_reference.h"

namespace tpjitter {
namespace {

using kernels::DecodeMetadataArgs;
using kernels::DecodePhase;
using kernels::IntType;
using kernels::KvGatherArgs;
using kernels::ReferenceTensorOps;
using kernels::TensorAllocator;
using Ints = std::vector<std::int32_t>;
using Longs = std::vector<std::int64_t>;

constexpr std::int32_t kPageSize = 4;
constexpr std::int32_t kPages = 3;                     // static width
constexpr std::int32_t kContext = kPages * kPageSize;  // columns of req_to_token
constexpr std::int32_t kPoolRows = 5;                  // row 0 is for padding
constexpr std::int32_t kMaxBatch = 4;
constexpr std::int32_t kSlots = kPoolRows * kContext;

// A runner's persistent buffers for batches to 4, with sliding windows: three live requests and a
// padded row.
struct Runner {
  Longs req_pool_indices{2, 4, 1, 0};
  Ints seq_lens{6, 9, 3, 1};
  Ints req_to_token = Ints(kSlots, 0);
  Longs full_to_swa = Longs(kSlots + kPageSize + 1, -1);
  Longs out_cache_loc{29, 56, 14, 0};
  Ints cache_seqlens = Ints(kMaxBatch, -7), cu_seqlens_k = Ints(kMaxBatch + 1, -7);
  Ints cu_seqlens_q{0, 1, 2, 3, 4};
  Ints page_table = Ints(kMaxBatch * kPages, -7), swa_page_table = Ints(kMaxBatch * kPages, -7);
  Longs swa_out_cache_loc = Longs(kMaxBatch, 123);
  std::int32_t batch_size = kMaxBatch;
  std::int32_t live_rows = 3;

  Runner() {
    for (std::int32_t slot = kContext; slot < kSlots; ++slot) req_to_token[slot] = slot;
    for (std::int32_t slot = 0; slot < kSlots; ++slot) full_to_swa[slot] = (slot + 8) % kSlots;
    cu_seqlens_k[0] = 0;
  }
  DecodeMetadataArgs args() {
    DecodeMetadataArgs a;
    a.req_pool_indices = req_pool_indices.data();
    a.seq_lens = seq_lens.data();
    a.req_to_token = req_to_token.data();
    a.full_to_swa = full_to_swa.data();
    a.out_cache_loc = out_cache_loc.data();
    a.cache_seqlens = cache_seqlens.data();
    a.cu_seqlens_k = cu_seqlens_k.data();
    a.cu_seqlens_q = cu_seqlens_q.data();
    a.page_table = page_table.data();
    a.swa_page_table = swa_page_table.data();
    a.swa_out_cache_loc = swa_out_cache_loc.data();
    a.req_to_token_stride = kContext;
    a.page_table_stride = a.swa_page_table_stride = a.max_seq_pages = kPages;
    a.swa_out_len = batch_size;
    a.num_out_tokens = live_rows;
    a.batch_size = batch_size;
    a.page_size = kPageSize;
    a.page_columns = kernels::PageColumns::kLive;
    return a;
  }
  void rebuild() { reference_decode_metadata(args()); }
  std::uint64_t checksum() {
    kernels::DecodeBodyShape shape;
    shape.layers = 2;  // a sliding one and a full one
    shape.swa = true;
    return reference_step_checksum(args(), shape, 3);
  }
  // The next step: every request one token longer, which goes to a new slot.
  void advance() {
    for (std::int32_t row = 0; row < live_rows; ++row) {
      const auto at = static_cast<std::size_t>(row);
      ++seq_lens[at];
      out_cache_loc[at] = req_pool_indices[at] * kContext + seq_lens[at] - 1;
    }
  }
};

Runner healthy() {
  Runner runner;
  runner.rebuild();
  return runner;
}

template <class Call>
void expect_refused(Call call, const std::string& part) {
  try {
    call();
    ADD_FAILURE() << "accepted; expected: " << part;
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST(MetadataFaults, AHealthyRebuildPassesTwice) {
  Runner runner = healthy();
  const std::uint64_t first = runner.checksum();
  runner.rebuild();
  EXPECT_EQ(runner.checksum(), first);
}

TEST(MetadataFaults, BuffersThatWereNotSlicedToTheBatchCountRowsThatDoNotRun) {
  Runner sliced;
  sliced.batch_size = 3;
  sliced.rebuild();
  EXPECT_EQ(sliced.cache_seqlens[3], -7) << "a sliced rebuild ends at its batch";
  EXPECT_EQ(sliced.page_table[9], -7);
  Runner unsliced;
  unsliced.rebuild();  // the whole buffers, for a batch of 3
  EXPECT_NE(unsliced.cache_seqlens[3], -7);
  EXPECT_NE(unsliced.checksum(), sliced.checksum());
  // Op by op, the copy into the sliced table is where it shows.
  TensorAllocator allocator(kernels::host_block_source());
  ReferenceTensorOps ops(allocator);
  const kernels::Tensor lens = vector_tensor(unsliced.seq_lens.data(), IntType::kInt32, kMaxBatch);
  const kernels::Tensor view = vector_tensor(sliced.cache_seqlens.data(), IntType::kInt32, 3);
  expect_refused([&] { ops.copy_(view, lens); }, "differ in shape");
}

TEST(MetadataFaults, AFillLengthBelowTheVerifyWidthGivesPositionsBeforeTheRow) {
  // Positions of a padded row's draft tokens: from fill length + 1 - width on.
  const auto first_position = [](std::int32_t fill, std::int32_t width) {
    return fill + 1 - width;
  };
  ASSERT_EQ(first_position(1, 4), -2);  // -2, -1, 0, 1
  ASSERT_EQ(first_position(4, 4), 1);
  Runner runner = healthy();
  const Longs pool_row{1}, length{4};
  const Ints kv_indptr{0, 4};
  const auto gather = [&](std::int64_t start) {
    Ints kv_indices(4, -7);
    KvGatherArgs args = {.req_pool_indices = pool_row.data(),
                         .lens = length.data(),
                         .kv_start_idx = &start,
                         .kv_indptr = kv_indptr.data(),
                         .req_to_token = runner.req_to_token.data(),
                         .kv_indices = kv_indices.data(),
                         .req_to_token_stride = kContext,
                         .capacity = 4,
                         .batch_size = 1};
    reference_kv_gather(args);
    return kv_indices;
  };
  EXPECT_EQ(gather(first_position(1, 4)), (Ints{-1, -1, 12, 13}));  // not slots 10, 11 of row 0
  EXPECT_EQ(gather(first_position(4, 4)), (Ints{13, 14, 15, 16}));
}

TEST(MetadataFaults, AnotherFillLengthOrRequestOfThePaddedRowChangesTheChecksum) {
  const std::uint64_t right = healthy().checksum();
  Runner other;
  other.seq_lens[3] = 0;
  other.rebuild();
  EXPECT_NE(other.checksum(), right);
  other = Runner();
  other.req_pool_indices[3] = 3;  // stale: a request that has left
  other.rebuild();
  EXPECT_NE(other.checksum(), right);
}

TEST(MetadataFaults, ATailOfSwaLocationsThatWasNotZeroedWritesIntoLiveSlots) {
  Runner runner = healthy();
  EXPECT_EQ(runner.swa_out_cache_loc[3], 0);
  const std::uint64_t right = runner.checksum();
  runner.swa_out_cache_loc[3] = 44;  // of an earlier, larger batch
  DecodeMetadataArgs args = runner.args();
  args.swa_out_len = args.num_out_tokens;  // translated, but the tail left alone
  reference_decode_metadata(args);
  EXPECT_EQ(runner.swa_out_cache_loc[3], 44);
  EXPECT_NE(runner.checksum(), right);
}

TEST(MetadataFaults, NegativeSlotsIndexNoMappingAndTheirPagesFollowTheSignRule) {
  Runner runner;
  runner.req_to_token[2 * kContext] = -1;
  runner.req_to_token[4 * kContext] = -9;
  runner.rebuild();
  EXPECT_EQ(runner.page_table[0], 0);  // towards zero
  EXPECT_EQ(runner.page_table[3], -2);
  EXPECT_EQ(runner.swa_page_table[0], -1);
  EXPECT_EQ(runner.swa_page_table[3], -1);
  EXPECT_NE(runner.checksum(), healthy().checksum());
}

TEST(MetadataFaults, AMinusOneLeftInATableIsNoticed) {
  const std::uint64_t right = healthy().checksum();
  Runner runner = healthy();
  runner.page_table[1] = -1;  // row 0 has two pages
  EXPECT_NE(runner.checksum(), right);
  runner = healthy();
  runner.page_table[2] = -1;  // and no third: nobody reads it
  EXPECT_EQ(runner.checksum(), right);
  runner = healthy();
  runner.swa_page_table[3] = -1;
  EXPECT_NE(runner.checksum(), right);
}

TEST(MetadataFaults, TablesThatWereNeverFilledReadSlotZero) {
  Runner runner = healthy();
  const std::uint64_t right = runner.checksum();
  std::fill(runner.page_table.begin(), runner.page_table.end(), 0);
  EXPECT_NE(runner.checksum(), right);
}

TEST(MetadataFaults, ARebuildThatDidNotRunIsNoticedInTheNextStep) {
  Runner stale = healthy();
  stale.advance();
  Runner rebuilt = stale;
  rebuilt.rebuild();
  EXPECT_NE(stale.checksum(), rebuilt.checksum());
}

TEST(MetadataFaults, LocationsTranslatedInAnEarlierStepAreNoticed) {
  Runner cached = healthy();
  const Longs before = cached.swa_out_cache_loc;
  cached.advance();
  cached.rebuild();
  const std::uint64_t right = cached.checksum();
  cached.swa_out_cache_loc = before;
  EXPECT_NE(cached.checksum(), right);
}

TEST(MetadataFaults, ADraftPassThatReadsThePassBeforeItIsNoticed) {
  Runner first;
  DecodeMetadataArgs args = first.args();
  args.seqlen_offset = 1;
  reference_decode_metadata(args);
  Runner second = first;
  args = second.args();
  args.seqlen_offset = 2;
  reference_decode_metadata(args);
  EXPECT_NE(first.checksum(), second.checksum());
}

TEST(MetadataFaults, SlotsRewrittenBeforeTheyWereReadAreNoticed) {
  const std::uint64_t right = healthy().checksum();
  Runner runner;
  runner.req_to_token[4 * kContext + kPageSize] = 16;  // the scheduler's next request, too early
  runner.rebuild();
  EXPECT_NE(runner.checksum(), right);
}

TEST(MetadataFaults, AMappingThatChangedUnderTheGraphIsNoticed) {
  const std::uint64_t right = healthy().checksum();
  Runner runner;
  runner.full_to_swa[4 * kContext] = -1;  // evicted between rebuild and forward
  runner.rebuild();
  EXPECT_NE(runner.checksum(), right);
}

TEST(MetadataFaults, AMappingOfTheWrongLengthIsRefusedByName) {
  Runner runner;
  const auto length = static_cast<std::int64_t>(runner.full_to_swa.size());
  EXPECT_NO_THROW(kernels::check_swa_mapping(runner.full_to_swa.data(), length, kSlots, kPageSize));
  expect_refused(
      [&] {
        kernels::check_swa_mapping(runner.full_to_swa.data(), length - kPageSize, kSlots,
                                   kPageSize);
      },
      "SWA mapping: 61 entries, needed 65 for 60 slots, a padding page of 4 and the -1 at the end");
  runner.full_to_swa.back() = 3;
  expect_refused(
      [&] { kernels::check_swa_mapping(runner.full_to_swa.data(), length, kSlots, kPageSize); },
      "the last entry is 3, not -1");
}

// The op-by-op path over the runner's buffers, with what its host believes.
void rebuild_aten(Runner& runner, const Longs& seq_lens_cpu, std::int64_t mapping_length) {
  TensorAllocator allocator(kernels::host_block_source());
  ReferenceTensorOps ops(allocator);
  const Longs strided_indices{0, 4, 8};
  kernels::AtenMetadataArgs args;
  args.metadata = runner.args();
  args.seq_lens_cpu = seq_lens_cpu.empty() ? nullptr : seq_lens_cpu.data();
  args.strided_indices = strided_indices.data();
  args.pool_rows = kPoolRows;
  args.full_to_swa_len = mapping_length;
  rebuild_metadata_aten(ops, DecodePhase::kNormalDecode, args);
}

TEST(MetadataFaults, AMappingWithoutItsPaddingPageRaisesOpByOp) {
  Runner runner;
  runner.req_to_token[4 * kContext] = kSlots + 1;  // a slot of the padding page, which is legal
  EXPECT_NO_THROW(rebuild_aten(runner, {6, 9, 3, 1}, kSlots + kPageSize + 1));
  expect_refused([&] { rebuild_aten(runner, {6, 9, 3, 1}, kSlots + 1); }, "outside of the tensor");
}

TEST(MetadataFaults, HostLengthsOfAnEarlierStepLeaveStaleColumns) {
  Runner runner;
  rebuild_aten(runner, {6, 9, 3, 1}, kSlots + kPageSize + 1);
  EXPECT_EQ(runner.checksum(), healthy().checksum());
  Runner late;
  rebuild_aten(late, {6, 8, 3, 1}, kSlots + kPageSize + 1);  // row 1 has a third page by now
  EXPECT_EQ(late.page_table[5], -7);
  EXPECT_NE(late.checksum(), healthy().checksum());
}

TEST(MetadataFaults, HostLengthsThatAreAbsentAreRefusedByName) {
  Runner runner;
  expect_refused([&] { rebuild_aten(runner, {}, kSlots + kPageSize + 1); },
                 "max: the host tensor is absent");
}

TEST(MetadataFaults, ACounterBufferIsSizedForThePaddingRowAndAllDraftTokens) {
  // launch_attention refuses fewer (GPU tests); the size itself is the fault that grows.
  EXPECT_EQ(kernels::attention_counter_rows(16, 4), 68);
  EXPECT_LT(16 * 4, kernels::attention_counter_rows(16, 4));
}

TEST(MetadataFaults, PaddedRowsWithStaleRequestsHaveNoStateInLinearLayers) {
  Longs requests{1, 9};  // row 1 is padding, and its request outside of everything
  const Ints mapping{0, 6};
  Ints states(2, -7), starts(3, -7);
  kernels::LinearStateArgs args;
  args.req_pool_indices = requests.data();
  args.mapping = mapping.data();
  args.mapping_len = 2;
  args.state_indices = states.data();
  args.query_start_loc = starts.data();
  args.batch_size = 2;
  args.num_padding = 1;
  reference_linear_state(DecodePhase::kNormalDecode, args);
  EXPECT_EQ(states, (Ints{6, -1}));
  args.num_padding = 0;  // the mirror is absent, so that nothing counts as padding
  expect_refused([&] { check_linear_mapping(args); }, "row 1 is request 9");
}

}  // namespace
}  // namespace tpjitter
