// The CUDA backend through its seam, one rank on one GPU: the whole program but for the processes.
#include <gtest/gtest.h>

#include <memory>

#include "harness/contract/error.h"
#include "harness/control.h"
#include "harness/cuda/cuda_backend.h"
#include "tests/allocation_count.h"
#include "tests/gpu/gpu_test_main.h"

namespace tpjitter {
namespace {

CaseConfig small_case(const std::string& path) {
  CaseConfig config;
  config.path = path;
  config.swa = true;
  config.batch_size = 6;
  config.capture_batch_sizes = {1, 4, 8, 16};  // 6 requests in a graph of 8 rows
  config.context_tokens = 600;
  config.page_size = 16;
  config.hidden_size = 1024;
  config.layers = 4;
  config.layer_us = 20;
  config.block_steps = 25;
  return config;
}

class CudaBackendOfOneRank : public test::GpuTest, public testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    test::GpuTest::SetUp();
    if (IsSkipped()) return;
    backend = make_cuda_backend(context);
  }

  // Runs a block and checks what must hold for every row of it.
  CaseChecks run_block(const CaseConfig& config, std::int64_t first, std::int64_t steps) {
    std::vector<PhaseRow> rows(steps);
    for (std::int64_t i = 0; i < steps; ++i) {
      const long before = allocation_count();
      backend->run_step(first + i, std::span(&rows[i], 1));
      EXPECT_EQ(allocation_count(), before) << "step " << first + i << " allocated";
    }
    const CaseChecks checks = backend->finish_block(rows);
    for (std::int64_t i = 0; i < steps; ++i) {
      const PhaseRow& row = rows[i];
      EXPECT_LE(row.coupling_begin_ns, row.accept_seen_ns);
      EXPECT_LE(row.accept_seen_ns, row.inputs_begin_ns);
      EXPECT_LT(row.inputs_begin_ns, row.inputs_end_ns);
      EXPECT_LE(row.dispatch_begin_ns, row.dispatch_end_ns);
      EXPECT_LT(row.launch_begin_ns, row.launch_end_ns);
      EXPECT_GT(row.gpu_begin_ns, 0);
      EXPECT_LT(row.gpu_begin_ns, row.first_all_reduce_own_ns);
      EXPECT_LE(row.first_all_reduce_own_ns, row.first_all_reduce_end_ns);
      EXPECT_LT(row.first_all_reduce_end_ns, row.gpu_end_ns);
      // The load kernels alone last this long.
      EXPECT_GE(row.gpu_end_ns - row.gpu_begin_ns,
                static_cast<std::int64_t>(config.layer_us * 1000) * config.layers);
      EXPECT_EQ(row.all_reduce_count, 2 * config.layers);
      EXPECT_EQ(row.first_all_reduce_last_peer, -1) << "alone there is no peer";
      EXPECT_EQ(row.flags & kFlagChecksumFailed, 0u);
      if (i > 0) EXPECT_LT(rows[i - 1].gpu_end_ns, row.gpu_begin_ns) << "steps are coupled";
    }
    return checks;
  }

  void run_case(const CaseConfig& config) {
    const CaseChecks prepared = backend->prepare(config);
    EXPECT_TRUE(prepared.bit_equal) << prepared.first_failure;
    PhaseRow scratch{};
    for (int step = 0; step < 20; ++step) backend->run_step(step, std::span(&scratch, 1));
    CaseChecks checks = backend->finish_block({});
    EXPECT_EQ(checks.steps_checked, 20);
    EXPECT_EQ(checks.checksum_failures, 0) << checks.first_failure;
    for (const std::int64_t first : {20, 45}) {
      checks = run_block(config, first, 25);
      EXPECT_EQ(checks.steps_checked, 25);
      EXPECT_EQ(checks.checksum_failures, 0) << checks.first_failure;
    }
  }

  ControlSegment control = ControlSegment::create(1, 0, 1024, "{}", 1.0);
  RankContext context{0, 1, &control};
  std::unique_ptr<Backend> backend;
};
INSTANTIATE_TEST_SUITE_P(Paths, CudaBackendOfOneRank,
                         testing::Values("aten", "fused", "fused_in_graph"));

TEST_P(CudaBackendOfOneRank, GivesTheExpectedChecksumInEveryStep) {
  run_case(small_case(GetParam()));
}

TEST_P(CudaBackendOfOneRank, RunsWithTheMappedFlag) {
  CaseConfig config = small_case(GetParam());
  config.coupling_wait = "mapped_flag";
  run_case(config);
}

TEST_P(CudaBackendOfOneRank, RunsWithoutSlidingWindowAndWithFillers) {
  CaseConfig config = small_case(GetParam());
  config.swa = false;
  config.page_columns = "live";
  config.nodes_per_layer = 7;
  config.capture_batch_sizes = {};
  run_case(config);
}

TEST_P(CudaBackendOfOneRank, RunsCasesOneAfterAnother) {
  CaseConfig config = small_case(GetParam());
  run_case(config);
  config.batch_size = 1;
  config.hidden_size = 8;
  config.layers = 1;
  run_case(config);
  config.batch_size = 16;
  config.page_size = 1;
  run_case(config);
}

TEST_P(CudaBackendOfOneRank, CountsTheOperationsOfItsPath) {
  const std::string path = GetParam();
  backend->prepare(small_case(path));
  const Json operations = backend->operations();
  const int launches = path == "aten" ? 14 : path == "fused" ? 1 : 0;
  EXPECT_EQ(operations["kernel_launches"], launches);
  EXPECT_EQ(operations["copies"], path == "aten" ? 3 : 0);
  EXPECT_EQ(operations["syncs"], 0);
}

TEST_P(CudaBackendOfOneRank, PaysTheAskedOverheadInDispatch) {
  if (GetParam() != std::string("aten")) GTEST_SKIP() << "only aten has dispatcher calls";
  CaseConfig config = small_case("aten");
  config.op_overhead_ns = 10'000;
  backend->prepare(config);
  const int calls = backend->operations()["calls"];
  PhaseRow row{};
  for (int step = 0; step < 5; ++step) {
    backend->run_step(step, std::span(&row, 1));
    EXPECT_GE(row.dispatch_end_ns - row.dispatch_begin_ns, calls * config.op_overhead_ns);
  }
  EXPECT_EQ(backend->finish_block({}).checksum_failures, 0);
}

TEST_P(CudaBackendOfOneRank, SamplesBothControls) {
  const RunControl control = backend->controls(small_case(GetParam()));
  EXPECT_EQ(control.all_reduce_bytes, 8 * 1024 * 2);
  EXPECT_FALSE(control.empty_graph_launch_ns.empty());
  EXPECT_FALSE(control.zero_skew_all_reduce_ns.empty());
  for (const std::int64_t ns : control.empty_graph_launch_ns) EXPECT_GT(ns, 0);
  for (const std::int64_t ns : control.zero_skew_all_reduce_ns) EXPECT_GE(ns, 0);
  run_case(small_case(GetParam()));  // the inputs go on alternating
}

TEST_P(CudaBackendOfOneRank, StopsWhenTheRunIsAborted) {
  backend->prepare(small_case(GetParam()));
  PhaseRow row{};
  backend->run_step(0, std::span(&row, 1));
  control.abort();
  // Either the result is already there, or the wait ends by the abort word; nothing hangs.
  try {
    for (int step = 1; step < 25; ++step) backend->run_step(step, std::span(&row, 1));
  } catch (const RunError& error) {
    EXPECT_NE(std::string(error.what()).find("rank 0"), std::string::npos);
  }
}

}  // namespace
}  // namespace tpjitter
