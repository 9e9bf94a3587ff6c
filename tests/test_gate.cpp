// The gate over generated records of known truth, and over launch sets made by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "harness/contract/error.h"
#include "reports/baseline.h"
#include "reports/gate.h"
#include "reports/gate_exports.h"
#include "tests/record_generator.h"

namespace tpjitter {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class GateTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ =
        std::filesystem::path(::testing::TempDir()) /
        ("gate_" + std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()));
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(root_);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  // A record of six launches; dispatch in ns.
  GeneratorConfig config(std::uint64_t seed, std::int64_t dispatch_ns = 200'000,
                         int launches = 6) const {
    GeneratorConfig config;
    config.seed = seed;
    config.launches = launches;
    config.steps = 60;
    config.noise_ns = 4'000;
    config.cases[0].dispatch_ns = dispatch_ns;
    return config;
  }
  std::filesystem::path record(const GeneratorConfig& config) {
    return record(generate_run(config));
  }
  std::filesystem::path record(GeneratedRun run) {
    // The generator takes its controls before the cases only.
    const std::vector<RunControl> before = run.info.controls;
    for (RunControl control : before) {
      control.when = "after";
      run.info.controls.push_back(control);
    }
    const auto folder = root_ / ("run" + std::to_string(next_++));
    std::filesystem::create_directories(folder);
    write_run(folder, std::move(run));
    return folder;
  }
  LaunchSet side(const GeneratorConfig& config) { return read_launches(record(config)); }

  GateResult gate(const LaunchSet& baseline, const LaunchSet& contender,
                  std::vector<std::string> allow = {}) {
    GateOptions options;
    options.thresholds = default_thresholds(gate_metrics(), contender.backend);
    options.allow = std::move(allow);
    options.today = "2026-06-01";
    return evaluate_gate(&baseline, contender, options);
  }
  GateResult gate_with(const std::string& thresholds, const LaunchSet* baseline,
                       const LaunchSet& contender) {
    GateOptions options;
    options.built_in = false;
    options.thresholds = parse_thresholds("schema = \"tpjitter.thresholds/1\"\n" + thresholds,
                                          "t.toml", gate_metrics());
    options.today = "2026-06-01";
    return evaluate_gate(baseline, contender, options);
  }
  static GateRow row_of(const GateResult& result, const std::string& metric) {
    for (const GateRow& row : result.rows) {
      if (row.metric == metric) return row;
    }
    throw std::runtime_error("no row of " + metric);
  }

  std::filesystem::path root_;
  int next_ = 0;
};

// Gives the launches of a side values of dispatch p50 in time order, one a minute.
void set_dispatch(LaunchSet* set, const std::vector<double>& values, double start_s = 0) {
  LaunchResult model = set->launches.front();
  set->launches.clear();
  for (std::size_t i = 0; i < values.size(); ++i) {
    LaunchResult launch = model;
    launch.launch = static_cast<int>(i);
    launch.began_ns = static_cast<std::int64_t>((start_s + 60.0 * static_cast<double>(i)) * 1e9);
    for (auto& [name, c] : launch.cases) {
      c.metrics[1].p50 = static_cast<std::int64_t>(values[i]);
      ASSERT_STREQ(metrics()[1].key, "dispatch_ns");
    }
    set->launches.push_back(launch);
  }
}

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

TEST_F(GateTest, OtherScenariosBackendsAndWorldSizesAreIncomparable) {
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

TEST_F(GateTest, AScenarioKeyThatDiffersIsNamedAndCanBeAllowed) {
  const LaunchSet base = side(config(1));
  LaunchSet other = side(config(2));
  other.case_values.begin()->second["step"]["op_overhead_ns"] = 40'000;
  const GateResult result = gate(base, other);
  EXPECT_EQ(result.exit_code, kExitIncomparable);
  EXPECT_THAT(result.headline, HasSubstr("step.op_overhead_ns: 0 against 40000"));
  EXPECT_EQ(gate(base, other, {"step.op_overhead_ns"}).exit_code, kExitPass);
}

TEST_F(GateTest, ACaseOnOneSideOnlyIsIncomparable) {
  GeneratorConfig two = config(2);
  two.cases.push_back(two.cases[0]);
  two.cases[1].name = "fused/bs16";
  EXPECT_THAT(gate(side(config(1)), side(two)).headline,
              HasSubstr("case fused/bs16 is only in the contender"));
  EXPECT_THAT(gate(side(two), side(config(1))).headline, HasSubstr("only in the baseline"));
}

TEST_F(GateTest, MissingControlsVoidTheRun) {
  LaunchSet without = side(config(2, 400'000));
  without.launches[2].control.empty_graph_launch_after.reset();
  const GateResult result = gate(side(config(1)), without);
  EXPECT_EQ(result.exit_code, kExitInconclusive);
  EXPECT_TRUE(result.is_void);
  EXPECT_THAT(result.headline, HasSubstr("void: empty_graph_launch_ns: contender launch 2 of"));
}

TEST_F(GateTest, AnUnstableControlVoidsEvenARegression) {
  LaunchSet contender = side(config(2, 400'000));
  for (LaunchResult& launch : contender.launches) {
    launch.control.zero_skew_after = *launch.control.zero_skew_before + 100'000;
  }
  const GateResult result = gate(side(config(1)), contender);
  EXPECT_EQ(result.exit_code, kExitInconclusive);
  EXPECT_THAT(result.headline, HasSubstr("void: zero_skew_all_reduce_ns: in 6 of 6 contender"));
}

TEST_F(GateTest, AControlThatMovedVoidsOnlySmallerEffects) {
  const LaunchSet base = side(config(1));
  LaunchSet small = side(config(2, 240'000)), large = side(config(3, 400'000));
  for (LaunchSet* set : {&small, &large}) {
    for (LaunchResult& launch : set->launches) {
      for (auto* value :
           {&launch.control.empty_graph_launch_before, &launch.control.empty_graph_launch_after}) {
        **value *= 1.5;
      }
    }
  }
  const GateResult result = gate(base, small);
  EXPECT_EQ(row_of(result, "dispatch_ns").verdict, Verdict::kInconclusive);
  EXPECT_THAT(row_of(result, "dispatch_ns").reason, HasSubstr("moved by 50 % itself"));
  EXPECT_EQ(gate(base, large).exit_code, kExitRegressed);
}

TEST_F(GateTest, AnIncompleteContenderIsNeverJudged) {
  GeneratedRun run = generate_run(config(2));
  run.info.status = "incomplete";
  run.info.status_reason = "rank 1 died";
  const GateResult result = gate(side(config(1)), read_launches(record(std::move(run))));
  EXPECT_EQ(result.exit_code, kExitRunFailed);
  EXPECT_THAT(result.headline, HasSubstr("rank 1 died"));
}

TEST_F(GateTest, NoRowsMeansNothingMeasured) {
  GeneratedRun run = generate_run(config(2));
  for (auto& rows : run.rows) rows.clear();
  const LaunchSet empty = read_launches(record(std::move(run)));
  const GateResult result = gate(side(config(1)), empty);
  EXPECT_TRUE(result.exit_code == kExitNothingMeasured || result.exit_code == kExitRunFailed)
      << result.headline;
}

TEST_F(GateTest, TwoStatesAndDriftsAreRecognised) {
  LaunchSet base = side(config(1)), contender = base;
  set_dispatch(&base, {200e3, 201e3, 200e3, 201e3, 200e3, 201e3});
  set_dispatch(&contender, {200e3, 300e3, 301e3, 201e3, 300e3, 300e3}, 30);
  EXPECT_THAT(row_of(gate(base, contender), "dispatch_ns").reason, HasSubstr("two states"));
  set_dispatch(&contender, {200e3, 215e3, 231e3, 244e3, 262e3, 275e3}, 30);
  EXPECT_THAT(row_of(gate(base, contender), "dispatch_ns").reason, HasSubstr("drifts by"));
  EXPECT_EQ(gate(base, contender).exit_code, kExitInconclusive);
}

TEST_F(GateTest, ADriftThatCouldExplainAChangeTakesTheVerdictAway) {
  LaunchSet base = side(config(1)), contender = base;
  // 3 us a minute on the baseline; the contender, 20 minutes later, is 30 us above.
  set_dispatch(&base, {200e3, 203e3, 206e3, 209e3, 212e3, 215e3});
  set_dispatch(&contender, {238e3, 237e3, 238e3, 237e3, 238e3, 237e3}, 20 * 60);
  const GateResult result = gate(base, contender);
  EXPECT_THAT(result.notes.front(), HasSubstr("do not interleave"));
  EXPECT_EQ(row_of(result, "dispatch_ns").verdict, Verdict::kInconclusive);
  EXPECT_THAT(row_of(result, "dispatch_ns").reason, HasSubstr("the launches drift by 15.0 us"));
  set_dispatch(&contender, {238e3, 237e3, 238e3, 237e3, 238e3, 237e3}, 30);
  EXPECT_EQ(row_of(gate(base, contender), "dispatch_ns").verdict, Verdict::kRegressed);
  // A drift is not carried on past what was seen: a day later twice as much is still red.
  set_dispatch(&contender, {400e3, 401e3, 400e3, 401e3, 400e3, 401e3}, 24 * 3600);
  EXPECT_EQ(row_of(gate(base, contender), "dispatch_ns").verdict, Verdict::kRegressed);
}

TEST_F(GateTest, BudgetsNeedNoBaseline) {
  const LaunchSet run = side(config(1));
  const std::string rule = "[[rule]]\nmetric = \"dispatch_ns\"\nmax_ns = ";
  EXPECT_EQ(gate_with(rule + "300000\n", nullptr, run).exit_code, kExitPass);
  EXPECT_EQ(gate_with(rule + "100000\n", nullptr, run).exit_code, kExitRegressed);
  EXPECT_THROW(gate_with("[[rule]]\nmetric = \"dispatch_ns\"\n", nullptr, run), ConfigError);
}

TEST_F(GateTest, RatiosComparePathsOfOneRun) {
  GeneratorConfig two = config(1);
  two.cases.push_back(two.cases[0]);
  two.cases[0].name = "fused_in_graph";
  two.cases[0].path = "fused_in_graph";
  two.cases[0].dispatch_ns = 10'000;
  two.cases[1].name = "aten";
  two.cases[1].path = "aten";
  LaunchSet run = side(two);
  for (auto& [name, values] : run.case_values) values["step"]["path"] = name;
  const std::string rule =
      "[[rule]]\nmetric = \"dispatch_ns\"\ncases = \"fused_in_graph\"\nratio_to_path = \"aten\"\n"
      "max_ratio = ";
  EXPECT_EQ(gate_with(rule + "0.2\n", nullptr, run).exit_code, kExitPass);
  EXPECT_EQ(gate_with(rule + "0.01\n", nullptr, run).exit_code, kExitRegressed);
}

TEST_F(GateTest, ARuleThatMatchesNoCaseIsRefused) {
  const LaunchSet run = side(config(1));
  EXPECT_THROW(gate_with("[[rule]]\nmetric = \"dispatch_ns\"\ncases = \"nothing*\"\n", &run, run),
               ConfigError);
}

TEST_F(GateTest, AWaiverHoldsUntilItExpiresAndIsReportedWhenUnused) {
  const LaunchSet base = side(config(1)), slow = side(config(2, 300'000));
  const std::string rule = "[[rule]]\nmetric = \"dispatch_ns\"\n";
  const auto waiver = [](const char* until) {
    return std::string("[[waiver]]\nmetric = \"dispatch_ns\"\nreason = \"known\"\nexpires = ") +
           until + "\n";
  };
  const GateResult waived = gate_with(rule + waiver("2026-06-01"), &base, slow);
  EXPECT_EQ(waived.exit_code, kExitPass);
  EXPECT_THAT(waived.headline, HasSubstr("1 regressed and waived"));
  EXPECT_EQ(row_of(waived, "dispatch_ns").waived, "known");
  const GateResult expired = gate_with(rule + waiver("2026-05-31"), &base, slow);
  EXPECT_EQ(expired.exit_code, kExitRegressed);
  EXPECT_THAT(expired.notes.back(), HasSubstr("expired on 2026-05-31"));
  EXPECT_THAT(gate_with(rule + waiver("2026-07-01"), &base, base).notes.back(),
              HasSubstr("waived nothing"));
}

TEST_F(GateTest, ABaselineFileGivesTheSameVerdictAsItsRuns) {
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

TEST_F(GateTest, SeveralRunsMergeIntoOneSide) {
  LaunchSet merged = side(config(1, 200'000, 2));
  merge(&merged, side(config(2, 200'000, 2)));
  EXPECT_EQ(merged.launches.size(), 4u);
  LaunchSet other = side(config(3));
  other.world_size = 4;
  EXPECT_THROW(merge(&merged, other), ConfigError);
}

TEST_F(GateTest, ALaunchCountsOnceHoweverOftenItIsNamed) {
  const LaunchSet once = side(config(1, 200'000, 1));
  LaunchSet again = once;
  EXPECT_THROW(merge(&again, once), ConfigError);
  LaunchSet copied = once;  // the same record under another name
  copied.launches[0].source = "elsewhere";
  again = once;
  again.launches[0].began_ns = copied.launches[0].began_ns = 12345;
  EXPECT_THROW(merge(&again, copied), ConfigError);
}

TEST_F(GateTest, ALaunchWithoutTheCaseOrTheMetricIsNeverLeftOut) {
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

TEST_F(GateTest, ACaseThatOnlyOneRunOfASideHasIsRefused) {
  GeneratorConfig two = config(2);
  two.cases.push_back(two.cases[0]);
  two.cases[1].name = "fused/bs16";
  LaunchSet merged = side(config(1));
  EXPECT_THROW(merge(&merged, side(two)), ConfigError);
}

TEST_F(GateTest, AKeyThatDoesNotExistCannotBeAllowed) {
  const LaunchSet set = side(config(1));
  EXPECT_THROW(gate(set, set, {"step.op_overhead"}), ConfigError);
}

TEST_F(GateTest, ARankWithoutControlsVoidsTheRun) {
  GeneratedRun run = generate_run(config(2));
  std::erase_if(run.info.controls, [](const RunControl& control) { return control.rank == 1; });
  const GateResult result = gate(side(config(1)), read_launches(record(std::move(run))));
  EXPECT_NE(result.exit_code, kExitPass) << result.headline;
}

TEST_F(GateTest, ABaselineWithImpossibleValuesIsRefused) {
  const Json good = launch_set_to_json(side(config(1)));
  Json bad = good;
  bad["launches"][0]["cases"]["fused/bs8"]["metrics"]["dispatch_ns"]["p50"] =
      18446744073709551615ull;
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

TEST_F(GateTest, TheNoiseOfInitIsReadBackAsALimit) {
  LaunchSet set = side(config(1, 200'000, 8));
  set_dispatch(&set, {200e3, 260e3, 210e3, 150e3, 240e3, 190e3, 230e3, 170e3});
  const Thresholds read = parse_thresholds(thresholds_with_noise(set), "made.toml", gate_metrics());
  EXPECT_EQ(read.rules.front().metric, "dispatch_ns");
  // Standard deviation 36 us, 8 launches, t(7) at 0.995 is 3.499: 3.499 * 2 * 36.4 / sqrt(8).
  EXPECT_NEAR(read.rules.front().noise_ns, 90'500, 1'500);
  EXPECT_THROW(thresholds_with_noise(side(config(1, 200'000, 5))), ConfigError);
}

TEST_F(GateTest, ReportsForCiCountWhatTheyShow) {
  const GateResult red = gate(side(config(1)), side(config(2, 400'000)));
  const std::string junit = gate_junit(red);
  EXPECT_THAT(junit, HasSubstr("tests=\"9\" failures=\"2\" errors=\"0\" skipped=\"0\""));
  EXPECT_THAT(junit, HasSubstr("<failure message=\"regressed:"));
  LaunchSet without = side(config(2));
  without.launches[2].control.empty_graph_launch_after.reset();
  const std::string voided = gate_junit(gate(side(config(1)), without));
  EXPECT_THAT(voided, HasSubstr("<error message=\"void:"));
  EXPECT_THAT(gate_annotations(red, "github"), HasSubstr("::error title=tpjitter regressed::"));
}

TEST_F(GateTest, TheMarkdownStaysUnderSixtyLinesAndEscapesNames) {
  GeneratorConfig many = config(1, 200'000, 3);
  many.steps = 40;
  many.cases.clear();
  for (int i = 0; i < 40; ++i) {
    GeneratedCase c;
    c.name = "<b>case|" + std::to_string(i);
    many.cases.push_back(c);
  }
  const LaunchSet set = side(many);
  const std::string text = gate_markdown(gate(set, set));
  EXPECT_LT(std::count(text.begin(), text.end(), '\n'), 60);
  EXPECT_THAT(text, Not(HasSubstr("<b>")));
  EXPECT_THAT(text, HasSubstr("more rows"));
}

}  // namespace
}  // namespace tpjitter
