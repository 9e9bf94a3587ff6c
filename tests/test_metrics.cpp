// Known truth in, the same figures out: the records are generated without noise, so that skew,
// excess and every stage come back exactly.
#include <gtest/gtest.h>

#include "harness/contract/error.h"
#include "tests/run_directory.h"

namespace tpjitter {
namespace {

struct LateCase {
  LateStage stage;
  int victim;
  std::int64_t late_ns;
  std::int64_t launch_skew_ns;  // expected
};

GeneratorConfig late_config(LateStage stage, int victim, std::int64_t late_ns, int world_size = 2) {
  GeneratorConfig config;
  config.world_size = world_size;
  config.cases[0].late_stage = stage;
  config.cases[0].late_rank = victim;
  config.cases[0].late_ns = late_ns;
  return config;
}

Json case_of(const GeneratorConfig& config) {
  return RunDirectory(config).summary().document["cases"][0];
}

std::int64_t p50(const Json& with_metrics, const char* key) {
  const Json& value = with_metrics["metrics"][key]["p50"];
  EXPECT_TRUE(value.is_number_integer()) << key << " " << with_metrics["metrics"][key].dump();
  return value.is_number_integer() ? value.get<std::int64_t>() : INT64_MIN;
}

class InjectedLateness : public ::testing::TestWithParam<LateCase> {};

TEST_P(InjectedLateness, ComesBackExactly) {
  const LateCase& truth = GetParam();
  for (const char* backend : {"host", "cuda"}) {
    GeneratorConfig config = late_config(truth.stage, truth.victim, truth.late_ns);
    config.backend = backend;
    const Json c = case_of(config);
    EXPECT_EQ(p50(c, "launch_skew_ns"), truth.launch_skew_ns);
    EXPECT_EQ(p50(c, "first_all_reduce_excess_wait_ns"), truth.late_ns);
    EXPECT_EQ(p50(c, "first_all_reduce_wait_ns"), truth.late_ns + config.flight_ns);
    EXPECT_EQ(p50(c, "all_reduce_transfer_ns"), config.transfer_ns);
    const auto victim = static_cast<std::size_t>(truth.victim);
    EXPECT_EQ(p50(c["ranks"][victim], "launch_offset_ns"), truth.launch_skew_ns);
    EXPECT_EQ(p50(c["ranks"][1 - victim], "launch_offset_ns"), 0);
    EXPECT_EQ(p50(c["ranks"][victim], "first_all_reduce_excess_wait_ns"), 0);
    EXPECT_EQ(c["ranks"][victim]["laggard_share"], 1.0);
    EXPECT_EQ(c["ranks"][1 - victim]["laggard_share"], 0.0);
    EXPECT_EQ(c["laggard_by"], "arrival");
  }
}

INSTANTIATE_TEST_SUITE_P(Stages, InjectedLateness,
                         ::testing::Values(LateCase{LateStage::kCoupling, 1, 50'000, 50'000},
                                           LateCase{LateStage::kInputs, 0, 7'000, 7'000},
                                           LateCase{LateStage::kDispatch, 1, 300'001, 300'001},
                                           LateCase{LateStage::kGraphLaunch, 0, 4'321, 4'321},
                                           LateCase{LateStage::kArrival, 1, 9'000, 0}));

TEST(Metrics, HostTimesAreThoseOfTheRecord) {
  GeneratorConfig config;
  const Json c = case_of(config);
  EXPECT_EQ(p50(c, "inputs_ns"), 3'000);
  EXPECT_EQ(p50(c, "dispatch_ns"), 20'000);
  EXPECT_EQ(p50(c, "graph_launch_ns"), 6'000);
  EXPECT_EQ(p50(c, "coupling_wait_ns"), 40'000);
  // Accept to accept: inputs, dispatch, launch, arrival, flight, transfer, the rest of the decode
  // and the 50 us until the next accept is seen.
  EXPECT_EQ(p50(c, "step_ns"), 3'000 + 20'000 + 6'000 + 10'000 + 2'100 + 1'500 + 500'000 + 50'000);
}

TEST(Metrics, FirstStepsOfBlocksAreLeftOutAndNoStepCrossesABarrier) {
  GeneratorConfig config;
  config.steps = 60;
  config.block_steps = 20;
  GeneratedRun generated = generate_run(config);
  // What a barrier does: the first step of each block is off by a second.
  for (auto& rows : generated.rows) {
    for (PhaseRow& row : rows) {
      if ((row.flags & kFlagFirstOfBlock) != 0) row.dispatch_end_ns += 1'000'000'000;
    }
  }
  const Json c = RunDirectory(generated).summary().document["cases"][0];
  EXPECT_EQ(c["left_out"], 3);
  EXPECT_EQ(c["metrics"]["dispatch_ns"]["n"], 57);
  EXPECT_EQ(c["metrics"]["dispatch_ns"]["max"], 20'000);
  // Per block of 20: the first step is left out, the last has no next step.
  EXPECT_EQ(c["metrics"]["step_ns"]["n"], 3 * 18);
}

TEST(Metrics, FirstAfterWarmupIsLeftOut) {
  GeneratorConfig config;
  config.block_steps = 1000;
  GeneratedRun generated = generate_run(config);
  for (auto& rows : generated.rows) rows[0].flags = kFlagFirstAfterWarmup | kFlagModelledDevice;
  EXPECT_EQ(RunDirectory(generated).summary().document["cases"][0]["left_out"], 1);
}

TEST(Metrics, CaseFiguresTakeTheMaximumOverRanksInEachReplay) {
  GeneratorConfig config;
  config.cases[0].late_stage = LateStage::kDispatch;
  config.cases[0].late_ns = 5'000;
  config.cases[0].late_rotates = true;  // each rank is slow in every other step
  const Json c = case_of(config);
  EXPECT_EQ(p50(c, "dispatch_ns"), 25'000);
  EXPECT_EQ(c["metrics"]["dispatch_ns"]["mean"], 25'000.0);
  EXPECT_EQ(c["ranks"][0]["metrics"]["dispatch_ns"]["min"], 20'000);
  EXPECT_EQ(c["ranks"][0]["laggard_share"], 18.0 / 38);  // steps 0 and 20 are left out
  EXPECT_EQ(c["ranks"][0]["jitter"]["dispatch_ns"]["step_difference_p50"], 5'000);
}

TEST(Metrics, SixteenRanksAndAnyVictim) {
  for (const int victim : {0, 7, 15}) {
    const Json c = case_of(late_config(LateStage::kDispatch, victim, 12'345, 16));
    ASSERT_EQ(c["ranks"].size(), 16u);
    EXPECT_EQ(p50(c, "launch_skew_ns"), 12'345);
    EXPECT_EQ(p50(c, "first_all_reduce_excess_wait_ns"), 12'345);
    EXPECT_EQ(c["ranks"][static_cast<std::size_t>(victim)]["laggard_share"], 1.0);
  }
}

TEST(Metrics, OneRankHasNoSkewAndSaysWhy) {
  GeneratorConfig config;
  config.world_size = 1;
  const Json c = case_of(config);
  EXPECT_EQ(p50(c, "dispatch_ns"), 20'000);
  for (const char* key : {"launch_skew_ns", "first_all_reduce_wait_ns", "all_reduce_transfer_ns"}) {
    EXPECT_TRUE(c["metrics"][key]["p50"].is_null());
    EXPECT_EQ(c["metrics"][key]["reasons"]["p50"], "one rank: nothing to compare with");
  }
  EXPECT_EQ(c["attribution"]["class"], "inconclusive");
}

TEST(Metrics, NcclHasNoWaitOfItsOwnAndTheLaggardGoesByLaunch) {
  GeneratorConfig config = late_config(LateStage::kDispatch, 1, 30'000);
  config.cases[0].all_reduce = "nccl";
  const Json c = case_of(config);
  EXPECT_EQ(c["metrics"]["first_all_reduce_wait_ns"]["n"], 0);
  EXPECT_NE(
      c["metrics"]["first_all_reduce_wait_ns"]["reasons"]["p50"].get<std::string>().find("nccl"),
      std::string::npos);
  EXPECT_EQ(p50(c, "launch_skew_ns"), 30'000);
  EXPECT_EQ(c["laggard_by"], "launch");
  EXPECT_EQ(c["ranks"][1]["laggard_share"], 1.0);
}

TEST(Metrics, AGraphWithoutAllReduceSaysSo) {
  GeneratorConfig config;
  config.cases[0].all_reduce = "none";
  const Json c = case_of(config);
  EXPECT_EQ(c["metrics"]["first_all_reduce_wait_ns"]["reasons"]["p50"],
            "no all-reduce stamps in the graph");
  EXPECT_EQ(p50(c, "launch_skew_ns"), 0);
}

TEST(Metrics, WithoutControlsTheExcessIsNullAndTheWaitIsKept) {
  GeneratorConfig config = late_config(LateStage::kArrival, 1, 30'000);
  config.controls = false;
  const Json c = case_of(config);
  EXPECT_EQ(p50(c, "first_all_reduce_wait_ns"), 32'100);
  EXPECT_EQ(c["metrics"]["first_all_reduce_excess_wait_ns"]["n"], 0);
}

TEST(Metrics, RanksThatArriveTogetherHaveNoExcess) {
  const Json c = case_of({});
  EXPECT_EQ(p50(c, "first_all_reduce_excess_wait_ns"), 0);
  EXPECT_EQ(p50(c, "first_all_reduce_wait_ns"), 2'100);
  EXPECT_EQ(c["ranks"][0]["laggard_share"], 0.0);  // a tie names nobody
}

TEST(Metrics, NegativeValuesAreCountedAndKept) {
  GeneratedRun generated = generate_run({});
  for (int i = 2; i < 7; ++i)
    generated.rows[0][static_cast<std::size_t>(i)].dispatch_end_ns -= 21'000;
  const Json c = RunDirectory(generated).summary().document["cases"][0];
  const Json& dispatch = c["ranks"][0]["metrics"]["dispatch_ns"];
  EXPECT_EQ(dispatch["negative"], 5);
  EXPECT_EQ(dispatch["min"], -1'000);
}

TEST(Metrics, SpeculativeStepsKeepTheirPhasesApart) {
  GeneratorConfig config = late_config(LateStage::kDispatch, 1, 1'000);
  config.cases[0].speculative = true;
  GeneratedRun generated = generate_run(config);
  for (auto& rows : generated.rows) {
    for (PhaseRow& row : rows) {
      if (row.phase == static_cast<int>(Phase::kTargetVerify)) row.dispatch_begin_ns -= 500;
    }
  }
  const Json c = RunDirectory(generated).summary().document["cases"][0];
  ASSERT_EQ(c["phases"].size(), 3u);
  EXPECT_EQ(c["rebuilds"], 160);
  EXPECT_EQ(c["phases"]["draft_decode"]["dispatch_ns"]["n"], 2 * 38);
  EXPECT_EQ(c["phases"]["draft_decode"]["graph_launch_ns"]["n"], 38);  // both passes in one graph
  EXPECT_EQ(c["phases"]["target_verify"]["dispatch_ns"]["p50"], 21'500);
  EXPECT_EQ(c["phases"]["draft_decode"]["dispatch_ns"]["p50"], 21'000);
  // A late rank falls further behind with each rebuild of the step.
  EXPECT_EQ(c["phases"]["draft_decode"]["launch_skew_ns"]["p50"], 2'000);
  EXPECT_EQ(c["phases"]["draft_extend_cumsum"]["launch_skew_ns"]["p50"], 4'000);
  EXPECT_EQ(c["metrics"]["step_ns"]["n"], 36);
  EXPECT_EQ(c["metrics"]["coupling_wait_ns"]["n"], 38);
}

TEST(Metrics, OneStepHasAMaximumButNoQuantile) {
  GeneratorConfig config;
  config.steps = 2;  // the first is left out
  const Json dispatch = case_of(config)["metrics"]["dispatch_ns"];
  EXPECT_EQ(dispatch["n"], 1);
  EXPECT_TRUE(dispatch["p50"].is_null());
  EXPECT_EQ(dispatch["max"], 20'000);
  EXPECT_EQ(dispatch["reasons"]["p50"], "p50 needs 20 samples, there are 1");
}

TEST(Metrics, HugeStampsSurviveToTheLastDigit) {
  GeneratorConfig config = late_config(LateStage::kArrival, 1, 1);
  config.start_ns = std::int64_t{1} << 62;
  config.cases[0].dispatch_ns = 3'540'000'000'001;  // just below the hour that a row may span
  config.steps = 30;
  const Json c = case_of(config);
  EXPECT_EQ(p50(c, "dispatch_ns"), 3'540'000'000'001);
  EXPECT_EQ(p50(c, "first_all_reduce_excess_wait_ns"), 1);
}

TEST(Metrics, GarbageStampsDoNotOverflow) {
  GeneratedRun generated = generate_run({});
  for (std::size_t i = 0; i < 40; i += 2) {
    PhaseRow& row = generated.rows[i % 3 == 0 ? 1 : 0][i];
    row.launch_begin_ns = INT64_MIN;
    row.launch_end_ns = INT64_MAX;
    row.accept_seen_ns = INT64_MIN + 1;
    row.inputs_begin_ns = INT64_MAX;
    row.first_all_reduce_own_ns = INT64_MIN;
    row.first_all_reduce_last_seen_ns = INT64_MAX;
  }
  const Summary summary = RunDirectory(generated).summary();
  EXPECT_EQ(summary.exit_code, kExitRunFailed);
  EXPECT_EQ(summary.document["cases"][0]["metrics"]["dispatch_ns"]["n"], 20);
}

TEST(Metrics, JitterIsTheSpreadAndTheStepToStepDifference) {
  GeneratorConfig config;
  config.steps = 1200;
  config.block_steps = 1200;
  GeneratedRun generated = generate_run(config);
  // Rank 0 dispatches in 20, 21, 20, 21 ... us, and in 90 us every 60th step.
  for (std::size_t i = 0; i < 1200; ++i) {
    generated.rows[0][i].dispatch_end_ns += i % 60 == 59 ? 70'000 : (i % 2 == 1 ? 1'000 : 0);
  }
  const Json jitter =
      RunDirectory(generated).summary().document["cases"][0]["ranks"][0]["jitter"]["dispatch_ns"];
  EXPECT_EQ(jitter["p99_minus_p50"], 69'000);  // the median is one of the 21 us
  EXPECT_EQ(jitter["step_difference_n"], 1198);
  EXPECT_EQ(jitter["step_difference_p50"], 1'000);
  EXPECT_EQ(jitter["step_difference_p99"], 70'000);
}

TEST(Metrics, FlightFloorOfTwoRanksIsTheMeanOfTheirMedians) {
  // The generator gives rank 0 +30 ns and rank 1 -30 ns, as a clock offset would.
  const Json floor = RunDirectory(GeneratorConfig{}).summary().document["floor"];
  EXPECT_EQ(floor[0]["kind"], "flight");
  EXPECT_EQ(floor[0]["floor_ns"], 2'100);
}

TEST(Metrics, LocalFloorComesFromRowsThatDidNotWait) {
  const Json floor =
      RunDirectory(late_config(LateStage::kDispatch, 1, 9'000)).summary().document["floor"];
  EXPECT_EQ(floor[1]["kind"], "local");
  EXPECT_TRUE(floor[1]["floor_ns"].is_null());  // rank 0 always waited
  EXPECT_EQ(floor[2]["floor_ns"], 400);
}

}  // namespace
}  // namespace tpjitter
