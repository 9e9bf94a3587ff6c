// The measured region over a device that notes what it is asked: order, stamps, allocations.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "harness/control.h"
#include "harness/host/host_backend.h"
#include "harness/step.h"
#include "tests/allocation_count.h"

namespace tpjitter {
namespace {

struct NotingDevice {
  std::vector<std::string> calls;
  void wait_accept(std::int64_t step) { calls.push_back("wait " + std::to_string(step)); }
  void check_device(std::int64_t step) { calls.push_back("check " + std::to_string(step)); }
  void copy_inputs(int phase) { calls.push_back("inputs " + std::to_string(phase)); }
  void rebuild_metadata(int phase) { calls.push_back("rebuild " + std::to_string(phase)); }
  void launch_graph(int graph) { calls.push_back("launch " + std::to_string(graph)); }
  void stage_inputs(std::int64_t step) { calls.push_back("stage " + std::to_string(step)); }
};

TEST(RunStep, DoesTheWorkOfAStepInTimeOrder) {
  const auto slot = std::make_unique<RankSlot>();
  StepContext context;
  context.slot = slot.get();
  context.plan.phases.resize(2);
  context.plan.phases[1].graph = 1;
  NotingDevice device;
  std::vector<PhaseRow> rows(2);
  run_step(device, context, 5, std::span(rows));
  const std::vector<std::string> expected = {"wait 4",   "inputs 0",  "rebuild 0", "launch 0",
                                             "inputs 1", "rebuild 1", "launch 1",  "stage 6"};
  EXPECT_EQ(device.calls, expected);
  for (const PhaseRow& row : rows) {
    EXPECT_LE(row.coupling_begin_ns, row.accept_seen_ns);
    EXPECT_LE(row.accept_seen_ns, row.inputs_begin_ns);
    EXPECT_LE(row.inputs_begin_ns, row.inputs_end_ns);
    EXPECT_EQ(row.inputs_end_ns, row.dispatch_begin_ns);
    EXPECT_LE(row.dispatch_begin_ns, row.dispatch_end_ns);
    EXPECT_LE(row.dispatch_end_ns, row.launch_begin_ns);
    EXPECT_LE(row.launch_begin_ns, row.launch_end_ns);
  }
}

TEST(RunStep, APhaseThatSharesAGraphHasNoLaunchOfItsOwn) {
  const auto slot = std::make_unique<RankSlot>();
  CaseConfig config;
  config.mode = "speculative";
  StepContext context;
  context.slot = slot.get();
  context.plan = step_plan(config);
  context.run_ahead_depth = 2;
  NotingDevice device;
  std::vector<PhaseRow> rows(4);
  run_step(device, context, 9, std::span(rows));
  const std::vector<std::string> expected = {
      "wait 6",    "inputs 0", "rebuild 0", "inputs 1",  "rebuild 1", "launch 0", "inputs 2",
      "rebuild 2", "launch 1", "inputs 3",  "rebuild 3", "launch 2",  "stage 10"};
  EXPECT_EQ(device.calls, expected);
  EXPECT_EQ(rows[0].flags & kFlagNoLaunch, kFlagNoLaunch);
  EXPECT_EQ(rows[0].launch_begin_ns, 0);
  EXPECT_EQ(rows[1].flags & kFlagNoLaunch, 0u);
  const Phase phases[] = {Phase::kDraftDecode, Phase::kDraftDecode, Phase::kTargetVerify,
                          Phase::kDraftExtendStrided};
  const int graphs[] = {0, 0, 1, 2};
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(rows[i].phase, static_cast<int>(phases[i]));
    EXPECT_EQ(rows[i].graph, graphs[i]);
  }
}

TEST(RunStep, InjectsOnTheVictimAtItsSteps) {
  const auto slot = std::make_unique<RankSlot>();
  CaseConfig config;
  config.inject_where = "before_launch";
  config.inject_victim = 1;
  config.inject_delay_us = 300;
  config.inject_every_steps = 3;
  for (const int rank : {0, 1}) {
    StepContext context;
    context.slot = slot.get();
    context.plan.phases.resize(1);
    context.injection = Injection::of(config, rank, 2);
    NotingDevice device;
    for (int step = 0; step < 6; ++step) {
      std::vector<PhaseRow> rows(1);
      run_step(device, context, step, std::span(rows));
      const bool hit = rank == 1 && step % 3 == 0;
      EXPECT_EQ(rows[0].injected_ns, hit ? 300'000 : 0);
      if (hit) {
        EXPECT_GE(rows[0].launch_begin_ns - rows[0].dispatch_end_ns, 300'000);
      }
    }
  }
}

class TimedLoop : public testing::TestWithParam<const char*> {};

CaseConfig timed_case(const std::string& path) {
  CaseConfig config;
  config.path = path;
  config.swa = true;
  config.layers = 2;
  config.context_tokens = 512;
  config.layer_us = 1;
  return config;
}

void expect_no_allocation(const CaseConfig& config) {
  ControlSegment control = ControlSegment::create(1, 0, 1, "", 100.0);
  const auto backend = make_host_backend({0, 1, &control});
  EXPECT_TRUE(backend->prepare(config).bit_equal);
  std::vector<PhaseRow> rows(1);
  std::int64_t step = 0;
  for (; step < 5; ++step) backend->run_step(step, rows);  // warm-up
  const long before = allocation_count();
  for (; step < 205; ++step) backend->run_step(step, rows);
  EXPECT_EQ(allocation_count() - before, 0);
  const CaseChecks checks = backend->finish_block({});
  EXPECT_EQ(checks.steps_checked, 205);
  EXPECT_EQ(checks.checksum_failures, 0) << checks.first_failure;
}

TEST_P(TimedLoop, AllocatesNothing) { expect_no_allocation(timed_case(GetParam())); }

TEST_P(TimedLoop, AllocatesNothingEagerlyAndAheadOfTheSchedulersStream) {
  CaseConfig config = timed_case(GetParam());
  config.execution = "eager";
  config.read_done = "in_replay";
  config.loop = "run_ahead";
  config.coupling = "rank0";
  expect_no_allocation(config);
}

INSTANTIATE_TEST_SUITE_P(Paths, TimedLoop,
                         testing::Values("aten", "glue_graph", "fused", "fused_in_graph",
                                         "fused_multi"));

}  // namespace
}  // namespace tpjitter
