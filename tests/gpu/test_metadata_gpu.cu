// The metadata paths on a GPU against the reference, word for word: the fused kernel with all and
// with live columns, eager and in a graph that is replayed with new inputs, and the op-by-op form.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <tuple>
#include <vector>

#include "kernels/metadata_floor.h"
#include "kernels/metadata_fused.h"
#include "tests/engine_cases.h"
#include "tests/gpu/device_ops.h"
#include "tests/gpu/gpu_test_main.h"
#include "tests/gpu/metadata_device_case.h"
#include "tests/metadata_cases.h"

namespace tpjitter {
namespace {

using kernels::DecodeMetadataArgs;
using kernels::DecodePhase;
using kernels::IntType;
using kernels::PageColumns;
using kernels::QueryMode;
using test::CapturedGraph;
using test::check_cuda;
using test::DeviceArray;
using test::DeviceCase;
using test::MetadataCase;
using test::MetadataOutputs;

std::vector<MetadataCase> all_cases() {
  std::vector<MetadataCase> cases = test::random_cases();
  for (const test::GoldenCase& golden : test::load_golden_cases()) cases.push_back(golden.inputs);
  for (MetadataCase& engine : test::engine_cases()) cases.push_back(std::move(engine));
  return cases;
}

// Shapes of real serving that the random list is too small for.
std::vector<MetadataCase> large_cases() {
  return {
      test::make_random_case(
          {.batch_size = 1, .page_size = 64, .max_seq_pages = 16384, .swa = true},
          1),  // 1 M tokens
      test::make_random_case({.batch_size = 1, .page_size = 1, .max_seq_pages = 1 << 20}, 6),
      test::make_random_case({.batch_size = 2, .page_size = 1, .max_seq_pages = 131072}, 2),
      test::make_random_case(
          {.batch_size = 64, .page_size = 16, .max_seq_pages = 2048, .swa = true}, 3),
      test::make_random_case({.batch_size = 256, .page_size = 16, .max_seq_pages = 1024}, 4),
      // More blocks than fit at once even at four pages a thread; a prefix sum of many tiles.
      test::make_random_case({.batch_size = 9001,
                              .page_size = 1,
                              .max_seq_pages = 600,
                              .q_mode = QueryMode::kCumsum,
                              .swa = true},
                             5),
  };
}

class MetadataGpu : public test::GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (!IsSkipped()) stream_ = std::make_unique<test::TestStream>();
  }

  void expect_fused_equals_reference(const MetadataCase& c) {
    DeviceCase device(c);
    for (const PageColumns columns : {PageColumns::kAll, PageColumns::kLive}) {
      device.poison();
      check_cuda(launch_fused_metadata(device.args(columns), stream_->get()));
      stream_->sync();
      ASSERT_EQ(first_difference(device.outputs(), reference_outputs(c, columns)), "")
          << c.name << (columns == PageColumns::kAll ? " all" : " live");
    }
  }

  std::unique_ptr<test::TestStream> stream_;
};

TEST_F(MetadataGpu, FusedEqualsTheReferenceInEveryWord) {
  for (const MetadataCase& c : all_cases()) {
    ASSERT_NO_FATAL_FAILURE(expect_fused_equals_reference(c));
  }
}

TEST_F(MetadataGpu, FusedEqualsTheReferenceOnLargeShapes) {
  for (const MetadataCase& c : large_cases()) {
    ASSERT_NO_FATAL_FAILURE(expect_fused_equals_reference(c));
  }
}

TEST_F(MetadataGpu, FusedReadsPoolRowsPastTwoToThe31Elements) {
  constexpr std::int64_t kStride = 1 << 20;
  constexpr std::int64_t kRow = 2100;  // 2100 * 2^20 > 2^31
  MetadataCase c = test::make_random_case({.batch_size = 1, .max_seq_pages = 100, .swa = true}, 9);
  std::int32_t* pool = nullptr;
  if (cudaMalloc(&pool, (kRow + 1) * kStride * sizeof(std::int32_t)) != cudaSuccess) {
    cudaGetLastError();
    GTEST_SKIP() << "needs 8.8 GB of GPU memory";
  }
  // The host's case reads its own row; the device finds the same row far out in the pool.
  std::int64_t own_row = 0;
  std::copy_n(c.req_pool_indices.begin(), c.req_pool_indices.size(),
              reinterpret_cast<std::byte*>(&own_row));  // int32 or int64, little-endian
  const std::int32_t* row = c.req_to_token.data() + own_row * c.scalars.req_to_token_stride;
  check_cuda(cudaMemcpy(pool + kRow * kStride, row, 100 * 64 * sizeof(std::int32_t),
                        cudaMemcpyHostToDevice));
  DeviceCase device(c);
  DeviceArray<std::int64_t> index(std::vector<std::int64_t>{kRow});
  DecodeMetadataArgs args = device.args(PageColumns::kAll);
  args.req_to_token = pool;
  args.req_to_token_stride = kStride;
  args.req_pool_indices = index.data();
  args.req_pool_indices_type = IntType::kInt64;
  check_cuda(launch_fused_metadata(args, stream_->get()));
  stream_->sync();
  EXPECT_EQ(first_difference(device.outputs(), reference_outputs(c, PageColumns::kAll)), "");
  cudaFree(pool);
}

TEST_F(MetadataGpu, FusedIsOneKernelNodeAndAnEmptyBatchNone) {
  for (const std::int32_t batch : {0, 1, 8, 1025}) {
    const MetadataCase c = test::make_random_case(
        {.batch_size = batch, .q_mode = QueryMode::kCumsum, .swa = true}, 21);
    DeviceCase device(c);
    const CapturedGraph graph(*stream_, [&] {
      check_cuda(launch_fused_metadata(device.args(PageColumns::kLive), stream_->get()));
    });
    EXPECT_EQ(graph.count_nodes(), batch == 0 ? 0 : 1);
    EXPECT_EQ(graph.count_nodes(cudaGraphNodeTypeKernel), batch == 0 ? 0 : 1);
  }
}

// 32 requests are the most that a single warp sums.
TEST_F(MetadataGpu, AReplayedGraphSeesNewInputsEachTime) {
  using Sizes = std::tuple<std::int32_t, QueryMode, PageColumns>;
  std::vector<Sizes> all;
  for (const std::int32_t batch : {31, 32, 33}) {
    for (const QueryMode q_mode : {QueryMode::kPreset, QueryMode::kCumsum, QueryMode::kStrided}) {
      for (const PageColumns columns : {PageColumns::kAll, PageColumns::kLive}) {
        all.emplace_back(batch, q_mode, columns);
      }
    }
  }
  for (const auto& [batch, q_mode, columns] : all) {
    MetadataCase c = test::make_random_case({.batch_size = batch,
                                             .page_size = 16,
                                             .max_seq_pages = 300,
                                             .seqlen_offset = 1,
                                             .q_mode = q_mode,
                                             .swa = true},
                                            31);
    DeviceCase device(c);
    kernels::FusedMetadataLaunch launch;
    check_cuda(prepare_fused_metadata(device.args(columns), &launch));
    const CapturedGraph graph(*stream_,
                              [&] { check_cuda(launch_fused_metadata(launch, stream_->get())); });
    MetadataOutputs before;
    for (const std::uint64_t seed : {0, 1, 2}) {
      if (seed > 0) c = with_new_values(c, seed);
      device.set_inputs(c);
      device.poison();
      graph.replay(*stream_);
      const MetadataOutputs after = device.outputs();
      ASSERT_EQ(first_difference(after, reference_outputs(c, columns)), "");
      ASSERT_NE(first_difference(after, before), "");
      before = after;
    }
  }
}

TEST_F(MetadataGpu, FusedRefusesArgumentsThatMakeNoSense) {
  const MetadataCase c = test::make_random_case({.batch_size = 2, .swa = true}, 41);
  DeviceCase device(c);
  const DecodeMetadataArgs good = device.args(PageColumns::kAll);
  kernels::FusedMetadataLaunch launch;
  EXPECT_EQ(prepare_fused_metadata(good, &launch), cudaSuccess);
  DecodeMetadataArgs args = good;
  args.page_size = 48;
  EXPECT_EQ(prepare_fused_metadata(args, &launch), cudaErrorInvalidValue);
  args = good;
  args.q_mode = QueryMode::kCumsum;
  EXPECT_EQ(prepare_fused_metadata(args, &launch), cudaErrorInvalidValue);
  args = good;
  args.full_to_swa = nullptr;
  EXPECT_EQ(prepare_fused_metadata(args, &launch), cudaErrorInvalidValue);
  EXPECT_EQ(launch.kernel, nullptr);
}

class MetadataAtenGpu : public MetadataGpu {
 protected:
  void SetUp() override {
    MetadataGpu::SetUp();
    if (IsSkipped()) return;
    ops_ = std::make_unique<test::DeviceOps>(stream_->get());
  }

  void expect_equals_description(const MetadataCase& any) {
    const MetadataCase c = fit_for_aten(any);
    DeviceCase device(c);
    for (const DecodePhase phase : aten_phases(c)) {
      device.poison();
      check_cuda(rebuild_metadata_aten(**ops_, phase, device.aten_args()));
      stream_->sync();
      ASSERT_EQ(first_difference(device.outputs(), aten_outputs(c)), "")
          << c.name << " phase " << static_cast<int>(phase);
    }
  }

  std::unique_ptr<test::DeviceOps> ops_;
};

TEST_F(MetadataAtenGpu, OpByOpEqualsItsDescriptionInEveryWord) {
  for (const MetadataCase& c : all_cases()) {
    ASSERT_NO_FATAL_FAILURE(expect_equals_description(c));
  }
}

TEST_F(MetadataAtenGpu, OpByOpEqualsItsDescriptionOnLargeShapes) {
  for (const MetadataCase& c : large_cases()) {
    ASSERT_NO_FATAL_FAILURE(expect_equals_description(c));
  }
}

struct PhaseNodes {
  DecodePhase phase;
  QueryMode q_mode;
  IntType seq_lens_type;
  int kernels, copies, kernels_swa, copies_swa;
};

// As measured with PyTorch 2.11; draft-decode synchronises and cannot be captured.
constexpr PhaseNodes kNodes[] = {
    {DecodePhase::kNormalDecode, QueryMode::kPreset, IntType::kInt32, 7, 2, 14, 3},
    {DecodePhase::kTargetVerify, QueryMode::kPreset, IntType::kInt32, 8, 2, 15, 3},
    {DecodePhase::kDraftExtendCumsum, QueryMode::kCumsum, IntType::kInt64, 10, 2, 17, 3},
    {DecodePhase::kDraftExtendStrided, QueryMode::kStrided, IntType::kInt64, 9, 2, 16, 3},
};

TEST_F(MetadataAtenGpu, CapturedNodesPerPhaseEqualTheMeasuredLaunchesAndCopies) {
  for (const PhaseNodes& expected : kNodes) {
    for (const bool swa : {false, true}) {
      MetadataCase c = test::make_random_case({.batch_size = 8,
                                               .page_size = 16,
                                               .max_seq_pages = 20,
                                               .q_mode = expected.q_mode,
                                               .swa = swa},
                                              51);
      // The types and the shorter out_cache_loc of the measured runs, whatever the seed drew.
      c = with_types(c, expected.seq_lens_type, IntType::kInt64, IntType::kInt32);
      if (swa) {
        c.has_out_cache_loc = true;
        c.out_cache_loc.assign(8, 1);
        c.scalars.num_out_tokens = 8;
      }
      c = fit_for_aten(c);
      DeviceCase device(c);
      const auto rebuild = [&] {
        check_cuda(rebuild_metadata_aten(**ops_, expected.phase, device.aten_args()));
      };
      rebuild();  // warms the allocator
      stream_->sync();
      const std::int64_t warm = ops_->allocator().source_calls();
      device.poison();
      const CapturedGraph graph(*stream_, rebuild);
      EXPECT_EQ(ops_->allocator().source_calls(), warm);
      EXPECT_EQ(graph.count_nodes(cudaGraphNodeTypeKernel),
                swa ? expected.kernels_swa : expected.kernels)
          << "phase " << static_cast<int>(expected.phase) << (swa ? " swa" : "");
      EXPECT_EQ(graph.count_nodes(cudaGraphNodeTypeMemcpy),
                swa ? expected.copies_swa : expected.copies)
          << "phase " << static_cast<int>(expected.phase) << (swa ? " swa" : "");
      graph.replay(*stream_);
      EXPECT_EQ(first_difference(device.outputs(), aten_outputs(c)), "");
    }
  }
}

TEST_F(MetadataGpu, TheFloorMovesTheSameWordsAsTheFusedKernel) {
  // With pages of one token and no negative slot, a gathered slot is its own page.
  for (const std::int32_t batch : {1, 8, 300}) {
    for (const PageColumns columns : {PageColumns::kAll, PageColumns::kLive}) {
      const MetadataCase c = test::make_random_case({.batch_size = batch,
                                                     .page_size = 1,
                                                     .max_seq_pages = 5000,
                                                     .swa = true,
                                                     .pool_rows = 20},
                                                    61);
      DeviceCase device(c);
      check_cuda(launch_metadata_floor(device.args(columns), stream_->get()));
      stream_->sync();
      const MetadataOutputs floor = device.outputs();
      const MetadataOutputs reference = reference_outputs(c, columns);
      EXPECT_EQ(floor.cache_seqlens, reference.cache_seqlens);
      EXPECT_TRUE(floor.page_table == reference.page_table);
      EXPECT_TRUE(floor.swa_page_table == reference.swa_page_table);
    }
  }
}

}  // namespace
}  // namespace tpjitter
