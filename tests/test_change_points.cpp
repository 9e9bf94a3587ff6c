#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "reports/change_points.h"

namespace tpjitter {
namespace {

// Annual flow of the Nile at Aswan, 1871 to 1970, 10^8 m^3 (Cobb 1978): the published change is
// after 1898, the 28th year.
const std::vector<double> kNile = {
    1120, 1160, 963, 1210, 1160, 1160, 813,  1230, 1370, 1140, 995,  935,  1110, 994,  1020,
    960,  1180, 799, 958,  1140, 1100, 1210, 1150, 1250, 1260, 1220, 1030, 1100, 774,  840,
    874,  694,  940, 833,  701,  916,  692,  1020, 1050, 969,  831,  726,  456,  824,  702,
    1120, 1100, 832, 764,  821,  768,  845,  864,  862,  698,  845,  744,  796,  1040, 759,
    781,  865,  845, 944,  984,  897,  822,  1010, 771,  676,  649,  846,  812,  742,  801,
    1040, 860,  874, 848,  890,  744,  749,  838,  1050, 918,  986,  797,  923,  975,  815,
    1020, 906,  901, 1170, 912,  746,  919,  718,  714,  740};

TEST(ChangePoints, FindsThePublishedChangeOfTheNile) {
  ASSERT_EQ(kNile.size(), 100u);
  const auto changes = change_points(kNile);
  ASSERT_GE(changes.size(), 1u);
  bool found = false;
  for (const ChangePoint& change : changes) {
    found = found || (change.index >= 27 && change.index <= 29 && change.after < change.before);
  }
  EXPECT_TRUE(found);
}

TEST(ChangePoints, FindsTwoStepsAndTheirLevels) {
  std::mt19937_64 random(3);
  std::normal_distribution<double> noise(0, 1);
  std::vector<double> values;
  for (int i = 0; i < 60; ++i)
    values.push_back((i < 20 ? 100 : i < 40 ? 110 : 104) + noise(random));
  const auto changes = change_points(values);
  ASSERT_EQ(changes.size(), 2u);
  EXPECT_NEAR(static_cast<double>(changes[0].index), 20, 1);
  EXPECT_NEAR(static_cast<double>(changes[1].index), 40, 1);
  EXPECT_NEAR(changes[0].before, 100, 1);
  EXPECT_NEAR(changes[0].after, 110, 1);
  EXPECT_NEAR(changes[1].after, 104, 1);
}

TEST(ChangePoints, NoAlarmOnSeriesWithoutAChange) {
  EXPECT_TRUE(change_points(std::vector<double>(50, 1e9 / 3)).empty());
  EXPECT_TRUE(change_points(std::vector<double>{1, 100}).empty());
  EXPECT_TRUE(change_points(std::vector<double>{}).empty());
  std::vector<double> broken(30, 5);
  broken[10] = std::numeric_limits<double>::quiet_NaN();
  for (int i = 15; i < 30; ++i) broken[i] = 50;
  EXPECT_TRUE(change_points(broken).empty());
  std::vector<double> spike(30, 5);
  spike[12] = 500;  // one outlier is no change
  EXPECT_TRUE(change_points(spike).empty());
}

TEST(ChangePoints, FalseAlarmsAreAsRareAsTheLevelSays) {
  std::mt19937_64 random(5);
  std::lognormal_distribution<double> heavy(0, 0.5);
  int alarms = 0;
  constexpr int kSeries = 200;
  for (int i = 0; i < kSeries; ++i) {
    std::vector<double> values;
    for (int k = 0; k < 20; ++k) values.push_back(heavy(random));
    alarms += !change_points(values).empty();
  }
  // 2 are expected; 9 or more have a probability below 0.001.
  EXPECT_LT(alarms, 9);
}

}  // namespace
}  // namespace tpjitter
