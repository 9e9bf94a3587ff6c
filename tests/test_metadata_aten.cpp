// The op-by-op composition: the same answers as the reference on the columns it promises, the calls
// and GPU work that a profiler showed for PyTorch, and no allocation once it is warm.
#include <gtest/gtest.h>

#include <stdexcept>

#include "kernels/tensor_ops_recording.h"
#include "kernels/tensor_ops_reference.h"
#include "tests/engine_cases.h"
#include "tests/metadata_cases.h"

namespace tpjitter {
namespace {

using kernels::AtenMetadataArgs;
using kernels::DecodePhase;
using kernels::IntType;
using kernels::OperationCounts;
using kernels::OperationKind;
using kernels::PageColumns;
using kernels::QueryMode;
using kernels::RecordingTensorOps;
using kernels::ReferenceTensorOps;
using kernels::TensorAllocator;
using test::MetadataCase;
using test::MetadataOutputs;

class MetadataAten : public ::testing::Test {
 protected:
  MetadataOutputs rebuild(const MetadataCase& c, DecodePhase phase) {
    MetadataOutputs outputs = poisoned_outputs(c);
    EXPECT_EQ(rebuild_metadata_aten(ops_, phase, bind_aten(c, outputs)), 0);
    EXPECT_EQ(allocator_.blocks_in_use(), 0);
    return outputs;
  }

  TensorAllocator allocator_{kernels::host_block_source()};
  ReferenceTensorOps ops_{allocator_};
};

TEST_F(MetadataAten, GivesTheKnownAnswersOnLiveColumns) {
  for (const test::GoldenCase& golden : test::load_golden_cases()) {
    SCOPED_TRACE(golden.inputs.name);
    const MetadataCase c = fit_for_aten(golden.inputs);
    const auto& s = c.scalars;
    for (const DecodePhase phase : aten_phases(c)) {
      const MetadataOutputs outputs = rebuild(c, phase);
      if (s.seqlen_offset == golden.inputs.scalars.seqlen_offset) {
        EXPECT_EQ(outputs.cache_seqlens, golden.cache_seqlens);
        EXPECT_EQ(outputs.cu_seqlens_k, golden.cu_seqlens_k);
      }
      EXPECT_EQ(outputs.cu_seqlens_q, golden.cu_seqlens_q);
      if (c.has_out_cache_loc) {
        EXPECT_EQ(outputs.swa_out_cache_loc, golden.swa_out_cache_loc);
      }
      int floored = 0;  // a18: one negative slot, page -1 here and 0 in the golden answer
      for (std::int64_t row = 0; row < s.batch_size; ++row) {
        const std::int64_t live = (outputs.cache_seqlens[row] + s.page_size - 1) / s.page_size;
        for (std::int64_t column = 0; column < live; ++column) {
          const std::int32_t page = outputs.page_table[row * s.page_table_stride + column];
          const std::int32_t expected =
              golden.page_table[static_cast<std::size_t>(row * s.max_seq_pages + column)];
          if (page == -1 && expected == 0) {
            ++floored;
          } else {
            ASSERT_EQ(page, expected) << "row " << row << ", column " << column;
          }
          if (c.has_swa()) {
            ASSERT_EQ(
                outputs.swa_page_table[row * s.swa_page_table_stride + column],
                golden.swa_page_table[static_cast<std::size_t>(row * s.max_seq_pages + column)])
                << "row " << row << ", column " << column;
          }
        }
      }
      EXPECT_EQ(floored, golden.negative_slot ? 1 : 0);
    }
  }
}

TEST_F(MetadataAten, EqualsItsDescriptionInEveryWordForRandomAndTheEnginesCases) {
  std::vector<MetadataCase> cases = test::random_cases();
  for (MetadataCase& engine : test::engine_cases()) cases.push_back(std::move(engine));
  for (const MetadataCase& random : cases) {
    SCOPED_TRACE(random.name);
    const MetadataCase c = fit_for_aten(random);
    for (const DecodePhase phase : aten_phases(c)) {
      ASSERT_EQ(first_difference(rebuild(c, phase), aten_outputs(c)), "")
          << "phase " << static_cast<int>(phase);
    }
  }
}

TEST_F(MetadataAten, EqualsTheReferenceOnLiveColumnsWhereNoSlotIsNegative) {
  const MetadataCase c = fit_for_aten(test::make_random_case(
      {.batch_size = 17, .page_size = 16, .max_seq_pages = 9, .swa = true}, 3));
  const auto& s = c.scalars;
  const MetadataOutputs aten = rebuild(c, DecodePhase::kNormalDecode);
  const MetadataOutputs reference = reference_outputs(c, PageColumns::kLive);
  int compared = 0;
  for (std::size_t i = 0; i < reference.page_table.size(); ++i) {
    if (reference.page_table[i] == test::kPoison) continue;
    ASSERT_EQ(aten.page_table[i], reference.page_table[i]);
    ++compared;
  }
  EXPECT_GT(compared, s.batch_size);
}

TEST_F(MetadataAten, ZeroesThePersistentSwaOutBufferToItsEnd) {
  MetadataCase c = fit_for_aten(test::make_random_case({.batch_size = 3, .swa = true}, 11));
  c.has_out_cache_loc = true;
  c.out_cache_loc = {-1, 5, 6};
  c.scalars.num_out_tokens = 3;
  c.scalars.swa_out_len = 4;
  MetadataOutputs outputs = poisoned_outputs(c);
  outputs.swa_out_cache_loc.assign(10, test::kSwaOutPoison);
  AtenMetadataArgs args = bind_aten(c, outputs);
  args.swa_out_buffer_len = 9;
  rebuild_metadata_aten(ops_, DecodePhase::kNormalDecode, args);
  EXPECT_EQ(outputs.swa_out_cache_loc,
            (std::vector<std::int64_t>{-1, c.full_to_swa[5], c.full_to_swa[6], 0, 0, 0, 0, 0, 0,
                                       test::kSwaOutPoison}));
}

TEST_F(MetadataAten, RefusesWhatPyTorchWouldRaiseOnAndRecovers) {
  MetadataCase c = fit_for_aten(test::make_random_case({.batch_size = 3, .swa = true}, 12));
  const MetadataCase good = c;
  c.has_out_cache_loc = true;
  c.out_cache_loc.assign(static_cast<std::size_t>(c.scalars.swa_out_len) + 1, 0);
  c.scalars.num_out_tokens = c.scalars.swa_out_len + 1;
  MetadataOutputs outputs = poisoned_outputs(c);
  EXPECT_THROW(rebuild_metadata_aten(ops_, DecodePhase::kNormalDecode, bind_aten(c, outputs)),
               std::invalid_argument);
  c = good;
  c.seq_lens_cpu[1] = 1 + std::int64_t{c.scalars.max_seq_pages} * c.scalars.page_size;
  EXPECT_THROW(rebuild_metadata_aten(ops_, DecodePhase::kNormalDecode, bind_aten(c, outputs)),
               std::invalid_argument);
  EXPECT_EQ(first_difference(rebuild(good, DecodePhase::kNormalDecode), aten_outputs(good)), "");
}

TEST_F(MetadataAten, MakesNoNewAllocationOnceWarm) {
  const MetadataCase c = fit_for_aten(test::make_random_case(
      {.batch_size = 33, .page_size = 16, .max_seq_pages = 40, .swa = true}, 4));
  MetadataOutputs outputs = poisoned_outputs(c);
  const AtenMetadataArgs args = bind_aten(c, outputs);
  rebuild_metadata_aten(ops_, DecodePhase::kNormalDecode, args);
  const std::int64_t after_first = allocator_.source_calls();
  EXPECT_GT(after_first, 0);
  for (int i = 0; i < 100; ++i) rebuild_metadata_aten(ops_, DecodePhase::kNormalDecode, args);
  EXPECT_EQ(allocator_.source_calls(), after_first);
}

// As measured: batch 8, P below the static width, int32 lengths (int64 in draft-extend).
struct PhaseWork {
  DecodePhase phase;
  QueryMode q_mode;
  IntType seq_lens_type;
  OperationCounts plain, swa;
};

const PhaseWork kMeasured[] = {
    {DecodePhase::kNormalDecode,
     QueryMode::kPreset,
     IntType::kInt32,
     {16, 7, 2, 0},
     {28, 14, 3, 0}},
    {DecodePhase::kDraftDecode,
     QueryMode::kPreset,
     IntType::kInt32,
     {19, 10, 3, 1},
     {31, 17, 4, 1}},
    {DecodePhase::kTargetVerify,
     QueryMode::kPreset,
     IntType::kInt32,
     {18, 8, 2, 0},
     {30, 15, 3, 0}},
    {DecodePhase::kDraftExtendCumsum,
     QueryMode::kCumsum,
     IntType::kInt64,
     {21, 10, 2, 0},
     {33, 17, 3, 0}},
    {DecodePhase::kDraftExtendStrided,
     QueryMode::kStrided,
     IntType::kInt64,
     {20, 9, 2, 0},
     {32, 16, 3, 0}},
};

// Sizes only: nothing behind the pointers but their being null or not.
AtenMetadataArgs shape_only(const PhaseWork& work, bool swa) {
  AtenMetadataArgs args;
  auto& m = args.metadata;
  m.batch_size = 8;
  m.page_size = 64;
  m.max_seq_pages = 128;
  m.page_table_stride = 128;
  m.swa_page_table_stride = 128;
  m.req_to_token_stride = 8192;
  m.q_mode = work.q_mode;
  m.q_stride = 4;
  m.seq_lens_type = work.seq_lens_type;
  args.pool_rows = 10;
  args.full_to_swa_len = 100000;
  if (swa) {
    const auto address = [](std::uintptr_t value) { return reinterpret_cast<void*>(value); };
    m.full_to_swa = static_cast<const std::int64_t*>(address(4096));
    m.out_cache_loc = static_cast<const std::int64_t*>(address(8192));
    m.swa_page_table = static_cast<std::int32_t*>(address(12288));
    m.swa_out_cache_loc = static_cast<std::int64_t*>(address(16384));
    m.swa_out_len = 16;
    m.num_out_tokens = 8;
  }
  return args;
}

std::string to_string(const OperationCounts& counts) {
  return std::to_string(counts.calls) + " calls, " + std::to_string(counts.kernel_launches) +
         " launches, " + std::to_string(counts.copies) + " copies, " +
         std::to_string(counts.syncs) + " syncs";
}

TEST(MetadataAtenRecorded, CallsAndGpuWorkPerPhaseEqualTheMeasuredOnes) {
  for (const PhaseWork& work : kMeasured) {
    for (const bool swa : {false, true}) {
      kernels::AddressSource addresses;
      TensorAllocator allocator(addresses.block_source());
      RecordingTensorOps ops(allocator, 4000);
      rebuild_metadata_aten(ops, work.phase, shape_only(work, swa));
      EXPECT_EQ(to_string(ops.counts()), to_string(swa ? work.swa : work.plain))
          << "phase " << static_cast<int>(work.phase) << (swa ? " swa" : "");
    }
  }
}

TEST(MetadataAtenRecorded, NormalDecodeIsTheKnownSequenceOfOperations) {
  kernels::AddressSource addresses;
  TensorAllocator allocator(addresses.block_source());
  RecordingTensorOps ops(allocator, 4000);
  rebuild_metadata_aten(ops, DecodePhase::kNormalDecode, shape_only(kMeasured[0], false));
  std::vector<std::string> names;
  for (const auto& operation : ops.operations()) {
    names.push_back(operation.name + "/" + operation_kind_name(operation.kind));
  }
  EXPECT_EQ(names, (std::vector<std::string>{"slice/view", "slice/view", "slice/view", "copy_/copy",
                                             "max/host", "item/host", "slice/view", "cumsum/kernel",
                                             "copy_/copy", "unsqueeze/view", "slice/view",
                                             "unsqueeze/view", "index/kernel", "slice/view",
                                             "floor_divide/kernel", "copy_/kernel"}));
  const auto& gather = ops.operations()[12];
  EXPECT_EQ(gather.kernel_launches, 3);
  EXPECT_EQ(gather.shape, (std::vector<std::int64_t>{8, 63}));  // ceil(4000 / 64)
  EXPECT_EQ(gather.dtype, IntType::kInt32);
}

TEST(MetadataAtenRecorded, ASingleRowCopiesItsPageTableByMemcpy) {
  kernels::AddressSource addresses;
  TensorAllocator allocator(addresses.block_source());
  RecordingTensorOps ops(allocator, 4000);
  AtenMetadataArgs args = shape_only(kMeasured[0], false);
  args.metadata.batch_size = 1;
  rebuild_metadata_aten(ops, DecodePhase::kNormalDecode, args);
  EXPECT_EQ(ops.operations().back().kind, OperationKind::kCopy);
  ops.clear();
  args.metadata.batch_size = 0;
  rebuild_metadata_aten(ops, DecodePhase::kNormalDecode, args);
  EXPECT_EQ(ops.counts(), OperationCounts{});
}

}  // namespace
}  // namespace tpjitter
