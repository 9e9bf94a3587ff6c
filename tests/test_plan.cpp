// What a rank process is told, and the order of a launch.
#include <gtest/gtest.h>

#include <algorithm>

#include "harness/plan.h"

namespace tpjitter {
namespace {

Scenario two_cases() {
  Scenario scenario;
  scenario.file = "some.toml";
  for (const char* path : {"aten", "fused"}) {
    Scenario::Case& c = scenario.cases.emplace_back();
    c.name = c.config.path = path;
    c.config.repetitions = 20;
  }
  return scenario;
}

TEST(RankPlanText, ARankIsToldEverythingThatTheLauncherHasDecided) {
  RankPlan plan;
  plan.backend = "cuda";
  plan.launch = 7;
  plan.pin = false;
  // The second GPU that the launcher sees hangs on node 0, whatever the rank would number it.
  plan.numa_nodes = {1, 0, std::nullopt};
  plan.cases.resize(2);
  plan.cases[1].path = "aten";
  plan.order = {{1, 0}, {0, 3}};
  const RankPlan told = rank_plan_from_text(rank_plan_to_text(plan));
  EXPECT_EQ(told.backend, plan.backend);
  EXPECT_EQ(told.launch, plan.launch);
  EXPECT_EQ(told.pin, plan.pin);
  EXPECT_EQ(told.numa_nodes, plan.numa_nodes);
  EXPECT_EQ(told.cases, plan.cases);
  ASSERT_EQ(told.order.size(), 2u);
  EXPECT_EQ(told.order[1].case_index, 0);
  EXPECT_EQ(told.order[1].repetition, 3);
}

TEST(PlanOrder, ALaunchRunsEachRepetitionOnceInAnOrderOfItsOwn) {
  const Plan plan = make_plan(two_cases(), find_backend("host"), "");
  const auto keys = [&](int launch) {
    std::vector<std::pair<int, int>> of_launch;
    for (const RunOrderEntry& e : plan.order(launch)) {
      of_launch.emplace_back(e.case_index, e.repetition);
    }
    return of_launch;
  };
  EXPECT_EQ(keys(0), keys(0));
  EXPECT_NE(keys(0), keys(1));
  auto first = keys(0), second = keys(1);
  std::sort(first.begin(), first.end());
  std::sort(second.begin(), second.end());
  EXPECT_EQ(first, second);
  EXPECT_EQ(first.size(), 40u);
  EXPECT_EQ(std::unique(first.begin(), first.end()), first.end());
}

}  // namespace
}  // namespace tpjitter
