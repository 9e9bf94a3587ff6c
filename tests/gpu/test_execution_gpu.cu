// How a step is executed on a GPU: eager launches, run ahead, where the scheduler's writes may come
// in. All of it through the backend; orders that it refuses are in test_execution_parts_gpu.cu.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "harness/control.h"
#include "harness/cuda/cuda_backend.h"
#include "harness/step_plan.h"
#include "tests/allocation_count.h"
#include "tests/gpu/execution_cases.h"
#include "tests/gpu/gpu_test_main.h"

namespace tpjitter {
namespace {

using test::execution_case;
using test::kPaths;

class Execution : public test::GpuTest {
 protected:
  void SetUp() override {
    test::GpuTest::SetUp();
    if (IsSkipped()) return;
    backend = make_cuda_backend(context);
  }

  // Every checksum of `steps` steps is the reference's, and no step allocates. Rows of all steps.
  std::vector<PhaseRow> run(const CaseConfig& config, std::int64_t steps) {
    const std::string name = config.path + " " + config.mode + " " + config.execution + " " +
                             config.read_done + " " + config.loop;
    const std::size_t phases = step_plan(config).phases.size();
    const CaseChecks prepared = backend->prepare(config);
    EXPECT_TRUE(prepared.bit_equal) << name << ": " << prepared.first_failure;
    std::vector<PhaseRow> rows(steps * phases);
    for (std::int64_t first = 0; first < steps; first += config.block_steps) {
      for (std::int64_t step = first; step < first + config.block_steps; ++step) {
        const long before = allocation_count();
        backend->run_step(step, std::span(rows).subspan(step * phases, phases));
        EXPECT_EQ(allocation_count(), before) << name << ": step " << step << " allocated";
      }
      const CaseChecks checks = backend->finish_block(
          std::span(rows).subspan(first * phases, config.block_steps * phases));
      EXPECT_EQ(checks.steps_checked, config.block_steps) << name;
      EXPECT_EQ(checks.checksum_failures, 0) << name << ": " << checks.first_failure;
    }
    return rows;
  }

  ControlSegment control = ControlSegment::create(1, 0, 1024, "{}", 1.0);
  RankContext context{0, 1, &control};
  std::unique_ptr<Backend> backend;
};

TEST_F(Execution, EagerLaunchesGiveTheChecksumsThatReplaysGive) {
  for (const char* path : kPaths) {
    for (const char* mode : {"decode", "speculative"}) {
      for (const char* loop : {"coupled", "run_ahead"}) {
        CaseConfig config = execution_case(path, mode);
        config.execution = "eager";
        config.loop = loop;
        for (const PhaseRow& row : run(config, 100)) {
          if ((row.flags & kFlagNoLaunch) != 0) continue;
          EXPECT_LT(row.launch_begin_ns, row.launch_end_ns);
          EXPECT_LT(row.gpu_begin_ns, row.first_all_reduce_own_ns);
          EXPECT_LT(row.first_all_reduce_end_ns, row.gpu_end_ns);
        }
      }
    }
  }
}

TEST_F(Execution, EagerRunsWithFillsAndProgrammaticLaunch) {
  CaseConfig config = execution_case("fused_in_graph", "decode");
  config.execution = "eager";
  config.fills = "baked";
  config.nodes_per_layer = 6;
  config.pdl = true;
  run(config, 100);
}

TEST_F(Execution, EagerOfAPaddedBatchIsRight) {
  CaseConfig config = execution_case("fused", "decode");
  config.execution = "eager";
  config.capture_batch_sizes = {8};
  run(config, 50);
}

TEST_F(Execution, EveryPositionOfTheReadDoneEventIsRightTwoStepsAhead) {
  for (const char* read_done : {"pre_replay", "in_replay", "post_replay"}) {
    for (const char* path : kPaths) {
      if (std::string(read_done) == "pre_replay" && std::string(path) == "fused_in_graph") continue;
      for (const char* mode : {"decode", "speculative"}) {
        for (const char* execution : {"graph", "eager"}) {
          CaseConfig config = execution_case(path, mode);
          config.read_done = read_done;
          config.execution = execution;
          config.loop = "run_ahead";
          config.run_ahead_depth = 2;
          run(config, 200);
        }
      }
    }
  }
}

TEST_F(Execution, TheReadDoneEventGoesWithACoupledLoopAndTheMappedFlagToo) {
  for (const char* wait : {"d2h_event", "mapped_flag"}) {
    CaseConfig config = execution_case("fused_in_graph", "speculative");
    config.read_done = "in_replay";
    config.coupling_wait = wait;
    config.graph_layout = "per_pass";
    run(config, 100);
  }
}

TEST_F(Execution, Rank0TellsItself) {
  CaseConfig config = execution_case("fused", "decode");
  config.coupling = "rank0";
  run(config, 50);
}

TEST_F(Execution, AGlueGraphIsOneLaunchAPhase) {
  backend->prepare(execution_case("glue_graph", "speculative"));
  const Json operations = backend->operations();
  EXPECT_EQ(operations["kernel_launches"], 4);
  EXPECT_EQ(operations["copies"], 0);
  EXPECT_EQ(operations["syncs"], 0);
}

}  // namespace
}  // namespace tpjitter
