// The page-table kernel and the path around it on a GPU against the reference, word for word, so
// that a write past a row's live columns is seen: eager, captured, and replayed with new inputs.
#include <algorithm>
#include <cstdint>
#include <memory>

#include "kernels/metadata_page_table.h"
#include "tests/gpu/device_ops.h"
#include "tests/gpu/gpu_test_main.h"
#include "tests/gpu/metadata_device_case.h"
#include "tests/metadata_cases.h"
#include "tests/page_table_cases.h"

namespace tpjitter {
namespace {

using kernels::DecodePhase;
using kernels::IntType;
using kernels::PageColumns;
using kernels::PageTableArgs;
using kernels::QueryMode;
using test::CapturedGraph;
using test::check_cuda;
using test::DeviceArray;
using test::DeviceCase;
using test::MetadataCase;
using test::MetadataOutputs;

class MetadataPageTableGpu : public test::GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    stream_ = std::make_unique<test::TestStream>();
    ops_ = std::make_unique<test::DeviceOps>(stream_->get());
  }

  void expect_rebuild_equals_reference(const MetadataCase& any) {
    const MetadataCase c = test::fit_for_page_table(any);
    DeviceCase device(c);
    for (const DecodePhase phase : aten_phases(c)) {
      device.poison();
      check_cuda(rebuild_metadata_page_table(**ops_, phase, device.page_table_args()));
      stream_->sync();
      ASSERT_EQ(first_difference(device.outputs(), page_table_outputs(c)), "")
          << c.name << " phase " << static_cast<int>(phase);
    }
  }

  std::unique_ptr<test::TestStream> stream_;
  std::unique_ptr<test::DeviceOps> ops_;
};

TEST_F(MetadataPageTableGpu, EqualsTheReferenceInEveryWordAndLeavesTailsAlone) {
  for (const MetadataCase& c : test::random_cases()) {
    ASSERT_NO_FATAL_FAILURE(expect_rebuild_equals_reference(c));
  }
  for (const test::GoldenCase& golden : test::load_golden_cases()) {
    ASSERT_NO_FATAL_FAILURE(expect_rebuild_equals_reference(golden.inputs));
  }
}

TEST_F(MetadataPageTableGpu, EqualsTheReferenceOverTheEnginesMatrix) {
  std::uint64_t seed = 0;
  for (const std::int32_t context : {2048, 4096, 131072}) {
    for (const std::int32_t page : {1, 32, 64, 128, 256}) {
      for (const std::int32_t batch : {1, 7, 32}) {
        for (const bool swa : {false, true}) {
          ASSERT_NO_FATAL_FAILURE(expect_rebuild_equals_reference(
              test::make_random_case({.batch_size = batch,
                                      .page_size = page,
                                      .max_seq_pages = context / page,
                                      .swa = swa,
                                      .pool_rows = 4},
                                     ++seed)));
        }
      }
    }
  }
}

TEST_F(MetadataPageTableGpu, EqualsTheReferenceOnLargeShapes) {
  for (const test::CaseSizes& sizes : {
           // One million tokens, also with pages of one token and of the whole row.
           test::CaseSizes{.batch_size = 1, .page_size = 64, .max_seq_pages = 16384, .swa = true},
           test::CaseSizes{.batch_size = 2, .page_size = 1, .max_seq_pages = 1 << 20},
           test::CaseSizes{.batch_size = 2, .page_size = 1 << 20, .max_seq_pages = 1, .swa = true},
           // More blocks than are resident, and many rows.
           test::CaseSizes{.batch_size = 64, .page_size = 16, .max_seq_pages = 2048, .swa = true},
           test::CaseSizes{.batch_size = 9001, .page_size = 1, .max_seq_pages = 600},
       }) {
    ASSERT_NO_FATAL_FAILURE(expect_rebuild_equals_reference(test::make_random_case(sizes, 3)));
  }
}

// Only the two tables, with tails and guards checked by the sentinel that poisoned outputs hold.
TEST_F(MetadataPageTableGpu, WritesTheSameTableWhateverTheStride) {
  MetadataCase c = test::fit_for_page_table(test::make_random_case(
      {.batch_size = 7, .page_size = 32, .max_seq_pages = 300, .swa = true}, 6));
  for (const auto& [stride, swa_stride] : {std::pair{300, 300}, {303, 311}, {512, 301}}) {
    c.scalars.page_table_stride = stride;
    c.scalars.swa_page_table_stride = swa_stride;
    ASSERT_NO_FATAL_FAILURE(expect_rebuild_equals_reference(c)) << stride;
  }
}

TEST_F(MetadataPageTableGpu, TheKernelAloneWritesLiveColumnsFromDeviceLengths) {
  const MetadataCase c = test::fit_for_page_table(test::make_random_case({.batch_size = 33,
                                                                          .page_size = 16,
                                                                          .max_seq_pages = 700,
                                                                          .swa = true,
                                                                          .negative_slots = true},
                                                                         8));
  const MetadataOutputs expected = page_table_outputs(c);
  DeviceCase device(c);
  const DeviceArray<std::int32_t> lens(expected.cache_seqlens);
  PageTableArgs args = page_table_args(device.args(PageColumns::kLive));
  args.cache_seqlens = lens.data();
  check_cuda(launch_page_table(args, stream_->get()));
  stream_->sync();
  MetadataOutputs tables_only = poisoned_outputs(c);
  tables_only.page_table = expected.page_table;
  tables_only.swa_page_table = expected.swa_page_table;
  EXPECT_EQ(first_difference(device.outputs(), tables_only), "");
}

TEST_F(MetadataPageTableGpu, ReadsPoolRowsPastTwoToThe31Elements) {
  // The pool's base lies far before the memory that is really read: only the offset is large.
  constexpr std::int64_t kRow = 2100;
  constexpr std::int64_t kStride = 1 << 20;  // 2100 * 2^20 > 2^31
  const MetadataCase c =
      test::fit_for_page_table(test::make_random_case({.batch_size = 1, .max_seq_pages = 100}, 9));
  const MetadataOutputs expected = page_table_outputs(c);
  DeviceCase device(c);
  const DeviceArray<std::int32_t> lens(expected.cache_seqlens);
  const DeviceArray<std::int64_t> index(std::vector<std::int64_t>{kRow});
  PageTableArgs args = page_table_args(device.args(PageColumns::kLive));
  std::int64_t own_row = 0;
  std::copy_n(c.req_pool_indices.begin(), c.req_pool_indices.size(),
              reinterpret_cast<std::byte*>(&own_row));  // int32 or int64, little-endian
  const std::int64_t offset = own_row * args.req_to_token_stride - kRow * kStride;
  args.req_to_token = reinterpret_cast<const std::int32_t*>(
      reinterpret_cast<std::intptr_t>(args.req_to_token) +
      offset * static_cast<std::int64_t>(sizeof(std::int32_t)));
  args.req_to_token_stride = kStride;
  args.req_pool_indices = index.data();
  args.req_pool_indices_type = IntType::kInt64;
  args.cache_seqlens = lens.data();
  check_cuda(launch_page_table(args, stream_->get()));
  stream_->sync();
  EXPECT_TRUE(device.outputs().page_table == expected.page_table);
}

struct PhaseNodes {
  DecodePhase phase;
  QueryMode q_mode;
  IntType seq_lens_type;
  int kernels, kernels_swa;
};

// Every phase can be captured, draft-decode too: nothing asks the device for a length.
constexpr PhaseNodes kNodes[] = {
    {DecodePhase::kNormalDecode, QueryMode::kPreset, IntType::kInt32, 3, 5},
    {DecodePhase::kDraftDecode, QueryMode::kPreset, IntType::kInt32, 5, 7},
    {DecodePhase::kTargetVerify, QueryMode::kPreset, IntType::kInt32, 4, 6},
    {DecodePhase::kDraftExtendCumsum, QueryMode::kCumsum, IntType::kInt64, 6, 8},
    {DecodePhase::kDraftExtendStrided, QueryMode::kStrided, IntType::kInt64, 5, 7},
};

MetadataCase node_case(const PhaseNodes& nodes, bool swa) {
  const bool adds =
      nodes.phase == DecodePhase::kDraftDecode || nodes.phase == DecodePhase::kTargetVerify;
  MetadataCase c = test::make_random_case({.batch_size = 8,
                                           .page_size = 16,
                                           .max_seq_pages = 20,
                                           .seqlen_offset = adds ? 4 : 0,
                                           .q_mode = nodes.q_mode,
                                           .swa = swa},
                                          51);
  c = with_types(c, nodes.seq_lens_type, IntType::kInt64, IntType::kInt32);
  if (swa) {
    c.has_out_cache_loc = true;
    c.out_cache_loc.assign(8, 1);
    c.scalars.num_out_tokens = 8;
  }
  return test::fit_for_page_table(c);
}

TEST_F(MetadataPageTableGpu, EveryPhaseIsCapturedWithItsCountsAndReplaysNewInputs) {
  for (const PhaseNodes& nodes : kNodes) {
    for (const bool swa : {false, true}) {
      SCOPED_TRACE(testing::Message()
                   << "phase " << static_cast<int>(nodes.phase) << (swa ? " swa" : ""));
      MetadataCase c = node_case(nodes, swa);
      DeviceCase device(c);
      const auto rebuild = [&] {
        check_cuda(rebuild_metadata_page_table(**ops_, nodes.phase, device.page_table_args()));
      };
      rebuild();  // warms the allocator
      stream_->sync();
      const std::int64_t warm = ops_->allocator().source_calls();
      const CapturedGraph graph(*stream_, rebuild);
      EXPECT_EQ(ops_->allocator().source_calls(), warm);
      const int kernels = swa ? nodes.kernels_swa : nodes.kernels;
      const int copies = swa ? 3 : 2;
      EXPECT_EQ(graph.count_nodes(cudaGraphNodeTypeKernel), kernels);
      EXPECT_EQ(graph.count_nodes(cudaGraphNodeTypeMemcpy), copies);
      EXPECT_EQ(graph.count_nodes(), kernels + copies);
      for (const std::uint64_t seed : {0, 1, 2}) {
        if (seed > 0) c = with_new_values(c, seed);
        device.set_inputs(c);
        device.poison();
        graph.replay(*stream_);
        EXPECT_EQ(first_difference(device.outputs(), page_table_outputs(c)), "") << seed;
      }
    }
  }
}

TEST_F(MetadataPageTableGpu, TheKernelIsOneNodeAndAnEmptyBatchNone) {
  for (const std::int32_t batch : {0, 1, 1025}) {
    const MetadataCase c =
        test::make_random_case({.batch_size = batch, .max_seq_pages = 40, .swa = true}, 21);
    DeviceCase device(c);
    const CapturedGraph graph(*stream_, [&] {
      check_cuda(
          launch_page_table(page_table_args(device.args(PageColumns::kLive)), stream_->get()));
    });
    EXPECT_EQ(graph.count_nodes(), batch == 0 ? 0 : 1);
    EXPECT_EQ(graph.count_nodes(cudaGraphNodeTypeKernel), batch == 0 ? 0 : 1);
  }
}

TEST_F(MetadataPageTableGpu, RefusesArgumentsThatMakeNoSense) {
  const MetadataCase c = test::make_random_case({.batch_size = 2, .swa = true}, 41);
  DeviceCase device(c);
  const PageTableArgs good = page_table_args(device.args(PageColumns::kLive));
  PageTableArgs args = good;
  args.page_size = 48;
  EXPECT_EQ(launch_page_table(args, stream_->get()), cudaErrorInvalidValue);
  args = good;
  args.full_to_swa = nullptr;
  EXPECT_EQ(launch_page_table(args, stream_->get()), cudaErrorInvalidValue);
  args = good;
  args.cache_seqlens = nullptr;
  EXPECT_EQ(launch_page_table(args, stream_->get()), cudaErrorInvalidValue);
  stream_->sync();
  EXPECT_EQ(first_difference(device.outputs(), poisoned_outputs(c)), "");
}

}  // namespace
}  // namespace tpjitter
