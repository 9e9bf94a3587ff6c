// The page-table path on the host: every word equals the reference on live columns and keeps its
// value elsewhere, no operation waits for the device, and a static bound that is too small is
// refused where lengths are known.
#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "kernels/metadata_page_table.h"
#include "kernels/tensor_ops_recording.h"
#include "kernels/tensor_ops_reference.h"
#include "tests/metadata_cases.h"
#include "tests/page_table_cases.h"

namespace tpjitter {
namespace {

using kernels::DecodePhase;
using kernels::IntType;
using kernels::OperationCounts;
using kernels::OperationKind;
using kernels::PageTableArgs;
using kernels::PageTableMetadataArgs;
using kernels::QueryMode;
using kernels::ReferenceTensorOps;
using kernels::TensorAllocator;
using test::MetadataCase;
using test::MetadataOutputs;

PageTableMetadataArgs bind_page_table(const MetadataCase& c, MetadataOutputs& outputs) {
  PageTableMetadataArgs args;
  args.metadata = bind(c, outputs);
  args.full_to_swa_len = static_cast<std::int64_t>(c.full_to_swa.size());
  return args;
}

class MetadataPageTable : public ::testing::Test {
 protected:
  MetadataOutputs rebuild(const MetadataCase& c, DecodePhase phase) {
    MetadataOutputs outputs = poisoned_outputs(c);
    EXPECT_EQ(rebuild_metadata_page_table(ops_, phase, bind_page_table(c, outputs)), 0);
    EXPECT_EQ(allocator_.blocks_in_use(), 0);
    return outputs;
  }
  void expect_refused(DecodePhase phase, const PageTableMetadataArgs& args,
                      const std::string& part) {
    try {
      rebuild_metadata_page_table(ops_, phase, args);
      ADD_FAILURE() << "accepted; expected: " << part;
    } catch (const std::invalid_argument& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }

  TensorAllocator allocator_{kernels::host_block_source()};
  ReferenceTensorOps ops_{allocator_};
};

TEST_F(MetadataPageTable, GivesTheKnownAnswersOnLiveColumns) {
  int phases = 0;
  for (const test::GoldenCase& golden : test::load_golden_cases()) {
    SCOPED_TRACE(golden.inputs.name);
    const MetadataCase c = test::fit_for_page_table(golden.inputs);
    const auto& s = c.scalars;
    for (const DecodePhase phase : aten_phases(c)) {
      ++phases;
      const MetadataOutputs outputs = rebuild(c, phase);
      ASSERT_EQ(first_difference(outputs, page_table_outputs(c)), "");
      if (s.seqlen_offset == golden.inputs.scalars.seqlen_offset) {
        EXPECT_EQ(outputs.cache_seqlens, golden.cache_seqlens);
        EXPECT_EQ(outputs.cu_seqlens_k, golden.cu_seqlens_k);
      }
      EXPECT_EQ(outputs.cu_seqlens_q, golden.cu_seqlens_q);
      if (c.has_out_cache_loc) {
        EXPECT_EQ(outputs.swa_out_cache_loc, golden.swa_out_cache_loc);
      }
      for (std::int64_t row = 0; row < s.batch_size; ++row) {
        const std::int64_t live = std::min<std::int64_t>(
            (outputs.cache_seqlens[row] + s.page_size - 1) / s.page_size, s.max_seq_pages);
        for (std::int64_t column = 0; column < live; ++column) {
          const auto at = static_cast<std::size_t>(row * s.max_seq_pages + column);
          ASSERT_EQ(outputs.page_table[row * s.page_table_stride + column], golden.page_table[at]);
          if (!c.has_swa()) continue;
          ASSERT_EQ(outputs.swa_page_table[row * s.swa_page_table_stride + column],
                    golden.swa_page_table[at]);
        }
      }
    }
  }
  EXPECT_GT(phases, 10);
}

TEST_F(MetadataPageTable, EqualsTheReferenceInEveryWordAndLeavesTailsAlone) {
  bool seen[5] = {};
  for (const MetadataCase& random : test::random_cases()) {
    SCOPED_TRACE(random.name);
    const MetadataCase c = test::fit_for_page_table(random);
    for (const DecodePhase phase : aten_phases(c)) {
      seen[static_cast<int>(phase)] = true;
      ASSERT_EQ(first_difference(rebuild(c, phase), page_table_outputs(c)), "")
          << "phase " << static_cast<int>(phase);
    }
  }
  EXPECT_TRUE(std::all_of(std::begin(seen), std::end(seen), [](bool each) { return each; }));
}

TEST_F(MetadataPageTable, EqualsTheReferenceOverTheEnginesMatrix) {
  std::uint64_t seed = 0;
  for (const std::int32_t context : {2048, 4096, 131072}) {
    for (const std::int32_t page : {1, 32, 64, 128, 256}) {
      for (const std::int32_t batch : {1, 7, 32}) {
        const MetadataCase c =
            test::fit_for_page_table(test::make_random_case({.batch_size = batch,
                                                             .page_size = page,
                                                             .max_seq_pages = context / page,
                                                             .swa = context < 100000,
                                                             .pool_rows = 4},
                                                            ++seed));
        ASSERT_EQ(first_difference(rebuild(c, DecodePhase::kNormalDecode), page_table_outputs(c)),
                  "")
            << c.name;
      }
    }
  }
}

TEST_F(MetadataPageTable, TakesPagesLargerThanTheEnginesBlockAndAMillionTokens) {
  for (const std::int32_t page : {1, 64, 8192, 1 << 20}) {
    const MetadataCase c =
        test::fit_for_page_table(test::make_random_case({.batch_size = 2,
                                                         .page_size = page,
                                                         .max_seq_pages = (1 << 20) / page,
                                                         .swa = true,
                                                         .pool_rows = 2},
                                                        5));
    EXPECT_EQ(first_difference(rebuild(c, DecodePhase::kNormalDecode), page_table_outputs(c)), "")
        << c.name;
  }
}

TEST_F(MetadataPageTable, WritesTheSameTableWhateverTheStride) {
  MetadataCase c = test::fit_for_page_table(test::make_random_case(
      {.batch_size = 7, .page_size = 32, .max_seq_pages = 20, .swa = true}, 6));
  const MetadataOutputs wide = rebuild(c, DecodePhase::kNormalDecode);
  const auto wide_stride = c.scalars.page_table_stride;
  const auto wide_swa_stride = c.scalars.swa_page_table_stride;
  c.scalars.page_table_stride = 20;
  c.scalars.swa_page_table_stride = 57;
  const MetadataOutputs other = rebuild(c, DecodePhase::kNormalDecode);
  for (std::int64_t row = 0; row < 7; ++row) {
    for (std::int64_t column = 0; column < 20; ++column) {
      ASSERT_EQ(other.page_table[row * 20 + column], wide.page_table[row * wide_stride + column]);
      ASSERT_EQ(other.swa_page_table[row * 57 + column],
                wide.swa_page_table[row * wide_swa_stride + column]);
    }
  }
}

// Four rows of pages of 4 tokens, at most 3 pages: empty, a part of a page, full, past the bound.
TEST_F(MetadataPageTable, GuardsEachRowByItsOwnLengthAndByTheBound) {
  const std::vector<std::int64_t> indices = {0, 0, 0, 1};
  const std::vector<std::int32_t> lens = {0, 5, 12, 100};
  const std::vector<std::int32_t> slots = {8, 9, 10, 11, -1, 0, 0, 0, -9, 0, 0, 0, 99, 99, 99, 99,
                                           4, 5, 6,  7,  20, 0, 0, 0, 16, 0, 0, 0, 99, 99, 99, 99};
  const std::vector<std::int64_t> mapping = {0, 0, 0, 0, 12, 0, 0, 0,  -1, 0, 0, 0, 0,
                                             0, 0, 0, 4, 0,  0, 0, 40, 0,  0, 0, -1};
  std::vector<std::int32_t> pages(4 * 5, test::kPoison), swa_pages(4 * 4, test::kPoison);
  const PageTableArgs args = {.req_pool_indices = indices.data(),
                              .cache_seqlens = lens.data(),
                              .req_to_token = slots.data(),
                              .full_to_swa = mapping.data(),
                              .page_table = pages.data(),
                              .swa_page_table = swa_pages.data(),
                              .req_to_token_stride = 16,
                              .page_table_stride = 5,
                              .swa_page_table_stride = 4,
                              .batch_size = 4,
                              .max_seq_pages = 3,
                              .page_size = 4};
  reference_page_table(args);
  constexpr std::int32_t kKept = test::kPoison;
  EXPECT_EQ(pages, (std::vector<std::int32_t>{kKept, kKept, kKept, kKept, kKept,  //
                                              2,     0,     kKept, kKept, kKept,  //
                                              2,     0,     -2,    kKept, kKept,  //
                                              1,     5,     4,     kKept, kKept}));
  EXPECT_EQ(swa_pages, (std::vector<std::int32_t>{kKept, kKept, kKept, kKept,  //
                                                  -1, -1, kKept, kKept,        //
                                                  -1, -1, -1, kKept,           //
                                                  3, 10, 1, kKept}));
}

TEST_F(MetadataPageTable, RefusesABoundBelowAKnownLengthByRowLengthAndBound) {
  MetadataCase c = test::fit_for_page_table(test::make_random_case(
      {.batch_size = 3, .page_size = 16, .max_seq_pages = 8, .seqlen_offset = 4}, 7));
  MetadataOutputs outputs = poisoned_outputs(c);
  PageTableMetadataArgs args = bind_page_table(c, outputs);
  c.seq_lens_cpu = {124, 1, 125};
  args.known_seq_lens = c.seq_lens_cpu.data();
  expect_refused(DecodePhase::kTargetVerify, args,
                 "row 2 has 129 tokens, past the static bound of 128 (8 pages of 16)");
  EXPECT_EQ(outputs, poisoned_outputs(c));  // refused before anything is written
  c.seq_lens_cpu[2] = 124;
  EXPECT_NO_THROW(check_static_bound(args.metadata, c.seq_lens_cpu.data()));
}

TEST_F(MetadataPageTable, RefusesArgumentsThatMakeNoSenseAndRecovers) {
  const MetadataCase c =
      test::fit_for_page_table(test::make_random_case({.batch_size = 3, .swa = true}, 12));
  MetadataOutputs outputs = poisoned_outputs(c);
  const PageTableMetadataArgs good = bind_page_table(c, outputs);
  expect_refused(DecodePhase::kDraftExtendStrided, good, "q_mode");
  PageTableMetadataArgs args = good;
  args.metadata.seqlen_offset = 2;
  expect_refused(DecodePhase::kNormalDecode, args, "seqlen_offset is 2");
  args = good;
  args.metadata.page_size = 48;
  expect_refused(DecodePhase::kNormalDecode, args, "power of two");
  args = good;
  args.metadata.out_cache_loc = args.metadata.full_to_swa;
  args.metadata.num_out_tokens = args.metadata.swa_out_len + 1;
  expect_refused(DecodePhase::kNormalDecode, args, "longer than swa_out_cache_loc");
  args = good;
  args.metadata.full_to_swa = nullptr;
  args.metadata.out_cache_loc = nullptr;
  expect_refused(DecodePhase::kNormalDecode, args, "an array is missing");
  EXPECT_EQ(first_difference(rebuild(c, DecodePhase::kNormalDecode), page_table_outputs(c)), "");
}

TEST_F(MetadataPageTable, ZeroesThePersistentSwaOutBufferToItsEnd) {
  MetadataCase c =
      test::fit_for_page_table(test::make_random_case({.batch_size = 3, .swa = true}, 11));
  c.has_out_cache_loc = true;
  c.out_cache_loc = {-1, 5, 6};
  c.scalars.num_out_tokens = 3;
  c.scalars.swa_out_len = 4;
  MetadataOutputs outputs = poisoned_outputs(c);
  outputs.swa_out_cache_loc.assign(8, test::kSwaOutPoison);
  PageTableMetadataArgs args = bind_page_table(c, outputs);
  args.swa_out_buffer_len = 7;
  rebuild_metadata_page_table(ops_, DecodePhase::kNormalDecode, args);
  EXPECT_EQ(outputs.swa_out_cache_loc,
            (std::vector<std::int64_t>{-1, c.full_to_swa[5], c.full_to_swa[6], 0, 0, 0, 0,
                                       test::kSwaOutPoison}));
}

TEST_F(MetadataPageTable, MakesNoNewAllocationOnceWarm) {
  const MetadataCase c = test::fit_for_page_table(test::make_random_case(
      {.batch_size = 33, .page_size = 16, .max_seq_pages = 40, .swa = true}, 4));
  rebuild(c, DecodePhase::kTargetVerify);
  const std::int64_t after_first = allocator_.source_calls();
  EXPECT_GT(after_first, 0);
  for (int i = 0; i < 100; ++i) rebuild(c, DecodePhase::kTargetVerify);
  EXPECT_EQ(allocator_.source_calls(), after_first);
}

struct PhaseWork {
  DecodePhase phase;
  QueryMode q_mode;
  IntType seq_lens_type;
  OperationCounts plain, swa;
};

// 3 to 8 launches, 2 or 3 copies, never a sync.
const PhaseWork kWork[] = {
    {DecodePhase::kNormalDecode, QueryMode::kPreset, IntType::kInt32, {7, 3, 2, 0}, {12, 5, 3, 0}},
    {DecodePhase::kDraftDecode, QueryMode::kPreset, IntType::kInt32, {10, 5, 2, 0}, {15, 7, 3, 0}},
    {DecodePhase::kTargetVerify, QueryMode::kPreset, IntType::kInt32, {8, 4, 2, 0}, {13, 6, 3, 0}},
    {DecodePhase::kDraftExtendCumsum,
     QueryMode::kCumsum,
     IntType::kInt64,
     {11, 6, 2, 0},
     {16, 8, 3, 0}},
    {DecodePhase::kDraftExtendStrided,
     QueryMode::kStrided,
     IntType::kInt64,
     {10, 5, 2, 0},
     {15, 7, 3, 0}},
};

TEST(MetadataPageTableRecorded, NoPhaseAsksTheHostOrTheDeviceForALength) {
  for (const PhaseWork& work : kWork) {
    for (const bool swa : {false, true}) {
      MetadataCase c = test::make_random_case(
          {.batch_size = 8, .max_seq_pages = 20, .q_mode = work.q_mode, .swa = swa}, 51);
      c = with_types(c, work.seq_lens_type, IntType::kInt64, IntType::kInt32);
      if (swa) {
        c.has_out_cache_loc = true;
        c.out_cache_loc.assign(8, 1);
        c.scalars.num_out_tokens = 8;
      }
      MetadataOutputs outputs = poisoned_outputs(c);
      kernels::AddressSource addresses;
      TensorAllocator allocator(addresses.block_source());
      kernels::RecordingTensorOps ops(allocator, 0);
      rebuild_metadata_page_table(ops, work.phase, bind_page_table(c, outputs));
      EXPECT_EQ(ops.counts(), swa ? work.swa : work.plain)
          << "phase " << static_cast<int>(work.phase) << (swa ? " swa" : "");
      for (const auto& operation : ops.operations()) {
        EXPECT_NE(operation.kind, OperationKind::kSync);
        EXPECT_NE(operation.kind, OperationKind::kHost);
      }
    }
  }
}

TEST(MetadataPageTableRecorded, AnEmptyBatchDoesNothing) {
  const MetadataCase c = test::make_random_case({.batch_size = 0}, 1);
  MetadataOutputs outputs = poisoned_outputs(c);
  kernels::AddressSource addresses;
  TensorAllocator allocator(addresses.block_source());
  kernels::RecordingTensorOps ops(allocator, 0);
  rebuild_metadata_page_table(ops, DecodePhase::kNormalDecode, bind_page_table(c, outputs));
  EXPECT_EQ(ops.counts(), OperationCounts{});
}

}  // namespace
}  // namespace tpjitter
