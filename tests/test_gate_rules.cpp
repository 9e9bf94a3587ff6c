// Rules of a thresholds file: budgets, ratios, phases, waivers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/contract/error.h"
#include "reports/baseline.h"
#include "tests/gate_fixture.h"

namespace tpjitter {
namespace {

using ::testing::HasSubstr;

using GateRules = GateTest;

TEST_F(GateRules, BudgetsNeedNoBaseline) {
  const LaunchSet run = side(config(1));
  const std::string rule = "[[rule]]\nmetric = \"dispatch_ns\"\nmax_ns = ";
  EXPECT_EQ(gate_with(rule + "300000\n", nullptr, run).exit_code, kExitPass);
  EXPECT_EQ(gate_with(rule + "100000\n", nullptr, run).exit_code, kExitRegressed);
  EXPECT_THROW(gate_with("[[rule]]\nmetric = \"dispatch_ns\"\n", nullptr, run), ConfigError);
}

TEST_F(GateRules, RatiosComparePathsOfOneRun) {
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

TEST_F(GateRules, ARuleThatMatchesNoCaseIsRefused) {
  const LaunchSet run = side(config(1));
  EXPECT_THROW(gate_with("[[rule]]\nmetric = \"dispatch_ns\"\ncases = \"nothing*\"\n", &run, run),
               ConfigError);
}

TEST_F(GateRules, AWaiverHoldsUntilItExpiresAndIsReportedWhenUnused) {
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

TEST_F(GateRules, ABudgetIsJudgedByItsIntervalAndDoubtedAsAChangeIs) {
  LaunchSet run = side(config(1));
  const auto verdict_of = [&](std::vector<double> values, int max_ns) {
    set_dispatch(&run, values);
    return gate_with(
               "[[rule]]\nmetric = \"dispatch_ns\"\nmax_ns = " + std::to_string(max_ns) + "\n",
               nullptr, run)
        .rows.at(0);
  };
  // Its mean is above the budget, but the launches cannot tell.
  const GateRow unsure = verdict_of({190e3, 230e3, 205e3, 185e3, 220e3, 200e3}, 200'000);
  EXPECT_EQ(unsure.verdict, Verdict::kInconclusive);
  EXPECT_THAT(unsure.reason, HasSubstr("launches would do"));
  ASSERT_TRUE(unsure.detectable && unsure.launches_needed);
  EXPECT_GT(*unsure.launches_needed, 6);
  EXPECT_EQ(verdict_of({190e3, 230e3, 205e3, 185e3, 220e3, 200e3}, 120'000).verdict,
            Verdict::kRegressed);
  EXPECT_EQ(verdict_of({190e3, 230e3, 205e3, 185e3, 220e3, 200e3}, 300'000).verdict,
            Verdict::kPass);
  EXPECT_THAT(verdict_of({100e3, 101e3, 300e3, 301e3, 300e3, 301e3}, 250'000).reason,
              HasSubstr("two states, with the limit between them"));
  EXPECT_THAT(verdict_of({100e3, 130e3, 165e3, 190e3, 225e3, 250e3}, 200'000).reason,
              HasSubstr("drift across the limit"));
}

TEST_F(GateRules, BudgetsCountAmongTheFalseDiscoveries) {
  LaunchSet run = side(config(1));
  set_dispatch(&run, {200e3, 206e3, 201e3, 199e3, 207e3, 203e3});
  const std::string rule = "[[rule]]\nmetric = \"dispatch_ns\"\nmax_ns = 197900\n";
  // Alone its p is just below 1 %; among nine that hold it is not enough.
  const GateResult alone = gate_with(rule, nullptr, run);
  EXPECT_EQ(alone.exit_code, kExitRegressed) << alone.headline << *alone.rows[0].p_value;
  std::string many = rule;
  for (int i = 0; i < 9; ++i) many += "[[rule]]\nmetric = \"dispatch_ns\"\nmax_ns = 900000\n";
  EXPECT_EQ(gate_with(many, nullptr, run).exit_code, kExitInconclusive);
}

TEST_F(GateRules, APathThatNoCaseHasIsRefused) {
  const LaunchSet run = side(config(1));
  try {
    gate_with("[[rule]]\nmetric = \"dispatch_ns\"\nratio_to_path = \"attn\"\nmax_ratio = 0.2\n",
              nullptr, run);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("ci/t.toml:2:1: key `ratio_to_path`: no case of the "
                                        "contender is on path \"attn\"; it has: fused"));
  }
}

class GatePhases : public GateTest {
 protected:
  LaunchSet speculative(std::uint64_t seed) {
    GeneratorConfig mixed = config(seed);
    mixed.cases[0].speculative = true;
    return side(mixed);
  }
  // +50 % dispatch in one phase of every launch, which the median of all does not show.
  static void slow_down(LaunchSet* set, const std::string& phase) {
    for (LaunchResult& launch : set->launches) {
      Distribution& values = launch.cases.begin()->second.phases.at(phase)[1];
      values.p50 = *values.p50 * 3 / 2;
    }
  }
};

TEST_F(GatePhases, OnePhaseIsFoundWhereAllTogetherDoNotShowIt) {
  const LaunchSet base = speculative(1);
  LaunchSet contender = speculative(2);
  ASSERT_EQ(contender.launches[0].cases.begin()->second.phases.size(), 3u);
  slow_down(&contender, "target_verify");
  const std::string rule = "[[rule]]\nmetric = \"dispatch_ns\"\n";
  EXPECT_EQ(gate_with(rule, &base, contender).exit_code, kExitPass);
  const GateResult apart = gate_with(rule + "phase = \"*\"\n", &base, contender);
  EXPECT_EQ(apart.exit_code, kExitRegressed);
  EXPECT_EQ(apart.rows.size(), 3u);
  EXPECT_THAT(apart.headline, HasSubstr("dispatch_ns p50 of fused/bs8, phase target_verify"));
  EXPECT_EQ(gate_with(rule + "phase = \"target_verify\"\n", &base, contender).exit_code,
            kExitRegressed);
  EXPECT_EQ(gate_with(rule + "phase = \"draft_decode\"\n", &base, contender).exit_code, kExitPass);
  // Without a file each phase is listed, and decides nothing.
  const GateResult listed = gate(base, contender);
  EXPECT_EQ(listed.exit_code, kExitPass);
  bool seen = false;
  for (const GateRow& row : listed.rows) {
    if (row.phase.empty()) continue;
    EXPECT_FALSE(row.required);
    seen = seen || (row.phase == "target_verify" && row.verdict == Verdict::kRegressed);
  }
  EXPECT_TRUE(seen);
}

TEST_F(GatePhases, APhaseThatNoCaseMixesIsRefused) {
  const LaunchSet plain = side(config(1)), mixed = speculative(1);
  const std::string rule = "[[rule]]\nmetric = \"dispatch_ns\"\nphase = \"target_verify\"\n";
  EXPECT_THROW(gate_with(rule, &plain, plain), ConfigError);
  EXPECT_THROW(gate_with("[[rule]]\nmetric = \"step_ns\"\nphase = \"*\"\n", &mixed, mixed),
               ConfigError);
  EXPECT_THROW(gate_with("[[rule]]\nmetric = \"dispatch_ns\"\nphase = \"decode\"\n", &mixed, mixed),
               ConfigError);
  // One phase: "*" is the case itself.
  EXPECT_EQ(
      gate_with("[[rule]]\nmetric = \"dispatch_ns\"\nphase = \"*\"\n", &plain, plain).rows.size(),
      1u);
}

TEST_F(GatePhases, ABaselineFileKeepsThemApart) {
  const LaunchSet base = speculative(1);
  const Json document = launch_set_to_json(base);
  const LaunchSet again = launch_set_from_json(Json::parse(document.dump()), "b.json");
  EXPECT_EQ(launch_set_to_json(again), document);
  Json older = document;  // written before phases were kept apart
  for (Json& launch : older["launches"]) launch["cases"]["fused/bs8"].erase("phases");
  const LaunchSet without = launch_set_from_json(older, "b.json");
  EXPECT_EQ(gate(without, base).exit_code, kExitPass);
  const GateResult result =
      gate_with("[[rule]]\nmetric = \"dispatch_ns\"\nphase = \"*\"\n", &without, base);
  EXPECT_EQ(result.exit_code, kExitNothingMeasured);
  EXPECT_THAT(result.headline, HasSubstr("a baseline file without them is too old"));
}

TEST_F(GatePhases, APhaseThatTheContenderLostIsNotPassedOver) {
  const LaunchSet base = speculative(1);
  LaunchSet contender = speculative(2);
  for (LaunchResult& launch : contender.launches) {
    launch.cases.begin()->second.phases.erase("target_verify");
  }
  for (const std::string phase : {"*", "target_verify"}) {
    const GateResult result = gate_with(
        "[[rule]]\nmetric = \"dispatch_ns\"\nphase = \"" + phase + "\"\n", &base, contender);
    EXPECT_EQ(result.rows.size(), phase == "*" ? 3u : 1u);
    EXPECT_EQ(result.exit_code, kExitNothingMeasured);
    EXPECT_THAT(result.headline, HasSubstr("phase target_verify: no launch has a value"));
  }
  const GateResult listed = gate(base, contender);
  EXPECT_EQ(listed.exit_code, kExitPass);
  EXPECT_TRUE(std::any_of(listed.rows.begin(), listed.rows.end(), [](const GateRow& row) {
    return row.phase == "target_verify" && row.verdict == Verdict::kNothingMeasured;
  }));
}

}  // namespace
}  // namespace tpjitter
