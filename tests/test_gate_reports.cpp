// What the gate writes for CI systems and people.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/contract/error.h"
#include "reports/gate_exports.h"
#include "tests/gate_fixture.h"

namespace tpjitter {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

using GateReports = GateTest;

TEST_F(GateReports, ReportsForCiCountWhatTheyShow) {
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

TEST_F(GateReports, TheMarkdownStaysUnderSixtyLinesAndEscapesNames) {
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

TEST_F(GateReports, ACodeQualityReportHoldsWhatGitLabReads) {
  LaunchSet base = side(config(1)), slow = side(config(2, 400'000));
  const std::string rule = "[[rule]]\nmetric = \"dispatch_ns\"\n";
  const GateResult red = gate_with(rule, &base, slow);
  ASSERT_EQ(red.exit_code, kExitRegressed);
  const Json findings = parse_strict_json(gate_annotations(red, "gitlab"), "findings");
  ASSERT_EQ(findings.size(), 2u);  // the row and the verdict
  EXPECT_EQ(findings[0]["severity"], "critical");
  EXPECT_EQ(findings[0]["location"]["path"], "ci/t.toml");
  EXPECT_EQ(findings[0]["location"]["lines"]["begin"], 2);
  EXPECT_THAT(findings[0]["description"].get<std::string>(), HasSubstr("dispatch_ns p50"));
  EXPECT_NE(findings[0]["fingerprint"], findings[1]["fingerprint"]);
  // The same finding with other figures keeps its fingerprint.
  const Json later = parse_strict_json(
      gate_annotations(gate_with(rule, &base, side(config(3, 500'000))), "gitlab"), "findings");
  EXPECT_EQ(findings[0]["fingerprint"], later[0]["fingerprint"]);
  EXPECT_EQ(parse_strict_json(gate_annotations(gate_with(rule, &base, base), "gitlab"), "f").size(),
            0u);
}

TEST_F(GateReports, RulesOnOneMetricHaveFingerprintsOfTheirOwn) {
  LaunchSet base = side(config(1)), slow = side(config(2, 400'000));
  const std::string rule = "[[rule]]\nmetric = \"dispatch_ns\"\n";
  const auto fingerprints = [&](const std::string& text) {
    std::vector<std::string> found;
    const GateResult result = gate_with(text, &base, slow);
    for (const Json& entry : parse_strict_json(gate_annotations(result, "gitlab"), "f")) {
      found.push_back(entry["fingerprint"].get<std::string>());
    }
    return found;
  };
  const auto two = fingerprints(rule + rule + "absolute_floor_ns = 50000\n");
  ASSERT_EQ(two.size(), 3u);
  EXPECT_NE(two[0], two[1]);
  // Alike but for their limit, from the same source.
  const auto budgets = fingerprints(rule + "max_ns = 100000\n" + rule + "max_ns = 200000\n");
  ASSERT_EQ(budgets.size(), 3u);
  EXPECT_NE(budgets[0], budgets[1]);
  // Lines further up change none, nor does another rule that comes to pass.
  EXPECT_EQ(fingerprints("\n\n" + rule + rule + "absolute_floor_ns = 50000\n"), two);
  const auto one = fingerprints(rule + "max_ns = 900000\n" + rule + "max_ns = 200000\n");
  ASSERT_EQ(one.size(), 2u);
  EXPECT_EQ(one[0], budgets[1]);
}

TEST_F(GateReports, TheOrderOfLaunchesIsInEveryForm) {
  LaunchSet base = side(config(1)), contender = base;
  set_dispatch(&base, {200e3, 203e3, 206e3, 209e3, 212e3, 215e3});
  set_dispatch(&contender, {238e3, 237e3, 238e3, 237e3, 238e3, 237e3}, 20 * 60);
  const GateResult result = gate(base, contender);
  EXPECT_THAT(gate_text(result), HasSubstr("do not take turns"));
  EXPECT_THAT(gate_markdown(result), HasSubstr("drift over the launches +15.0 us"));
  const Json json = gate_json(result);
  EXPECT_EQ(json["order"]["interleaved"], false);
  EXPECT_NEAR(json["rows"][0]["order"]["bias_ns"].get<double>(), 15e3, 1);
  EXPECT_EQ(json["rows"][0]["order"]["bias_source"], "drift between launches");
}

}  // namespace
}  // namespace tpjitter
