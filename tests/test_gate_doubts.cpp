// What takes a verdict away: controls, two states, drifts, and effects of order.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/contract/error.h"
#include "tests/gate_fixture.h"

namespace tpjitter {
namespace {

using ::testing::HasSubstr;

using GateDoubts = GateTest;

TEST_F(GateDoubts, MissingControlsVoidTheRun) {
  LaunchSet without = side(config(2, 400'000));
  without.launches[2].control.empty_graph_launch_after.reset();
  const GateResult result = gate(side(config(1)), without);
  EXPECT_EQ(result.exit_code, kExitInconclusive);
  EXPECT_TRUE(result.is_void);
  EXPECT_THAT(result.headline, HasSubstr("void: empty_graph_launch_ns: contender launch 2 of"));
}

TEST_F(GateDoubts, AnUnstableControlVoidsEvenARegression) {
  LaunchSet contender = side(config(2, 400'000));
  for (LaunchResult& launch : contender.launches) {
    launch.control.zero_skew_after = *launch.control.zero_skew_before + 100'000;
  }
  const GateResult result = gate(side(config(1)), contender);
  EXPECT_EQ(result.exit_code, kExitInconclusive);
  EXPECT_THAT(result.headline, HasSubstr("void: zero_skew_all_reduce_ns: in 6 of 6 contender"));
}

TEST_F(GateDoubts, AControlThatMovedVoidsOnlySmallerEffects) {
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

TEST_F(GateDoubts, TwoStatesAndDriftsAreRecognised) {
  LaunchSet base = side(config(1)), contender = base;
  set_dispatch(&base, {200e3, 201e3, 200e3, 201e3, 200e3, 201e3});
  set_dispatch(&contender, {200e3, 300e3, 301e3, 201e3, 300e3, 300e3}, 30);
  EXPECT_THAT(row_of(gate(base, contender), "dispatch_ns").reason, HasSubstr("two states"));
  set_dispatch(&contender, {200e3, 215e3, 231e3, 244e3, 262e3, 275e3}, 30);
  EXPECT_THAT(row_of(gate(base, contender), "dispatch_ns").reason, HasSubstr("drifts by"));
  EXPECT_EQ(gate(base, contender).exit_code, kExitInconclusive);
}

TEST_F(GateDoubts, ADriftThatCouldExplainAChangeTakesTheVerdictAway) {
  LaunchSet base = side(config(1)), contender = base;
  // 3 us a minute on the baseline; the contender, 20 minutes later, is 30 us above.
  set_dispatch(&base, {200e3, 203e3, 206e3, 209e3, 212e3, 215e3});
  set_dispatch(&contender, {238e3, 237e3, 238e3, 237e3, 238e3, 237e3}, 20 * 60);
  const GateResult result = gate(base, contender);
  EXPECT_THAT(result.notes.front(), HasSubstr("do not interleave"));
  EXPECT_EQ(row_of(result, "dispatch_ns").verdict, Verdict::kInconclusive);
  EXPECT_THAT(row_of(result, "dispatch_ns").reason,
              HasSubstr("the drift between launches can make 15.0 us of it"));
  set_dispatch(&contender, {238e3, 237e3, 238e3, 237e3, 238e3, 237e3}, 30);
  EXPECT_EQ(row_of(gate(base, contender), "dispatch_ns").verdict, Verdict::kRegressed);
  // A drift is not carried on past what was seen: a day later twice as much is still red.
  set_dispatch(&contender, {400e3, 401e3, 400e3, 401e3, 400e3, 401e3}, 24 * 3600);
  EXPECT_EQ(row_of(gate(base, contender), "dispatch_ns").verdict, Verdict::kRegressed);
}

TEST_F(GateDoubts, ARankWithoutControlsVoidsTheRun) {
  GeneratedRun run = generate_run(config(2));
  std::erase_if(run.info.controls, [](const RunControl& control) { return control.rank == 1; });
  const GateResult result = gate(side(config(1)), read_launches(record(std::move(run))));
  EXPECT_NE(result.exit_code, kExitPass) << result.headline;
}

TEST_F(GateDoubts, AWaitBelowTheClockBoundIsNoRegression) {
  LaunchSet base = side(config(1));
  LaunchSet contender = base;
  contender.clock_bound_ns = 70'000;
  const GateResult result = gate(base, contender);
  EXPECT_EQ(row_of(result, "first_all_reduce_excess_wait_ns").limit_source, "clock_bound_ns");
  EXPECT_EQ(row_of(result, "first_all_reduce_excess_wait_ns").limit, 70'000);
  EXPECT_NE(row_of(result, "dispatch_ns").limit_source, "clock_bound_ns");
}

TEST_F(GateDoubts, AStaleBaselineWarns) {
  LaunchSet base = side(config(1)), contender = base;
  const double day = 24 * 60;
  const std::vector<double> flat{200e3, 201e3, 200e3};
  set_dispatch_at(&base, {0, 1, 2}, flat);
  set_dispatch_at(&contender, {20 * day + 5, 20 * day + 6, 20 * day + 7}, flat);
  using ::testing::Contains;
  EXPECT_THAT(gate(base, contender).notes, Contains(HasSubstr("20 days older than the contender")));
  EXPECT_THAT(gate(contender, base).notes, Contains(HasSubstr("20 days older than the baseline")));
  base.launches[0].git_revision = "aaaa";
  base.launches[1].git_revision = "bbbb-dirty";
  const auto notes = gate(base, contender).notes;
  EXPECT_THAT(notes, Contains(HasSubstr("baseline mixes revisions aaaa, bbbb-dirty")));
  EXPECT_THAT(notes, Contains(HasSubstr("changes that nobody committed")));
  contender.versions["nvidia_driver"] = "other";
  EXPECT_THAT(gate(base, contender, {"versions.nvidia_driver"}).notes,
              Contains(HasSubstr("another machine, driver or library")));
  set_dispatch_at(&contender, {3, 4, 5}, flat);
  for (const std::string& note : gate(contender, contender).notes) {
    EXPECT_EQ(note.find("stale"), std::string::npos) << note;
  }
}

TEST_F(GateDoubts, MidnightMakesNobodyADayOlder) {
  LaunchSet base = side(config(1)), contender = base;
  const double day = 24 * 60;
  const std::vector<double> flat{200e3, 201e3, 200e3};
  using ::testing::Contains;
  const auto notes_of = [&](double base_start, double contender_start) {
    set_dispatch_at(&base, {base_start, base_start + 4, base_start + 8}, flat);
    set_dispatch_at(&contender, {contender_start, contender_start + 4, contender_start + 8}, flat);
    return gate(base, contender).notes;
  };
  for (const double contender_start : {day - 6, day - 60, day - 60 * 23}) {
    EXPECT_THAT(notes_of(day - 4, contender_start), ::testing::Not(Contains(HasSubstr("older"))));
  }
  EXPECT_THAT(notes_of(day + 60 * 2, 60), Contains(HasSubstr("1 days older than the baseline")));
  // 13 days and a few hours are no fortnight, whatever dates they fall on.
  EXPECT_THAT(notes_of(day - 60, day * 14), ::testing::Not(Contains(HasSubstr("stale"))));
  EXPECT_THAT(notes_of(day - 60, day * 15), Contains(HasSubstr("14 days older than the cont")));
}

}  // namespace
}  // namespace tpjitter
