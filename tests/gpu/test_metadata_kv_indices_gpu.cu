// The kv_indices kernel on a GPU against the reference, word for word with poison behind every
// output: eager, captured, and replayed with other lengths, requests and slots.
#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/metadata_kv_indices_ops.h"
#include "tests/gpu/device_ops.h"
#include "tests/gpu/gpu_test_main.h"
#include "tests/kv_indices_cases.h"

namespace tpjitter {
namespace {

using kernels::IntType;
using kernels::kMaxKvIndicesFills;
using kernels::KvIndicesArgs;
using test::CapturedGraph;
using test::check_cuda;
using test::DeviceArray;
using test::KvIndicesCase;
using test::KvIndicesOutputs;

std::vector<std::int32_t> narrowed(const std::vector<std::int64_t>& values) {
  std::vector<std::int32_t> narrow;
  for (const std::int64_t value : values) narrow.push_back(static_cast<std::int32_t>(value));
  return narrow;
}

// A case's arrays on the device, the index arrays in both widths.
class DeviceCase {
 public:
  explicit DeviceCase(const KvIndicesCase& c)
      : case_(c),
        req_pool_indices_(c.req_pool_indices),
        seq_lens_(c.seq_lens),
        kv_start_idx_(c.kv_start_idx),
        full_to_swa_(c.full_to_swa),
        req_pool_indices32_(narrowed(c.req_pool_indices)),
        seq_lens32_(narrowed(c.seq_lens)),
        kv_start_idx32_(narrowed(c.kv_start_idx)),
        req_to_token_(c.req_to_token) {
    const KvIndicesOutputs poisoned = poisoned_outputs(c);
    kv_indptr_ = DeviceArray<std::int32_t>(poisoned.kv_indptr);
    kv_indices_ = DeviceArray<std::int32_t>(poisoned.kv_indices);
    qo_indptr_ = DeviceArray<std::int32_t>(poisoned.qo_indptr);
  }

  void poison() {
    const KvIndicesOutputs poisoned = poisoned_outputs(case_);
    kv_indptr_.write(poisoned.kv_indptr);
    kv_indices_.write(poisoned.kv_indices);
    qo_indptr_.write(poisoned.qo_indptr);
  }

  void set_inputs(const KvIndicesCase& c) {
    case_ = c;
    req_pool_indices_.write(c.req_pool_indices);
    seq_lens_.write(c.seq_lens);
    kv_start_idx_.write(c.kv_start_idx);
    full_to_swa_.write(c.full_to_swa);
    req_to_token_.write(c.req_to_token);
  }

  KvIndicesArgs args(IntType type = IntType::kInt64) const {
    KvIndicesArgs args = case_.scalars;
    const bool wide = type == IntType::kInt64;
    const auto either = [&](const auto& array64, const auto& array32) -> const void* {
      return wide ? static_cast<const void*>(array64.data()) : array32.data();
    };
    args.req_pool_indices = either(req_pool_indices_, req_pool_indices32_);
    args.seq_lens = either(seq_lens_, seq_lens32_);
    args.kv_start_idx = either(kv_start_idx_, kv_start_idx32_);  // null where it is empty
    args.req_pool_indices_type = args.seq_lens_type = args.kv_start_idx_type = type;
    args.req_to_token = req_to_token_.data();
    args.full_to_swa = full_to_swa_.data();
    args.wrapper.kv_indptr = kv_indptr_.data();
    args.wrapper.kv_indices = kv_indices_.data();
    args.wrapper.qo_indptr = qo_indptr_.data();
    return args;
  }

  KvIndicesOutputs outputs() const {
    return {.kv_indptr = kv_indptr_.read(),
            .kv_indices = kv_indices_.read(),
            .qo_indptr = qo_indptr_.read()};
  }

  KvIndicesOutputs expected() const {
    KvIndicesOutputs outputs = poisoned_outputs(case_);
    reference_kv_indices(bind(case_, outputs));
    return outputs;
  }

 private:
  KvIndicesCase case_;
  DeviceArray<std::int64_t> req_pool_indices_, seq_lens_, kv_start_idx_, full_to_swa_;
  DeviceArray<std::int32_t> req_pool_indices32_, seq_lens32_, kv_start_idx32_;
  DeviceArray<std::int32_t> req_to_token_, kv_indptr_, kv_indices_, qo_indptr_;
};

class MetadataKvIndicesGpu : public test::GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (!IsSkipped()) stream_ = std::make_unique<test::TestStream>();
  }

  void expect_fill_equals_reference(const KvIndicesCase& c) {
    DeviceCase device(c);
    for (const IntType type : {IntType::kInt64, IntType::kInt32}) {
      device.poison();
      check_cuda(launch_kv_indices(device.args(type), stream_->get()));
      stream_->sync();
      ASSERT_EQ(first_difference(device.outputs(), device.expected()), "")
          << c.name << ", bytes an index " << static_cast<int>(type);
    }
  }

  // The op-by-op form or the one without a sync, after the kernel's fill of the same case.
  template <class Rebuild>
  void expect_form_equals_reference(Rebuild rebuild) {
    test::DeviceOps ops(stream_->get());
    for (const KvIndicesCase& c : test::random_kv_cases()) {
      DeviceCase device(c);
      const std::vector<std::int32_t> ones(c.seq_lens.size(), 1);
      const DeviceArray<std::int32_t> last_page_lens(ones);
      for (const IntType type : {IntType::kInt64, IntType::kInt32}) {
        device.poison();
        KvIndicesArgs fill = device.args(type);
        fill.wrapper.kv_last_page_len = last_page_lens.data();
        const kernels::KvIndicesOpsArgs args = {
            .fills = {&fill, 1},
            .seq_lens_cpu = c.seq_lens.data(),
            .full_to_swa_len = static_cast<std::int64_t>(c.full_to_swa.size()),
            .plan = kernels::HostPlan::kDevice};
        check_cuda(rebuild(*ops, phase_of(c), args));
        stream_->sync();
        ASSERT_EQ(first_difference(device.outputs(), device.expected()), "")
            << c.name << ", bytes an index " << static_cast<int>(type);
      }
    }
  }

  std::unique_ptr<test::TestStream> stream_;
};

TEST_F(MetadataKvIndicesGpu, TheOperationsLeaveTheReferencesBits) {
  expect_form_equals_reference(kernels::rebuild_kv_indices_aten);
}

TEST_F(MetadataKvIndicesGpu, TheFormWithoutASyncLeavesTheReferencesBits) {
  expect_form_equals_reference(kernels::rebuild_kv_indices_device);
}

// Nothing in it waits, so it can be captured, once every temporary has been seen.
TEST_F(MetadataKvIndicesGpu, TheFormWithoutASyncReplaysNewInputs) {
  test::DeviceOps ops(stream_->get());
  KvIndicesCase c = test::make_kv_case({.batch_size = 33,
                                        .context = 300,
                                        .seqlen_offset = 4,
                                        .sliding_window = 100,
                                        .q_stride = 4,
                                        .translated = true},
                                       12);
  DeviceCase device(c);
  const KvIndicesArgs fill = device.args();
  const kernels::KvIndicesOpsArgs args = {.fills = {&fill, 1}};
  const auto rebuild = [&] {
    check_cuda(rebuild_kv_indices_device(*ops, kernels::DecodePhase::kTargetVerify, args));
  };
  rebuild();
  stream_->sync();
  const CapturedGraph graph(*stream_, rebuild);
  for (const std::uint64_t seed : {0, 1, 2}) {
    if (seed > 0) device.set_inputs(c = with_new_values(c, seed));
    device.poison();
    graph.replay(*stream_);
    EXPECT_EQ(first_difference(device.outputs(), device.expected()), "") << seed;
  }
}

TEST_F(MetadataKvIndicesGpu, EqualsTheReferenceInEveryWordAndLeavesTailsAlone) {
  for (const KvIndicesCase& c : test::random_kv_cases()) {
    ASSERT_NO_FATAL_FAILURE(expect_fill_equals_reference(c));
  }
}

TEST_F(MetadataKvIndicesGpu, SplitsLongRowsAndAMillionTokens) {
  for (const std::int32_t context : {131072, 1 << 20}) {
    for (const std::int32_t window : {kernels::kNoWindow, 100000}) {
      KvIndicesCase c = test::make_kv_case({.batch_size = 3,
                                            .context = context,
                                            .seqlen_offset = 4,
                                            .sliding_window = window,
                                            .q_stride = 4,
                                            .translated = true,
                                            .pool_rows = 2},
                                           3);
      c.seq_lens = {1, context - 4, 513};  // one long row between short ones
      c.scalars.wrapper.capacity = needed_entries(c);
      ASSERT_NO_FATAL_FAILURE(expect_fill_equals_reference(c));
    }
  }
}

TEST_F(MetadataKvIndicesGpu, AWideBufferStaysUntouchedPastTheLiveEntries) {
  for (const std::int32_t batch : {1, 33, 1025}) {
    ASSERT_NO_FATAL_FAILURE(expect_fill_equals_reference(test::make_kv_case(
        {.batch_size = batch, .context = 300, .pool_rows = 20, .capacity = 1 << 21}, 4)));
  }
}

TEST_F(MetadataKvIndicesGpu, IsCutAtTheCapacityAndNeverWritesPastIt) {
  for (const std::int32_t batch : {33, 2100}) {  // 2100: the cut lies in a later tile, or before it
    for (const std::int64_t capacity : {0, 1, 255, 256, 257, 1000, 40000}) {
      ASSERT_NO_FATAL_FAILURE(
          expect_fill_equals_reference(test::make_kv_case({.batch_size = batch,
                                                           .context = 200,
                                                           .translated = true,
                                                           .pool_rows = 20,
                                                           .capacity = capacity},
                                                          77)));
    }
  }
}

TEST_F(MetadataKvIndicesGpu, GuardsLengthsThatAreNegativeOrPastThePoolsRow) {
  KvIndicesCase c = test::make_kv_case({.batch_size = 3, .context = 61, .capacity = 300}, 5);
  c.seq_lens = {64 + 100, -3, 64};  // a row of req_to_token has 64 columns
  c.req_pool_indices = {4, 1, 4};   // the pool's last row
  DeviceCase device(c);
  check_cuda(launch_kv_indices(device.args(), stream_->get()));
  stream_->sync();
  EXPECT_EQ(first_difference(device.outputs(), device.expected()), "");
  EXPECT_EQ(device.outputs().kv_indices[163], -1);
}

TEST_F(MetadataKvIndicesGpu, ReadsPoolRowsPastTwoToThe31Elements) {
  // The pool's base lies far before the memory that is really read: only the offset is large.
  constexpr std::int64_t kRow = 2100;
  constexpr std::int64_t kStride = 1 << 20;  // 2100 * 2^20 > 2^31
  const KvIndicesCase c = test::make_kv_case({.batch_size = 1, .context = 100}, 9);
  DeviceCase device(c);
  const DeviceArray<std::int64_t> index(std::vector<std::int64_t>{kRow});
  KvIndicesArgs args = device.args();
  const std::int64_t offset = c.req_pool_indices[0] * args.req_to_token_stride - kRow * kStride;
  args.req_to_token = reinterpret_cast<const std::int32_t*>(
      reinterpret_cast<std::intptr_t>(args.req_to_token) +
      offset * static_cast<std::int64_t>(sizeof(std::int32_t)));
  args.req_to_token_stride = kStride;
  args.req_pool_indices = index.data();
  check_cuda(launch_kv_indices(args, stream_->get()));
  stream_->sync();
  EXPECT_EQ(first_difference(device.outputs(), device.expected()), "");
}

// Both wrappers of a sliding-window decode: one node, and every replay follows the inputs.
TEST_F(MetadataKvIndicesGpu, BothWrappersAreOneNodeAndReplayNewInputs) {
  for (const std::int32_t batch : {1, 8, 1025}) {
    KvIndicesCase full = test::make_kv_case(
        {.batch_size = batch, .context = 500, .translated = true, .pool_rows = 30}, 21);
    KvIndicesCase window = full;
    full.full_to_swa.clear();
    window.scalars.sliding_window = 127;
    window.scalars.wrapper.capacity = std::int64_t{batch} * 128;
    DeviceCase full_device(full);
    DeviceCase window_device(window);
    const std::array<KvIndicesArgs, 2> fills = {window_device.args(), full_device.args()};
    const CapturedGraph graph(
        *stream_, [&] { check_cuda(kernels::launch_kv_indices(fills, stream_->get())); });
    EXPECT_EQ(graph.count_nodes(), 1);
    EXPECT_EQ(graph.count_nodes(cudaGraphNodeTypeKernel), 1);
    for (const std::uint64_t seed : {0, 1, 2}) {
      if (seed > 0) {
        window = with_new_values(window, seed);
        full = with_new_values(full, seed + 10);
      }
      window_device.set_inputs(window);
      full_device.set_inputs(full);
      window_device.poison();
      full_device.poison();
      graph.replay(*stream_);
      EXPECT_EQ(first_difference(window_device.outputs(), window_device.expected()), "") << seed;
      EXPECT_EQ(first_difference(full_device.outputs(), full_device.expected()), "") << seed;
    }
  }
}

TEST_F(MetadataKvIndicesGpu, AllDraftStepsAreOneNodeIntoTheirOwnRows) {
  constexpr int kSteps = 5;
  constexpr std::int64_t kIndptrStride = 40;
  constexpr std::int64_t kIndicesStride = 33 * 310;
  const KvIndicesCase c = test::make_kv_case({.batch_size = 33, .context = 300}, 31);
  DeviceCase device(c);
  std::vector<std::int32_t> indptr(kSteps * kIndptrStride, test::kKvPoison);
  std::vector<std::int32_t> indices(kSteps * kIndicesStride, test::kKvPoison);
  const DeviceArray<std::int32_t> device_indptr(indptr);
  const DeviceArray<std::int32_t> device_indices(indices);
  const auto step_fills = [&](KvIndicesArgs first, std::int32_t* to_indptr,
                              std::int32_t* to_indices) {
    first.wrapper = {
        .kv_indptr = to_indptr, .kv_indices = to_indices, .capacity = kSteps * kIndicesStride};
    std::array<KvIndicesArgs, kSteps> fills;
    draft_step_fills(first, kIndptrStride, kIndicesStride, fills);
    return fills;
  };
  const auto fills = step_fills(device.args(), device_indptr.data(), device_indices.data());
  const CapturedGraph graph(*stream_,
                            [&] { check_cuda(kernels::launch_kv_indices(fills, stream_->get())); });
  EXPECT_EQ(graph.count_nodes(), 1);
  graph.replay(*stream_);
  KvIndicesOutputs unused = poisoned_outputs(c);
  for (const KvIndicesArgs& fill : step_fills(bind(c, unused), indptr.data(), indices.data())) {
    reference_kv_indices(fill);
  }
  EXPECT_TRUE(device_indptr.read() == indptr);
  EXPECT_TRUE(device_indices.read() == indices);
}

TEST_F(MetadataKvIndicesGpu, TheOperationsOfADraftPhaseCopyTheirSumsToTheHost) {
  constexpr std::int64_t kIndptrStride = 8;
  const KvIndicesCase c = test::make_kv_case({.batch_size = 5, .context = 90}, 32);
  DeviceCase device(c);
  const DeviceArray<std::int32_t> indptr(std::vector<std::int32_t>(3 * kIndptrStride, 0));
  const DeviceArray<std::int32_t> indices(3 * 5 * 93);
  KvIndicesArgs first = device.args();
  first.wrapper = {
      .kv_indptr = indptr.data(), .kv_indices = indices.data(), .capacity = 3 * 5 * 93};
  std::array<KvIndicesArgs, 3> fills;
  draft_step_fills(first, kIndptrStride, 5 * 93, fills);
  test::DeviceOps ops(stream_->get());
  for (const std::int64_t stride : {std::int64_t{0}, kIndptrStride}) {
    kernels::KvIndicesOpsArgs args;
    args.fills = fills;
    args.draft_indptr_stride = stride;
    args.plan = kernels::HostPlan::kDevice;
    check_cuda(rebuild_kv_indices_aten(*ops, kernels::DecodePhase::kDraftDecode, args));
  }
  const std::vector<std::int32_t> sums = indptr.read();
  const std::int64_t tokens = needed_entries(c);
  for (int step = 0; step < 3; ++step) {
    EXPECT_EQ(sums[step * kIndptrStride + 5], tokens + 5 * (step + 1));
  }
}

TEST_F(MetadataKvIndicesGpu, AnEmptyBatchLaunchesNothing) {
  const KvIndicesArgs empty;
  const CapturedGraph graph(*stream_, [&] {
    check_cuda(launch_kv_indices(empty, stream_->get()));
    check_cuda(launch_kv_indices(std::span<const KvIndicesArgs>(), stream_->get()));
  });
  EXPECT_EQ(graph.count_nodes(), 0);
}

TEST_F(MetadataKvIndicesGpu, RefusesArgumentsThatMakeNoSense) {
  const KvIndicesCase c = test::make_kv_case({.batch_size = 2}, 41);
  DeviceCase device(c);
  KvIndicesArgs bad = device.args();
  bad.seq_lens = nullptr;
  EXPECT_EQ(launch_kv_indices(bad, stream_->get()), cudaErrorInvalidValue);
  bad = device.args();
  bad.sliding_window = -2;
  EXPECT_EQ(launch_kv_indices(bad, stream_->get()), cudaErrorInvalidValue);
  const std::vector<KvIndicesArgs> many(kMaxKvIndicesFills + 1, device.args());
  EXPECT_EQ(launch_kv_indices(many, stream_->get()), cudaErrorInvalidValue);
  stream_->sync();
  EXPECT_EQ(first_difference(device.outputs(), poisoned_outputs(c)), "");
}

}  // namespace
}  // namespace tpjitter
