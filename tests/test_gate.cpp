// The gate's verdicts and exit codes over generated records of known truth.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/contract/error.h"
#include "tests/gate_fixture.h"

namespace tpjitter {
namespace {

using ::testing::HasSubstr;

TEST_F(GateTest, UnchangedCodePasses) {
  int passed = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const GateResult result = gate(side(config(2 * seed + 1)), side(config(2 * seed + 2)));
    EXPECT_NE(result.exit_code, kExitRegressed) << result.headline;
    passed += result.exit_code == kExitPass;
  }
  EXPECT_GE(passed, 18);
}

TEST_F(GateTest, TwentyPercentMoreDispatchIsRedAndNamed) {
  const GateResult result = gate(side(config(1)), side(config(2, 240'000)));
  EXPECT_EQ(result.exit_code, kExitRegressed);
  EXPECT_EQ(result.verdict, Verdict::kRegressed);
  EXPECT_THAT(result.headline, HasSubstr("dispatch_ns p50 of fused/bs8"));
  const GateRow row = row_of(result, "dispatch_ns");
  EXPECT_EQ(row.verdict, Verdict::kRegressed);
  EXPECT_NEAR(*row.change, 40'000, 2'000);
  EXPECT_LE(*row.low, *row.change);
  EXPECT_GE(*row.high, *row.change);
  EXPECT_EQ(row_of(result, "graph_launch_ns").verdict, Verdict::kPass);
}

TEST_F(GateTest, LessDispatchIsImprovedAndPasses) {
  const GateResult result = gate(side(config(1)), side(config(2, 100'000)));
  EXPECT_EQ(result.exit_code, kExitPass);
  EXPECT_EQ(result.verdict, Verdict::kImproved);
}

TEST_F(GateTest, TooFewLaunchesAreInconclusiveWhateverTheEffect) {
  const GateResult result = gate(side(config(1, 200'000, 2)), side(config(2, 2'000'000, 2)));
  EXPECT_EQ(result.exit_code, kExitInconclusive);
  EXPECT_THAT(row_of(result, "dispatch_ns").reason,
              HasSubstr("2 against 2 launches; at least 3 a side are needed"));
  EXPECT_THAT(row_of(result, "dispatch_ns").reason, HasSubstr("would do"));
}

TEST_F(GateTest, FiveLaunchesASideTurnATenfoldEffectRed) {
  LaunchSet base = side(config(1, 200'000, 5)), contender = base;
  set_dispatch(&base, {100e3, 180e3, 90e3, 150e3, 120e3});
  set_dispatch(&contender, {1500e3, 1000e3, 1900e3, 1200e3, 1100e3}, 30);
  EXPECT_EQ(gate(base, contender).exit_code, kExitRegressed);
}

TEST_F(GateTest, AChangeThatCannotBeToldIsInconclusiveAndSaysWhatWouldDo) {
  LaunchSet base = side(config(1)), contender = base;
  set_dispatch(&base, {200e3, 280e3, 220e3, 160e3});
  set_dispatch(&contender, {210e3, 290e3, 230e3, 170e3}, 30);
  const GateResult result = gate(base, contender);
  EXPECT_EQ(result.exit_code, kExitInconclusive);
  const GateRow row = row_of(result, "dispatch_ns");
  ASSERT_TRUE(row.launches_needed);
  EXPECT_GT(*row.launches_needed, 4);
  EXPECT_THAT(row.reason, HasSubstr("launches a side would do"));
}

TEST_F(GateTest, AnIncompleteContenderIsNeverJudged) {
  GeneratedRun run = generate_run(config(2));
  run.info.status = "incomplete";
  run.info.status_reason = "rank 1 died";
  const GateResult result = gate(side(config(1)), read_launches(record(std::move(run))));
  EXPECT_EQ(result.exit_code, kExitRunFailed);
  EXPECT_THAT(result.headline, HasSubstr("rank 1 died"));
}

TEST_F(GateTest, AContenderThatReadWrongMetadataIsNeverJudged) {
  for (const bool before_timing : {true, false}) {
    GeneratedRun run = generate_run(config(2));
    RunCase& first = run.info.cases.front();
    const std::string name = first.name;
    if (before_timing) {
      first.bit_equal = false;
    } else {
      first.checksum_failures = 7;
    }
    const GateResult result = gate(side(config(1)), read_launches(record(std::move(run))));
    EXPECT_EQ(result.exit_code, kExitRunFailed);
    EXPECT_THAT(result.headline, HasSubstr(name));
  }
}

TEST_F(GateTest, NoRowsMeansNothingMeasured) {
  GeneratedRun run = generate_run(config(2));
  for (auto& rows : run.rows) rows.clear();
  const GateResult result = gate(side(config(1)), read_launches(record(std::move(run))));
  EXPECT_EQ(result.exit_code, kExitNothingMeasured) << result.headline;
  EXPECT_THAT(result.headline, HasSubstr("the contender has no rows"));
}

// DESIGN: 2, 5, 6, 4 (void), 1, 4, 0. Each step has all that come after it too.
TEST_F(GateTest, TheGravestExitCodeWins) {
  const LaunchSet base = side(config(1));
  LaunchSet contender = side(config(2));
  EXPECT_EQ(gate(base, contender).exit_code, kExitPass);
  const auto set_metric = [&](std::size_t m, std::vector<double> values) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      contender.launches[i].cases.begin()->second.metrics[m].p50 =
          static_cast<std::int64_t>(values[i]);
    }
  };
  ASSERT_STREQ(metrics()[2].key, "graph_launch_ns");
  set_metric(2, {1e3, 60e3, 2e3, 70e3, 1e3, 50e3});
  EXPECT_EQ(gate(base, contender).exit_code, kExitInconclusive);
  EXPECT_FALSE(gate(base, contender).is_void);
  set_metric(1, {900e3, 910e3, 905e3, 900e3, 910e3, 905e3});
  EXPECT_EQ(gate(base, contender).exit_code, kExitRegressed);
  contender.launches[2].control.empty_graph_launch_after.reset();
  EXPECT_EQ(gate(base, contender).exit_code, kExitInconclusive);
  EXPECT_TRUE(gate(base, contender).is_void);
  const LaunchSet voided = contender;
  ASSERT_STREQ(metrics()[8].key, "step_ns");
  contender.launches[3].cases.begin()->second.metrics[8] = Distribution{};
  EXPECT_EQ(gate(base, contender).exit_code, kExitNothingMeasured);
  contender = voided;
  contender.rows = 0;
  EXPECT_EQ(gate(base, contender).exit_code, kExitNothingMeasured);
  contender.world_size = 4;
  EXPECT_EQ(gate(base, contender).exit_code, kExitIncomparable);
  // A rule that matches nothing is the reader's to correct, whatever else is wrong.
  EXPECT_THROW(
      gate_with("[[rule]]\nmetric = \"dispatch_ns\"\ncases = \"nothing*\"\n", &base, contender),
      ConfigError);
  EXPECT_THROW(gate(base, contender, {"no.such_key"}), ConfigError);
}

TEST_F(GateTest, ABaselineOfNothingOrNextToNothingLeavesTheFloor) {
  LaunchSet base = side(config(1)), contender = base;
  set_dispatch(&base, {0, 0, 0, 0});
  set_dispatch(&contender, {0, 0, 0, 0}, 30);
  EXPECT_EQ(gate(base, contender).exit_code, kExitPass);
  set_dispatch(&contender, {19e3, 19e3, 19e3, 19e3}, 30);
  EXPECT_EQ(gate(base, contender).exit_code, kExitPass);
  set_dispatch(&contender, {21e3, 21e3, 21e3, 21e3}, 30);
  const GateResult red = gate(base, contender);
  EXPECT_EQ(red.exit_code, kExitRegressed);
  EXPECT_EQ(row_of(red, "dispatch_ns").limit_source, "absolute_floor_ns");
  set_dispatch(&base, {1, 2, 1, 2});  // tenfold of a nanosecond is nothing either
  set_dispatch(&contender, {10, 20, 10, 20}, 30);
  EXPECT_EQ(gate(base, contender).exit_code, kExitPass);
}

}  // namespace
}  // namespace tpjitter
