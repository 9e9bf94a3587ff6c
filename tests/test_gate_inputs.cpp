// What the gate takes as a side: comparable or not, merged, from a baseline file, whole or not.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

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

TEST_F(GateInputs, ARunThatIsComparedWithItselfIsSaid) {
  LaunchSet base = side(config(1)), contender = side(config(2));
  for (std::size_t i = 0; i < base.launches.size(); ++i) {
    base.launches[i].began_ns = 1'000 + static_cast<std::int64_t>(i);
    contender.launches[i].began_ns = 2'000 + static_cast<std::int64_t>(i);
    contender.launches[i].source = base.launches[i].source;  // a directory that was used again
  }
  const auto said = [&](const LaunchSet& other) {
    for (const std::string& note : gate(base, other).notes) {
      if (note.find("compared with itself") != std::string::npos) return note;
    }
    return std::string();
  };
  EXPECT_EQ(said(contender), "");
  contender.launches[2].began_ns = base.launches[4].began_ns;
  EXPECT_THAT(said(contender), HasSubstr("1 of the contender's 6 launches stands in the baseline"));
  EXPECT_THAT(said(base), HasSubstr("6 of the contender's 6 launches stand in the baseline too"));
  EXPECT_THAT(gate_text(gate(base, base)), HasSubstr("stand in the baseline too"));
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

// Why a baseline is refused; empty when it is read.
std::string refusal(const Json& baseline) {
  try {
    launch_set_from_json(baseline, "base.json");
  } catch (const RecordError& error) {
    EXPECT_EQ(error.exit_code(), kExitUsage);
    return error.what();
  }
  return "";
}

TEST_F(GateInputs, ABaselineWithFiguresThatNoRunHasIsRefusedByKey) {
  Json good = launch_set_to_json(side(config(1)));
  Json& of_case = good["launches"][0]["cases"]["fused/bs8"];
  of_case["phases"]["normal_decode"]["dispatch_ns"] = of_case["metrics"]["dispatch_ns"];
  ASSERT_EQ(refusal(good), "");
  const auto with = [&](const std::string& path, const Json& value) {
    Json bad = good;
    const std::string under = "/launches/0/cases/fused~1bs8/metrics/dispatch_ns/";
    bad.at(Json::json_pointer((path.front() == '/' ? "" : under) + path)) = value;
    return refusal(bad);
  };
  for (const char* key : {"p50", "p90", "max"}) {
    EXPECT_THAT(with(key, -5), HasSubstr(fmt::format("base.json: launches[0]: fused/bs8: "
                                                     "dispatch_ns: key `{}` is -5",
                                                     key)));
  }
  EXPECT_THAT(with("mean", -1.5), HasSubstr("`mean` is -1.5"));
  EXPECT_THAT(with("mean", 1e300), HasSubstr("not between `min` and `max`"));
  EXPECT_THAT(with("mean", std::nan("")), HasSubstr("`mean` is nan"));
  EXPECT_THAT(with("p50", 1'000'000'000), HasSubstr("less than `p50`, which is 1000000000"));
  EXPECT_THAT(with("max", 1), HasSubstr("key `max` is 1, less than `"));
  EXPECT_THAT(with("negative", 1), HasSubstr("`negative` is 1, but `min` is "));
  EXPECT_THAT(with("n", 0), HasSubstr("key `min` has a value, but `n` is 0"));
  EXPECT_THAT(with("block_p50", {200, -1}), HasSubstr("`block_p50` holds -1"));
  EXPECT_THAT(with("/launches/0/cases/fused~1bs8/phases/normal_decode/dispatch_ns/p50", -7),
              HasSubstr("normal_decode: dispatch_ns: key `p50` is -7"));
  EXPECT_THAT(with("/launches/0/controls/empty_graph_launch_before_ns", -1),
              HasSubstr("controls: key `empty_graph_launch_before_ns` is not a duration"));
  EXPECT_THAT(with("/launches/0/launch", -1), HasSubstr("key `launch`"));
  EXPECT_THAT(with("/launches/0/cases/fused~1bs8/positions", {-1}), HasSubstr("key `positions`"));
  EXPECT_THAT(with("/clock_bound_ns", -1), HasSubstr("key `clock_bound_ns`"));
  // No JSON, whatever reads it.
  EXPECT_THROW(launch_set_from_text("{\"rows\": 1e999}", "base.json"), RecordError);
  EXPECT_THROW(launch_set_from_text("{\"rows\": NaN}", "base.json"), RecordError);
}

TEST_F(GateInputs, ABaselineWhoseExcessWaitIsBelowItsFloorIsRead) {
  Json below = launch_set_to_json(side(config(1)));
  Json& excess =
      below["launches"][0]["cases"]["fused/bs8"]["metrics"]["first_all_reduce_excess_wait_ns"];
  ASSERT_GT(excess["n"], 0);
  for (const char* key : {"min", "p50"}) excess[key] = -832;
  excess["negative"] = excess["n"];
  EXPECT_EQ(refusal(below), "");
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
