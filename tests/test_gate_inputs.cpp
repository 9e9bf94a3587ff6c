// What the gate takes as a side: comparable or not, merged, from a baseline file, whole or not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/contract/error.h"
#include "reports/baseline.h"
#include "tests/gate_fixture.h"

namespace tpjitter {
namespace {

using ::testing::HasSubstr;

using GateInputs = GateTest;

TEST_F(GateInputs, OtherScenariosBackendsAndWorldSizesAreIncomparable) {
  const LaunchSet base = side(config(1));
  LaunchSet other = side(config(2));
  other.scenario = "another";
  EXPECT_EQ(gate(base, other).exit_code, kExitIncomparable);
  EXPECT_EQ(gate(base, other, {"scenario"}).exit_code, kExitPass);
  EXPECT_THAT(gate(base, other, {"scenario"}).allowed.front(), HasSubstr("another"));
  GeneratorConfig three = config(2);
  three.world_size = 3;
  EXPECT_EQ(gate(base, side(three)).exit_code, kExitIncomparable);
}

TEST_F(GateInputs, AScenarioKeyThatDiffersIsNamedAndCanBeAllowed) {
  const LaunchSet base = side(config(1));
  LaunchSet other = side(config(2));
  other.case_values.begin()->second["step"]["op_overhead_ns"] = 40'000;
  const GateResult result = gate(base, other);
  EXPECT_EQ(result.exit_code, kExitIncomparable);
  EXPECT_THAT(result.headline, HasSubstr("step.op_overhead_ns: 0 against 40000"));
  EXPECT_EQ(gate(base, other, {"step.op_overhead_ns"}).exit_code, kExitPass);
}

TEST_F(GateInputs, ACaseOnOneSideOnlyIsIncomparable) {
  GeneratorConfig two = config(2);
  two.cases.push_back(two.cases[0]);
  two.cases[1].name = "fused/bs16";
  EXPECT_THAT(gate(side(config(1)), side(two)).headline,
              HasSubstr("case fused/bs16 is only in the contender"));
  EXPECT_THAT(gate(side(two), side(config(1))).headline, HasSubstr("only in the baseline"));
}

TEST_F(GateInputs, ABaselineFileGivesTheSameVerdictAsItsRuns) {
  const LaunchSet base = side(config(1)), contender = side(config(2, 240'000));
  const LaunchSet again =
      launch_set_from_json(Json::parse(launch_set_to_json(base).dump()), "baseline.json");
  EXPECT_EQ(gate_json(gate(base, contender)), gate_json(gate(again, contender)));
  Json other = launch_set_to_json(base);
  other["schema"] = "tpjitter.baseline/2";
  EXPECT_THROW(launch_set_from_json(other, "b"), RecordError);
  other = launch_set_to_json(base);
  other["launches"][0]["cases"]["fused/bs8"]["metrics"]["dispatch_ns"]["p50"] = "12";
  EXPECT_THROW(launch_set_from_json(other, "b"), RecordError);
}

TEST_F(GateInputs, SeveralRunsMergeIntoOneSide) {
  LaunchSet merged = side(config(1, 200'000, 2));
  merge(&merged, side(config(2, 200'000, 2)));
  EXPECT_EQ(merged.launches.size(), 4u);
  LaunchSet other = side(config(3));
  other.world_size = 4;
  EXPECT_THROW(merge(&merged, other), ConfigError);
}

TEST_F(GateInputs, ALaunchCountsOnceHoweverOftenItIsNamed) {
  const LaunchSet once = side(config(1, 200'000, 1));
  LaunchSet again = once;
  EXPECT_THROW(merge(&again, once), ConfigError);
  LaunchSet copied = once;  // the same record under another name
  copied.launches[0].source = "elsewhere";
  again = once;
  again.launches[0].began_ns = copied.launches[0].began_ns = 12345;
  EXPECT_THROW(merge(&again, copied), ConfigError);
}

TEST_F(GateInputs, ALaunchWithoutTheCaseOrTheMetricIsNeverLeftOut) {
  const LaunchSet base = side(config(1));
  LaunchSet contender = side(config(2));
  contender.launches[3].cases.begin()->second.metrics[1] = Distribution{};
  const GateResult result = gate(base, contender);
  EXPECT_EQ(result.exit_code, kExitNothingMeasured);
  EXPECT_THAT(row_of(result, "dispatch_ns").reason, HasSubstr("1 of 6 launches have no value"));
  contender = side(config(2));
  contender.launches[3].cases.clear();
  EXPECT_EQ(gate(base, contender).exit_code, kExitNothingMeasured);
}

TEST_F(GateInputs, ACaseThatOnlyOneRunOfASideHasIsRefused) {
  GeneratorConfig two = config(2);
  two.cases.push_back(two.cases[0]);
  two.cases[1].name = "fused/bs16";
  LaunchSet merged = side(config(1));
  EXPECT_THROW(merge(&merged, side(two)), ConfigError);
}

TEST_F(GateInputs, AKeyThatDoesNotExistCannotBeAllowed) {
  const LaunchSet set = side(config(1));
  EXPECT_THROW(gate(set, set, {"step.op_overhead"}), ConfigError);
}

TEST_F(GateInputs, ABaselineWithImpossibleValuesIsRefused) {
  const Json good = launch_set_to_json(side(config(1)));
  Json bad = good;
  bad["launches"][0]["cases"]["fused/bs8"]["metrics"]["dispatch_ns"]["p50"] =
      18446744073709551615ull;
  EXPECT_THROW(launch_set_from_json(bad, "b"), RecordError);
  bad = good;
  bad["launches"].push_back(bad["launches"][0]);  // a launch counts once
  EXPECT_THROW(launch_set_from_json(bad, "b"), RecordError);
  bad = good;
  bad["world_size"] = 4294967298ll;
  EXPECT_THROW(launch_set_from_json(bad, "b"), RecordError);
  bad = good;
  bad["cases"]["fused/bs8"]["step"] = Json::array();
  try {
    launch_set_from_json(bad, "b");
    FAIL();
  } catch (const RecordError& error) {
    EXPECT_EQ(error.exit_code(), kExitUsage);
  }
}

TEST_F(GateInputs, TheNoiseOfInitIsReadBackAsALimit) {
  LaunchSet set = side(config(1, 200'000, 8));
  set_dispatch(&set, {200e3, 260e3, 210e3, 150e3, 240e3, 190e3, 230e3, 170e3});
  const Thresholds read = parse_thresholds(thresholds_with_noise(set), "made.toml", gate_metrics());
  EXPECT_EQ(read.rules.front().metric, "dispatch_ns");
  // Standard deviation 36 us, 8 launches, t(7) at 0.995 is 3.499: 3.499 * 2 * 36.4 / sqrt(8).
  EXPECT_NEAR(read.rules.front().noise_ns, 90'500, 1'500);
  EXPECT_THROW(thresholds_with_noise(side(config(1, 200'000, 5))), ConfigError);
}

}  // namespace
}  // namespace tpjitter
