// A step's staged inputs on the GPU: applied where they belong, padded rows filled.
#include <gtest/gtest.h>

#include <vector>

#include "kernels/step_inputs.h"
#include "kernels/tree_mask.h"
#include "tests/gpu/gpu_test_main.h"

namespace tpjitter {
namespace {

using test::check_cuda;
using test::DeviceArray;

using StepInputsOnGpu = test::GpuTest;

template <class T>
T* part(std::vector<unsigned char>& staging, std::size_t offset) {
  return reinterpret_cast<T*>(staging.data() + offset);
}

constexpr int kBatch = 5;
constexpr int kLive = 3;
constexpr int kMaxBatch = 7;
constexpr std::int64_t kWrites = 600;

// Device buffers full of a value that no input has.
struct Buffers {
  DeviceArray<std::int64_t> pool{std::vector<std::int64_t>(kBatch, -1)};
  DeviceArray<std::int64_t> locations{std::vector<std::int64_t>(kBatch * 4, -1)};
  DeviceArray<std::int64_t> draft{std::vector<std::int64_t>(kMaxBatch * 2, -1)};
  DeviceArray<std::int32_t> accept{std::vector<std::int32_t>(kBatch, -1)};
  DeviceArray<std::int32_t> seq_lens{std::vector<std::int32_t>(kBatch, 7)};
  DeviceArray<std::int32_t> req_to_token{std::vector<std::int32_t>(2 * kWrites, -1)};

  // `own_kernel`: the tokens' slots in a kernel of their own.
  void apply(const kernels::StagedLayout& layout, std::vector<unsigned char>& staging,
             bool own_kernel = false) {
    *part<kernels::StagedHeader>(staging, 0) = {kWrites, 2};
    for (int i = 0; i < kLive; ++i)
      part<std::int64_t>(staging, layout.req_pool_indices)[i] = 10 + i;
    auto* resets = part<kernels::StagedLengthReset>(staging, layout.resets);
    resets[0] = {0, 100};
    resets[1] = {2, 300};
    auto* writes = part<kernels::StagedTokenWrite>(staging, layout.writes);
    for (int i = 0; i < kWrites; ++i) writes[i] = {2 * i, i, 0};
    const DeviceArray<unsigned char> on_device(staging);
    kernels::StepInputsArgs args;
    args.staging = on_device.data();
    args.layout = layout;
    args.max_writes = kWrites;
    args.req_pool_indices = pool.data();
    args.out_cache_loc = locations.data();
    args.draft_cache_loc = draft.data();
    args.draft_cache_loc_stride = kMaxBatch;
    args.accept_lens = accept.data();
    args.seq_lens = seq_lens.data();
    args.req_to_token = req_to_token.data();
    const test::TestStream stream;
    check_cuda(cudaDeviceSynchronize());
    if (own_kernel) {
      check_cuda(kernels::launch_token_writes(args, stream.get()));
      stream.sync();
      EXPECT_EQ(pool.read(), std::vector<std::int64_t>(kBatch, -1)) << "not the scheduler's";
      EXPECT_EQ(seq_lens.read(), std::vector<std::int32_t>(kBatch, 7));
      args.req_to_token = nullptr;
    }
    check_cuda(kernels::launch_step_inputs(args, stream.get()));
    stream.sync();
  }

  void expect_rows_and_tokens() {
    EXPECT_EQ(pool.read(), (std::vector<std::int64_t>{10, 11, 12, 0, 0}));
    EXPECT_EQ(seq_lens.read(), (std::vector<std::int32_t>{100, 7, 300, 1, 1}));
    const auto tokens = req_to_token.read();
    for (int i = 0; i < kWrites; ++i) {
      EXPECT_EQ(tokens[2 * i], i);
      EXPECT_EQ(tokens[2 * i + 1], -1);
    }
  }
};

TEST_F(StepInputsOnGpu, AreAppliedAndPadded) {
  const auto layout = kernels::StagedLayout::of(kBatch, kLive);
  std::vector<unsigned char> staging(layout.bytes(kWrites));
  for (int i = 0; i < kLive; ++i) part<std::int64_t>(staging, layout.out_cache_loc)[i] = 20 + i;
  Buffers buffers;
  buffers.apply(layout, staging);
  buffers.expect_rows_and_tokens();
  std::vector<std::int64_t> locations(kBatch * 4, -1);
  for (int i = 0; i < kBatch; ++i) locations[i] = i < kLive ? 20 + i : 0;
  EXPECT_EQ(buffers.locations.read(), locations);
  EXPECT_EQ(buffers.draft.read(), std::vector<std::int64_t>(kMaxBatch * 2, -1));
  EXPECT_EQ(buffers.accept.read(), std::vector<std::int32_t>(kBatch, -1));
}

TEST_F(StepInputsOnGpu, MayHaveTheTokensSlotsInAKernelOfTheirOwn) {
  const auto layout = kernels::StagedLayout::of(kBatch, kLive);
  std::vector<unsigned char> staging(layout.bytes(kWrites));
  Buffers buffers;
  buffers.apply(layout, staging, true);
  buffers.expect_rows_and_tokens();
}

TEST_F(StepInputsOnGpu, OfASpeculativeStepHoldDraftAndVerifySlots) {
  constexpr int kQueryLen = 4;
  constexpr int kPasses = 2;
  const auto layout = kernels::StagedLayout::of(kBatch, kLive, kQueryLen, kPasses);
  EXPECT_EQ(layout.writes % alignof(kernels::StagedTokenWrite), 0u);
  std::vector<unsigned char> staging(layout.bytes(kWrites));
  for (int i = 0; i < kLive * kQueryLen; ++i) {
    part<std::int64_t>(staging, layout.out_cache_loc)[i] = 20 + i;
  }
  for (int i = 0; i < kLive * kPasses; ++i) {
    part<std::int64_t>(staging, layout.draft_cache_loc)[i] = 50 + i;
  }
  for (int i = 0; i < kLive; ++i) part<std::int32_t>(staging, layout.accept_lens)[i] = 1 + i;
  Buffers buffers;
  buffers.apply(layout, staging);
  buffers.expect_rows_and_tokens();
  std::vector<std::int64_t> locations(kBatch * kQueryLen, 0);
  for (int i = 0; i < kLive * kQueryLen; ++i) locations[i] = 20 + i;
  EXPECT_EQ(buffers.locations.read(), locations);
  EXPECT_EQ(buffers.draft.read(), (std::vector<std::int64_t>{50, 51, 52, 0, 0, -1, -1,  //
                                                             53, 54, 55, 0, 0, -1, -1}));
  EXPECT_EQ(buffers.accept.read(), (std::vector<std::int32_t>{1, 2, 3, kQueryLen, kQueryLen}));
}

// Slots by branch, and of each draft pass in a list; the last slot of a branch is no pass's.
TEST_F(StepInputsOnGpu, OfADraftTreeHoldTheBranchesSlotsTwice) {
  constexpr int kBranches = 2;
  constexpr int kSteps = 3;
  constexpr int kStride = kMaxBatch * kBranches;
  const auto layout = kernels::StagedLayout::of(kBatch, kLive, 4, kSteps - 1, kBranches, kSteps);
  std::vector<unsigned char> staging(layout.bytes(0));
  for (int i = 0; i < kLive * kBranches * kSteps; ++i) {
    part<std::int64_t>(staging, layout.draft_cache_loc)[i] = 100 + i;
  }
  const DeviceArray<unsigned char> on_device(staging);
  const DeviceArray<std::int64_t> tree(
      std::vector<std::int64_t>(kBatch * kBranches * kSteps + 1, -1));
  const DeviceArray<std::int64_t> draft(std::vector<std::int64_t>(2 * kStride, -1));
  Buffers others;
  kernels::StepInputsArgs args;
  args.staging = on_device.data();
  args.layout = layout;
  args.req_pool_indices = others.pool.data();
  args.out_cache_loc = others.locations.data();
  args.draft_cache_loc = draft.data();
  args.draft_cache_loc_stride = kStride;
  args.tree_cache_loc = tree.data();
  args.accept_lens = others.accept.data();
  args.seq_lens = others.seq_lens.data();
  const test::TestStream stream;
  check_cuda(cudaDeviceSynchronize());
  check_cuda(kernels::launch_step_inputs(args, stream.get()));
  stream.sync();
  std::vector<std::int64_t> slots(kBatch * kBranches * kSteps + 1, 0), lists(2 * kStride, -1);
  slots.back() = -1;
  for (int branch = 0; branch < kBatch * kBranches; ++branch) {
    for (int i = 0; i < kSteps; ++i) {
      const int at = branch * kSteps + i;
      if (branch < kLive * kBranches) slots[at] = 100 + at;
      if (i + 1 < kSteps) lists[i * kStride + branch] = slots[at];
    }
  }
  EXPECT_EQ(tree.read(), slots);
  EXPECT_EQ(draft.read(), lists);
}

TEST_F(StepInputsOnGpu, OfADraftTreeHaveTheMaskOfTheReference) {
  for (const std::int32_t draft_tokens : {2, 5, 16, 64}) {
    const std::vector<std::int32_t> lengths = {3, 1, 40, 7, 129};
    std::int64_t bytes = 0;
    for (const std::int32_t length : lengths) bytes += (length + draft_tokens) * draft_tokens;
    std::vector<std::uint8_t> expected(bytes, 9);
    const std::int64_t step = 12;
    kernels::TreeMaskArgs args;
    args.seq_lens = lengths.data();
    args.step = &step;
    args.custom_mask = expected.data();
    args.mask_len = bytes;
    args.seed = 77;
    args.live_rows = static_cast<std::int32_t>(lengths.size());
    args.draft_tokens = draft_tokens;
    reference_tree_mask(args);
    const DeviceArray<std::int32_t> seq_lens(lengths);
    const DeviceArray<std::int64_t> on_device_step(std::vector<std::int64_t>{step});
    const DeviceArray<std::uint8_t> mask(std::vector<std::uint8_t>(bytes, 9));
    args.seq_lens = seq_lens.data();
    args.step = on_device_step.data();
    args.custom_mask = mask.data();
    const test::TestStream stream;
    check_cuda(cudaDeviceSynchronize());
    check_cuda(kernels::launch_tree_mask(args, stream.get()));
    stream.sync();
    EXPECT_EQ(mask.read(), expected) << draft_tokens;
  }
}

TEST_F(StepInputsOnGpu, OfADraftRunnerCountItsTokensAndPadByItsRules) {
  const DeviceArray<std::int32_t> seq_lens({100, 7, 300, 1, 1});
  const DeviceArray<std::int64_t> pool({10, 11, 12, 0, 0});
  const DeviceArray<std::int32_t> accept({1, 2, 3, 4, 4});
  const test::TestStream stream;
  {  // EAGLE draft-extend: int64, the rest is the step's
    const DeviceArray<std::int64_t> lengths(std::vector<std::int64_t>(6, -1));
    check_cuda(cudaDeviceSynchronize());
    kernels::RunnerInputsArgs args;
    args.seq_lens = seq_lens.data();
    args.lengths = lengths.data();
    args.batch_size = kBatch;
    args.live_rows = kLive;
    args.counted = 4;
    check_cuda(kernels::launch_runner_inputs(args, stream.get()));
    stream.sync();
    EXPECT_EQ(lengths.read(), (std::vector<std::int64_t>{104, 11, 304, 1, 1, -1}));
  }
  {  // multi-layer: int32, stale pool rows, accept lengths -1
    const DeviceArray<std::int32_t> lengths(std::vector<std::int32_t>(6, -1));
    const DeviceArray<std::int64_t> rows(std::vector<std::int64_t>(6, 9));
    const DeviceArray<std::int32_t> accepts(std::vector<std::int32_t>(6, 7));
    check_cuda(cudaDeviceSynchronize());
    kernels::RunnerInputsArgs args;
    args.seq_lens = seq_lens.data();
    args.lengths = lengths.data();
    args.lengths_type = kernels::IntType::kInt32;
    args.req_pool_indices = pool.data();
    args.pool_rows = rows.data();
    args.accept_lens = accept.data();
    args.accepts = accepts.data();
    args.padded_accept = -1;
    args.batch_size = kBatch;
    args.live_rows = kLive;
    args.counted = 4;
    check_cuda(kernels::launch_runner_inputs(args, stream.get()));
    stream.sync();
    EXPECT_EQ(lengths.read(), (std::vector<std::int32_t>{104, 11, 304, 1, 1, -1}));
    EXPECT_EQ(rows.read(), (std::vector<std::int64_t>{10, 11, 12, 9, 9, 9}));
    EXPECT_EQ(accepts.read(), (std::vector<std::int32_t>{1, 2, 3, -1, -1, 7}));
  }
}

}  // namespace
}  // namespace tpjitter
