// Stale metadata cannot pass: a step whose rebuild or whose inputs are left out fails its checksum.
// Runs the parts of the backend by hand, so that a stage can be skipped.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "harness/control.h"
#include "harness/cuda/communicator.h"
#include "harness/cuda/cuda_case.h"
#include "harness/cuda/cuda_device.h"
#include "harness/cuda/drain.h"
#include "harness/cuda/graphs.h"
#include "harness/cuda/host_wait.h"
#include "harness/cuda/verification.h"
#include "tests/gpu/gpu_test_main.h"

namespace tpjitter {
namespace {

constexpr std::int64_t kSteps = 20;
constexpr std::int64_t kSkipped = 7;

enum class Skip { kNothing, kRebuild, kInputs };

class StaleMetadata : public test::GpuTest, public testing::WithParamInterface<bool> {
 protected:
  // Steps whose checksum was wrong.
  std::vector<std::int64_t> run(const std::string& path, Skip skip) {
    CaseConfig config;
    config.path = path;
    config.swa = GetParam();
    config.batch_size = 5;
    config.capture_batch_sizes = {5, 8};
    config.context_tokens = 500;
    config.page_size = 16;
    config.hidden_size = 256;
    config.layers = 2;
    config.layer_us = 5;
    config.block_steps = kSteps;
    ControlSegment control = ControlSegment::create(1, 0, kSteps, "{}", 1.0);
    const RankContext context{0, 1, &control};
    check_cuda(cudaSetDevice(0));
    Communicator communicator(context);
    const Stream stream = make_stream();
    CudaCase c(config, context);
    CudaDevice device(context, communicator, c, stream.get());
    check_cuda(cudaDeviceSynchronize());
    c.poison_outputs(stream.get());
    device.stage_inputs(0);
    const GraphExec graph = capture_body(c, 5, context, communicator, stream.get());
    device.set_graph(graph.get());

    for (std::int64_t step = 0; step < kSteps; ++step) {
      const Skip now = step == kSkipped ? skip : Skip::kNothing;
      device.wait_accept(step - 1);
      if (now != Skip::kInputs) device.copy_inputs(0);
      if (now != Skip::kRebuild) device.rebuild_metadata(0);
      device.launch_graph(0);
      device.stage_inputs(step + 1);
    }
    device.wait_accept(kSteps - 1);
    wait_for_stream(context, stream.get(), device.wait_deadline_ns(), "the block");

    DrainedStamps stamps;
    fetch_stamps(c, 0, kSteps, stamps);
    StepChecker checker(context, config);
    std::vector<PhaseRow> rows(kSteps);
    const CaseChecks checks = checker.check(stamps.graphs, rows);
    std::vector<std::int64_t> failed;
    for (std::int64_t step = 0; step < kSteps; ++step) {
      if (rows[step].flags & kFlagChecksumFailed) failed.push_back(step);
    }
    EXPECT_EQ(checks.steps_checked, kSteps);
    EXPECT_EQ(checks.checksum_failures, static_cast<std::int64_t>(failed.size()));
    if (!failed.empty()) {
      const std::string place = "rank 0, step " + std::to_string(failed[0]);
      EXPECT_EQ(checks.first_failure.find(place), 0u) << checks.first_failure;
    }
    return failed;
  }
};
INSTANTIATE_TEST_SUITE_P(SlidingWindow, StaleMetadata, testing::Bool());

TEST_P(StaleMetadata, IsNotSeenWhereNothingIsLeftOut) {
  for (const char* path : {"aten", "fused", "fused_in_graph"}) {
    EXPECT_TRUE(run(path, Skip::kNothing).empty()) << path;
  }
}

TEST_P(StaleMetadata, OfThePreviousStepFailsThatStepAndNoOther) {
  for (const char* path : {"aten", "fused"}) {
    EXPECT_EQ(run(path, Skip::kRebuild), std::vector<std::int64_t>{kSkipped}) << path;
  }
}

TEST_P(StaleMetadata, FromThePreviousStepsInputsFails) {
  for (const char* path : {"aten", "fused", "fused_in_graph"}) {
    const std::vector<std::int64_t> failed = run(path, Skip::kInputs);
    ASSERT_FALSE(failed.empty()) << path;
    EXPECT_EQ(failed[0], kSkipped) << path;
  }
}

}  // namespace
}  // namespace tpjitter
