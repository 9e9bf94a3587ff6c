// Who is delayed when, and that every rank and the analysis agree on it.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "harness/contract/delay_ladder.h"
#include "harness/injection.h"
#include "harness/selftest.h"

namespace tpjitter {
namespace {

std::vector<int> turns(const Victims& victims, int steps) {
  std::vector<int> times(static_cast<std::size_t>(victims.world_size));
  for (int step = 0; step < steps; ++step) {
    const int victim = victims.of_step(step);
    if (victim >= 0) ++times.at(static_cast<std::size_t>(victim));
  }
  return times;
}

TEST(RotatingVictims, AreDelayedEquallyOftenInEveryFullRotation) {
  for (int world_size = 1; world_size <= 9; ++world_size) {
    for (const int every : {1, 3}) {
      Victims victims{InjectPattern::kRotating, world_size / 2, world_size, every, 1};
      const int rotation = world_size * every;
      for (int rotations = 1; rotations <= 3; ++rotations) {
        EXPECT_EQ(turns(victims, rotations * rotation),
                  std::vector<int>(static_cast<std::size_t>(world_size), rotations));
      }
      EXPECT_EQ(victims.of_step(0), victims.first);
    }
  }
}

TEST(RotatingVictims, LeaveTheStepsBetweenAlone) {
  const Victims victims{InjectPattern::kRotating, 0, 2, 3, 1};
  std::vector<int> seen;
  for (int step = 0; step < 7; ++step) seen.push_back(victims.of_step(step));
  EXPECT_EQ(seen, (std::vector<int>{0, -1, -1, 1, -1, -1, 0}));
}

TEST(FixedVictims, AreAlwaysTheSameRank) {
  const Victims victims{InjectPattern::kFixed, 2, 4, 1, 1};
  EXPECT_EQ(turns(victims, 100), (std::vector<int>{0, 0, 100, 0}));
}

TEST(RandomVictims, FollowTheSeedAndNothingElse) {
  const auto drawn = [](std::uint64_t seed) {
    const Victims victims{InjectPattern::kRandom, 0, 4, 1, seed};
    std::vector<int> ranks;
    for (int step = 0; step < 200; ++step) ranks.push_back(victims.of_step(step));
    return ranks;
  };
  EXPECT_EQ(drawn(7), drawn(7));
  EXPECT_NE(drawn(7), drawn(8));
  // The same on every machine: a record made elsewhere is judged here.
  std::vector<int> first = drawn(1);
  first.resize(8);
  EXPECT_EQ(first, (std::vector<int>{1, 1, 3, 2, 3, 1, 0, 1}));
}

TEST(RandomVictims, AreEveryRankAboutEquallyOften) {
  const Victims victims{InjectPattern::kRandom, 0, 4, 1, 3};
  for (const int times : turns(victims, 4000)) {
    EXPECT_GT(times, 850);
    EXPECT_LT(times, 1150);
  }
}

TEST(Injection, DelaysOneRankAtATimeAndAllRanksKnowWhich) {
  CaseConfig config;
  config.inject_where = "gpu";
  config.inject_pattern = "random";
  config.inject_delay_us = 2.5;
  for (int step = 0; step < 50; ++step) {
    int delayed = 0;
    for (int rank = 0; rank < 3; ++rank) {
      const Injection injection = Injection::of(config, rank, 3);
      EXPECT_EQ(injection.victim(step), Injection::of(config, 0, 3).victim(step));
      EXPECT_EQ(injection.delay_ns(step), injection.victim(step) == rank ? 2500 : 0);
      delayed += injection.delay_ns(step) > 0 ? 1 : 0;
    }
    EXPECT_EQ(delayed, 1);
  }
}

TEST(Injection, WithoutAPlaceDelaysNobody) {
  CaseConfig config;
  config.inject_delay_us = 50;
  EXPECT_EQ(Injection::of(config, 0, 2).victim(0), -1);
}

TEST(SelftestScenario, ClimbsTheLadderAtEveryPlaceInFullRotations) {
  for (const int world_size : {2, 3, 64}) {
    const Scenario scenario = selftest_scenario(world_size, kSelftestDelays);
    EXPECT_EQ(scenario.cases.size(), kDelayPlaces.size() * (kDelayLadderUs.size() + 2));
    for (const Scenario::Case& c : scenario.cases) {
      EXPECT_EQ(case_from_json(case_to_json(c.config)), c.config) << "within the field table";
      EXPECT_EQ(c.config.steps % world_size, 0);
      EXPECT_EQ(c.config.block_steps, c.config.steps) << "one first step, so one rotation is lost";
      EXPECT_LT(c.config.inject_victim, world_size);
    }
  }
}

}  // namespace
}  // namespace tpjitter
