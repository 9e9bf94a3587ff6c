#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "reports/gate_statistics.h"

namespace tpjitter {
namespace {

using Values = std::vector<double>;

// Two samples whose Welch test is printed in textbooks (variances 4 and 10, say): computed by hand.
TEST(Welch, GivesTheHandComputedStatistic) {
  const Values base = {10, 12, 14}, contender = {20, 24, 28};
  const auto result = welch(base, contender);
  ASSERT_TRUE(result);
  EXPECT_DOUBLE_EQ(result->effect, 12);
  // variances 4 and 16, error sqrt(4/3 + 16/3)
  EXPECT_NEAR(result->standard_error, std::sqrt(20.0 / 3), 1e-12);
  // (20/3)^2 / ((4/3)^2/2 + (16/3)^2/2)
  EXPECT_NEAR(result->degrees_of_freedom, (400.0 / 9) / ((16.0 / 9 + 256.0 / 9) / 2), 1e-12);
  // t = 4.6476 with 2.94 degrees of freedom
  EXPECT_NEAR(result->p_greater, 0.0098, 0.0005);
  EXPECT_NEAR(result->p_greater + result->p_less, 1, 1e-12);
  EXPECT_LT(result->low, 12);
  EXPECT_GT(result->low, 0);
}

TEST(Welch, NeedsTwoValuesASide) {
  EXPECT_FALSE(welch(Values{1}, Values{1, 2}));
  EXPECT_FALSE(welch(Values{1, 2}, Values{}));
}

TEST(Welch, EqualConstantSidesShowNoEffect) {
  const auto result = welch(Values{5, 5, 5}, Values{5, 5, 5});
  ASSERT_TRUE(result);
  EXPECT_EQ(result->effect, 0);
  EXPECT_EQ(result->p_greater, 1);
  EXPECT_EQ(detectable_effect(*result), 0);
}

TEST(Welch, TheIntervalHoldsTheTruthAsOftenAsItSays) {
  std::mt19937_64 random(7);
  std::normal_distribution<double> base(100, 1), contender(103, 4);
  int inside = 0;
  constexpr int kRuns = 4000;
  for (int i = 0; i < kRuns; ++i) {
    Values a, b;
    for (int k = 0; k < 5; ++k) a.push_back(base(random));
    for (int k = 0; k < 7; ++k) b.push_back(contender(random));
    const auto result = welch(a, b);
    inside += result->low <= 3 && 3 <= result->high;
  }
  const Interval share = wilson_interval(inside, kRuns, 0.999);
  EXPECT_LT(share.low, 0.955);
  EXPECT_GT(share.high, 0.945);
}

TEST(DetectableEffect, IsFoundWithTheStatedPower) {
  std::mt19937_64 random(11);
  std::normal_distribution<double> noise(0, 1);
  constexpr int kRuns = 4000;
  constexpr int kLaunches = 10;
  // The effect that the true spread makes detectable.
  const int needed = *launches_needed(Values{0, std::sqrt(2.0)}, Values{0, std::sqrt(2.0)}, 1.93);
  EXPECT_EQ(needed, kLaunches);
  int found = 0;
  for (int i = 0; i < kRuns; ++i) {
    Values a, b;
    for (int k = 0; k < kLaunches; ++k) {
      a.push_back(noise(random));
      b.push_back(noise(random) + 1.93);
    }
    found += welch(a, b)->p_greater < kGateAlpha;
  }
  EXPECT_GT(wilson_interval(found, kRuns, 0.999).high, kGatePower);
}

TEST(BenjaminiHochberg, GivesThePublishedAdjustedValues) {
  // Benjamini and Hochberg 1995, section 3.2: 15 p-values; at 0.05 four are rejected.
  const Values p = {0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344,
                    0.0459, 0.3240, 0.4262, 0.5719, 0.6528, 0.7590, 1.000};
  const Values adjusted = benjamini_hochberg(p);
  EXPECT_NEAR(adjusted[0], 0.0015, 1e-12);
  EXPECT_NEAR(adjusted[3], 0.0095 * 15 / 4, 1e-12);
  int rejected = 0;
  for (const double value : adjusted) rejected += value <= 0.05;
  EXPECT_EQ(rejected, 4);
  EXPECT_TRUE(benjamini_hochberg(Values{}).empty());
}

TEST(BenjaminiHochberg, KeepsTheOrderOfItsInput) {
  const Values adjusted = benjamini_hochberg(Values{0.9, 0.01, 0.5});
  EXPECT_NEAR(adjusted[1], 0.03, 1e-12);
  EXPECT_NEAR(adjusted[2], 0.75, 1e-12);
  EXPECT_NEAR(adjusted[0], 0.9, 1e-12);
}

TEST(Trend, ExactPValuesOfShortSeries) {
  // Six rising values: 2 of 720 orders are as extreme.
  EXPECT_NEAR(trend_p_value(Values{1, 2, 3, 4, 5, 6}), 2.0 / 720, 1e-12);
  EXPECT_NEAR(trend_p_value(Values{4, 3, 2, 1}), 2.0 / 24, 1e-12);
  EXPECT_EQ(trend_p_value(Values{1, 2, 3}), 1);
  EXPECT_EQ(trend_p_value(Values{3, 3, 3, 3, 3}), 1);
}

TEST(Trend, LongSeriesUseTheNormalApproximation) {
  Values rising, same;
  for (int i = 0; i < 30; ++i) {
    rising.push_back(i);
    same.push_back(i % 2);
  }
  EXPECT_LT(trend_p_value(rising), 1e-10);
  EXPECT_GT(trend_p_value(same), 0.5);
}

TEST(TheilSen, OneOutlierDoesNotMoveTheSlope) {
  EXPECT_DOUBLE_EQ(theil_sen_slope(Values{0, 1, 2, 3, 4}, Values{0, 2, 4, 6, 8}), 2);
  EXPECT_DOUBLE_EQ(theil_sen_slope(Values{0, 1, 2, 3, 4}, Values{0, 2, 400, 6, 8}), 2);
  EXPECT_EQ(theil_sen_slope(Values{1, 1}, Values{3, 9}), 0);
}

TEST(Bistable, SeesTwoClustersAndNotASpread) {
  EXPECT_NEAR(*bistable_gap(Values{2.9, 3.4, 2.91, 3.41, 2.9, 3.4}, 0.1), 0.49, 1e-9);
  EXPECT_FALSE(bistable_gap(Values{2.9, 3.4, 2.91, 3.41}, 1.0));
  EXPECT_FALSE(bistable_gap(Values{1, 2, 3, 4, 5}, 0.1));
  EXPECT_FALSE(bistable_gap(Values{1, 1, 1, 9}, 0.1));  // one outlier is no state
}

TEST(Wilson, GivesThePublishedInterval) {
  // Newcombe 1998, 81 of 263: 0.2553 to 0.3662.
  const Interval interval = wilson_interval(81, 263, 0.95);
  EXPECT_NEAR(interval.low, 0.2553, 5e-5);
  EXPECT_NEAR(interval.high, 0.3662, 5e-5);
  EXPECT_EQ(wilson_interval(0, 20, 0.95).low, 0);
}

TEST(GateStatistics, ValuesAgainstAFixedOneAreStudentsTest) {
  // Mean 3, s = 1.5811, t = 1.4142 with 4 degrees of freedom; t(4) at 97.5 % is 2.7764.
  const std::vector<double> values{1, 2, 3, 4, 5};
  const auto result = against_value(values, 2);
  ASSERT_TRUE(result);
  EXPECT_DOUBLE_EQ(result->effect, 1);
  EXPECT_NEAR(result->p_greater, 0.11510, 1e-5);
  EXPECT_NEAR(result->p_less, 0.88490, 1e-5);
  EXPECT_NEAR(result->high, 1 + 2.77645 * 0.70711, 1e-4);
  EXPECT_FALSE(against_value(std::vector<double>{1}, 2));
  EXPECT_EQ(against_value(std::vector<double>{2, 2, 2}, 2)->p_greater, 1);
  EXPECT_EQ(against_value(std::vector<double>{3, 3, 3}, 2)->p_greater, 0);
}

}  // namespace
}  // namespace tpjitter
