// The CUDA backend through its seam, one rank on one GPU: the whole program but for the processes.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "harness/contract/error.h"
#include "harness/control.h"
#include "harness/cuda/cuda_backend.h"
#include "harness/step_plan.h"
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

class OneRank : public test::GpuTest {
 protected:
  void SetUp() override {
    test::GpuTest::SetUp();
    if (IsSkipped()) return;
    backend = make_cuda_backend(context);
  }

  // Runs steps [first, first + steps), which must allocate nothing. Rows in step order.
  std::vector<PhaseRow> run_steps(const StepPlan& plan, std::int64_t first, std::int64_t steps) {
    const std::size_t phases = plan.phases.size();
    std::vector<PhaseRow> rows(steps * phases);
    for (std::int64_t i = 0; i < steps; ++i) {
      const long before = allocation_count();
      backend->run_step(first + i, std::span(rows).subspan(i * phases, phases));
      EXPECT_EQ(allocation_count(), before) << "step " << first + i << " allocated";
    }
    return rows;
  }

  // What must hold for every row of a block.
  void expect_block(const CaseConfig& config, const StepPlan& plan,
                    const std::vector<PhaseRow>& rows) {
    std::int64_t gpu_ns = 0;  // end of the graph before
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const PlannedPhase& phase = plan.phases[i % plan.phases.size()];
      const PhaseRow& row = rows[i];
      EXPECT_EQ(row.phase, static_cast<std::int32_t>(phase.phase));
      EXPECT_EQ(row.graph, phase.graph);
      EXPECT_LE(row.coupling_begin_ns, row.accept_seen_ns);
      EXPECT_LE(row.accept_seen_ns, row.inputs_begin_ns);
      EXPECT_LE(row.inputs_begin_ns, row.inputs_end_ns);
      EXPECT_LE(row.dispatch_begin_ns, row.dispatch_end_ns);
      EXPECT_EQ(row.first_all_reduce_last_peer, -1) << "alone there is no peer";
      EXPECT_EQ(row.flags & kFlagChecksumFailed, 0u);
      if (!phase.launches) {
        expect_no_launch(row);
        continue;
      }
      EXPECT_EQ(row.flags & kFlagNoLaunch, 0u);
      EXPECT_LT(row.launch_begin_ns, row.launch_end_ns);
      EXPECT_LE(gpu_ns, row.gpu_begin_ns) << "graphs follow each other";
      expect_stamps(config, plan, row);
      gpu_ns = row.gpu_end_ns;
    }
  }

  void expect_no_launch(const PhaseRow& row) {
    EXPECT_EQ(row.flags & kFlagNoLaunch, kFlagNoLaunch);
    EXPECT_EQ(row.launch_begin_ns, 0);
    EXPECT_EQ(row.gpu_begin_ns, 0);
    EXPECT_EQ(row.gpu_end_ns, 0);
    EXPECT_EQ(row.first_all_reduce_own_ns, 0);
    EXPECT_EQ(row.all_reduce_count, 0);
  }

  void expect_stamps(const CaseConfig& config, const StepPlan& plan, const PhaseRow& row) {
    std::int64_t layers = 0;
    for (const PlannedPhase& phase : plan.phases) {
      if (phase.graph == row.graph) layers += phase.layers;
    }
    EXPECT_GT(row.gpu_begin_ns, 0);
    EXPECT_LT(row.gpu_begin_ns, row.first_all_reduce_own_ns);
    EXPECT_LE(row.first_all_reduce_own_ns, row.first_all_reduce_end_ns);
    EXPECT_LT(row.first_all_reduce_end_ns, row.gpu_end_ns);
    // The load kernels alone last this long.
    EXPECT_GE(row.gpu_end_ns - row.gpu_begin_ns,
              static_cast<std::int64_t>(config.layer_us * 1000) * layers);
    EXPECT_EQ(row.all_reduce_count, 2 * layers);
  }

  void run_case(const CaseConfig& config) {
    const StepPlan plan = step_plan(config);
    const CaseChecks prepared = backend->prepare(config);
    EXPECT_TRUE(prepared.bit_equal) << prepared.first_failure;
    std::vector<PhaseRow> scratch(plan.phases.size());
    for (int step = 0; step < 20; ++step) backend->run_step(step, scratch);
    CaseChecks checks = backend->finish_block({});
    EXPECT_EQ(checks.steps_checked, 20);
    EXPECT_EQ(checks.checksum_failures, 0) << checks.first_failure;
    for (const std::int64_t first : {20, 45}) {
      std::vector<PhaseRow> rows = run_steps(plan, first, 25);
      checks = backend->finish_block(rows);
      expect_block(config, plan, rows);
      EXPECT_EQ(checks.steps_checked, 25);
      EXPECT_EQ(checks.checksum_failures, 0) << checks.first_failure;
    }
  }

  ControlSegment control = ControlSegment::create(1, 0, 1024, "{}", 1.0);
  RankContext context{0, 1, &control};
  std::unique_ptr<Backend> backend;
};

constexpr const char* kPaths[] = {"aten", "page_table_kernel", "fused", "fused_in_graph"};

class CudaBackendOfOneRank : public OneRank, public testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Paths, CudaBackendOfOneRank, testing::ValuesIn(kPaths));

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

TEST_P(CudaBackendOfOneRank, SyncsSeqLensWhereAsked) {
  CaseConfig config = small_case(GetParam());
  config.seq_lens_sync = true;
  run_case(config);
}

TEST_P(CudaBackendOfOneRank, RunsAheadWithTheRightChecksums) {
  for (const char* wait : {"d2h_event", "mapped_flag"}) {
    for (const int depth : {1, 3}) {
      CaseConfig config = small_case(GetParam());
      config.loop = "run_ahead";
      config.run_ahead_depth = depth;
      config.coupling_wait = wait;
      run_case(config);
    }
  }
}

// As many launches as the host is ahead take it less time than one of the steps takes the GPU.
TEST_P(CudaBackendOfOneRank, DoesNotWaitForResultsThatItRunsAheadOf) {
  CaseConfig config = small_case(GetParam());
  config.loop = "run_ahead";
  config.run_ahead_depth = 3;
  config.layer_us = 25'000;
  backend->prepare(config);
  std::vector<PhaseRow> rows = run_steps(step_plan(config), 0, 8);
  EXPECT_EQ(backend->finish_block(rows).checksum_failures, 0);
  EXPECT_LT(rows[3].launch_end_ns - rows[0].launch_begin_ns,
            rows[0].gpu_end_ns - rows[0].gpu_begin_ns);
  // The fifth launch needs the first result.
  EXPECT_GE(rows[4].accept_seen_ns - rows[0].launch_begin_ns,
            rows[0].gpu_end_ns - rows[0].gpu_begin_ns);
}

TEST_P(CudaBackendOfOneRank, CountsTheOperationsOfItsPath) {
  const std::string path = GetParam();
  backend->prepare(small_case(path));
  const Json operations = backend->operations();
  const int launches = path == "aten" ? 14 : path == "page_table_kernel" ? 5 : path == "fused";
  EXPECT_EQ(operations["kernel_launches"], launches);
  EXPECT_EQ(operations["copies"], path == "aten" || path == "page_table_kernel" ? 3 : 0);
  EXPECT_EQ(operations["syncs"], 0);
}

TEST_P(CudaBackendOfOneRank, PaysTheAskedOverheadInDispatch) {
  if (GetParam() != std::string("aten")) GTEST_SKIP() << "only aten has dispatcher calls";
  CaseConfig config = small_case("aten");
  constexpr std::int64_t kAddedNs = 10'000;
  config.op_overhead_ns = kAddedNs;
  backend->prepare(config);
  const int calls = backend->operations()["calls"];
  PhaseRow row{};
  for (int step = 0; step < 5; ++step) {
    backend->run_step(step, std::span(&row, 1));
    EXPECT_GE(row.dispatch_end_ns - row.dispatch_begin_ns, calls * kAddedNs);
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

class SpeculativeStepsOfOneRank
    : public OneRank,
      public testing::WithParamInterface<std::tuple<const char*, const char*, bool, bool>> {
 protected:
  CaseConfig speculative_case() const {
    const auto [path, layout, swa, draft_swa] = GetParam();
    CaseConfig config = small_case(path);
    config.mode = "speculative";
    config.graph_layout = layout;
    config.swa = swa;
    config.draft_swa = draft_swa;
    config.seq_lens_sync = config.path == "aten";
    return config;
  }
};
INSTANTIATE_TEST_SUITE_P(Plans, SpeculativeStepsOfOneRank,
                         testing::Combine(testing::ValuesIn(kPaths),
                                          testing::Values("merged", "per_pass"), testing::Bool(),
                                          testing::Bool()));

TEST_P(SpeculativeStepsOfOneRank, GiveTheExpectedChecksumOfEveryGraph) {
  for (const char* form : {"strided", "cumsum"}) {
    CaseConfig config = speculative_case();
    config.draft_extend = form;
    run_case(config);
  }
}

TEST_P(SpeculativeStepsOfOneRank, RunAhead) {
  for (const int depth : {1, 3}) {
    CaseConfig config = speculative_case();
    config.loop = "run_ahead";
    config.run_ahead_depth = depth;
    config.coupling_wait = depth == 1 ? "d2h_event" : "mapped_flag";
    run_case(config);
  }
}

TEST_P(SpeculativeStepsOfOneRank, RunWithOtherPassesTokensAndLayers) {
  CaseConfig config = speculative_case();
  config.draft_steps = 4;
  config.draft_tokens = 6;
  config.draft_layers = 3;
  config.page_columns = "live";
  config.capture_batch_sizes = {};
  run_case(config);
}

TEST_P(SpeculativeStepsOfOneRank, CountTheOperationsOfEveryPhase) {
  const CaseConfig config = speculative_case();
  if (!config.swa || !config.draft_swa) GTEST_SKIP() << "counted with sliding windows everywhere";
  backend->prepare(config);
  const Json operations = backend->operations();
  // Two draft passes, target-verify, strided draft-extend.
  int launches = 0;
  int copies = 0;
  if (config.path == "aten") launches = 17 + 17 + 15 + 16, copies = 4 + 4 + 3 + 3;
  if (config.path == "page_table_kernel") launches = 7 + 7 + 6 + 7, copies = 3 + 3 + 3 + 3;
  if (config.path == "fused") launches = 4;
  EXPECT_EQ(operations["kernel_launches"], launches);
  EXPECT_EQ(operations["copies"], copies);
  EXPECT_EQ(operations["syncs"], config.path == "aten" ? 2 : 0);
  const StepPlan plan = step_plan(config);
  ASSERT_EQ(operations["phases"].size(), plan.phases.size());
  for (std::size_t i = 0; i < plan.phases.size(); ++i) {
    EXPECT_EQ(operations["phases"][i]["phase"], phase_name(plan.phases[i].phase));
  }
}

}  // namespace
}  // namespace tpjitter
