#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "reports/path_savings.h"

namespace tpjitter {
namespace {

RunCase case_of(const char* path, int batch) {
  RunCase c;
  c.name = std::string(path) + "/bs" + std::to_string(batch);
  c.path = path;
  c.values = Json{{"step", {{"path", path}}}, {"shape", {{"batch_size", batch}}}};
  return c;
}

LaunchLateness launch_of(std::int32_t launch, std::uint64_t replays, double dispatch_sum_ns) {
  LaunchLateness l{.launch = launch, .replays = replays, .sum_ns = {}};
  l.sum_ns[kStageDispatch] = dispatch_sum_ns;
  return l;
}

const Json& dispatch_of(const Json& row) {
  for (const Json& stage : row["stages"]) {
    if (stage["stage"] == "dispatch") return stage;
  }
  throw std::runtime_error("no dispatch stage");
}

TEST(PairedRatio, OfProportionalPairsIsExact) {
  const std::vector<double> base{10, 12, 14, 11}, contender{2, 2.4, 2.8, 2.2};
  const auto ratio = paired_ratio(base, contender);
  ASSERT_TRUE(ratio);
  EXPECT_NEAR(ratio->ratio, 0.2, 1e-12);
  EXPECT_NEAR(*ratio->low, 0.2, 1e-6);
  EXPECT_NEAR(*ratio->high, 0.2, 1e-6);
}

TEST(PairedRatio, AgreesWithFiellersFormulaByHand) {
  // base 1 2 3, contender 2 1 3: means 2 and 2, variances 1 and 1, covariance 0.5, t(2) = 4.30265.
  // scale = t^2/3 = 6.17095; a = 4 - 6.17 < 0: no interval. With base 11 12 13: a = 144 - 6.17.
  const std::vector<double> contender{2, 1, 3};
  const auto none = paired_ratio(std::vector<double>{1, 2, 3}, contender);
  ASSERT_TRUE(none);
  EXPECT_FALSE(none->low);
  EXPECT_FALSE(none->reason.empty());
  const auto ratio = paired_ratio(std::vector<double>{11, 12, 13}, contender);
  ASSERT_TRUE(ratio);
  const double scale = 4.302652729911275 * 4.302652729911275 / 3;
  const double a = 144 - scale, b = 24 - scale * 0.5, c = 4 - scale;
  EXPECT_NEAR(*ratio->low, (b - std::sqrt(b * b - a * c)) / a, 1e-9);
  EXPECT_NEAR(*ratio->high, (b + std::sqrt(b * b - a * c)) / a, 1e-9);
}

TEST(PairedRatio, CoversTheTruthAsOftenAsItSays) {
  std::mt19937_64 random(7);
  std::normal_distribution<double> noise(0, 1);
  int covered = 0;
  constexpr int kTrials = 4000;
  for (int trial = 0; trial < kTrials; ++trial) {
    std::vector<double> base, contender;
    for (int launch = 0; launch < 10; ++launch) {
      const double common = noise(random);
      base.push_back(13 + 2 * common + noise(random));
      contender.push_back(0.05 * 13 + 0.3 * common + 0.2 * noise(random));
    }
    const auto ratio = paired_ratio(base, contender);
    ASSERT_TRUE(ratio && ratio->low);
    if (*ratio->low <= 0.05 && 0.05 <= *ratio->high) ++covered;
  }
  // 95 % of 4000, give or take five standard errors.
  EXPECT_NEAR(static_cast<double>(covered) / kTrials, 0.95, 0.0175);
}

TEST(PairedRatio, HasNoneWithoutABaseAboveZero) {
  EXPECT_FALSE(paired_ratio({}, {}));
  EXPECT_FALSE(paired_ratio(std::vector<double>{0, 0, 0}, std::vector<double>{1, 1, 1}));
  EXPECT_FALSE(paired_ratio(std::vector<double>{-1, -2, -3}, std::vector<double>{1, 1, 1}));
}

TEST(PathSavings, ComparesWithTheOpByOpPathOfTheSameOtherKeys) {
  const RunCase fused = case_of("fused", 8), aten = case_of("aten", 8), other = case_of("aten", 32);
  const std::vector<CaseLateness> cases{
      {&fused, {launch_of(0, 10, 10'000), launch_of(1, 10, 12'000), launch_of(2, 10, 11'000)}},
      {&aten, {launch_of(0, 10, 100'000), launch_of(1, 20, 240'000), launch_of(2, 10, 110'000)}},
      {&other, {launch_of(0, 10, 100), launch_of(1, 10, 100), launch_of(2, 10, 100)}}};
  const Json rows = path_savings_json(cases);
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0]["case"], "fused/bs8");
  EXPECT_EQ(rows[0]["base"], "aten/bs8");
  EXPECT_EQ(rows[0]["launches"], 3);
  // Means of the launches' means: 1.1 us over 11 us.
  EXPECT_NEAR(dispatch_of(rows[0])["ratio"].get<double>(), 0.1, 1e-9);
  EXPECT_TRUE(dispatch_of(rows[0])["reason"].is_null());
}

TEST(PathSavings, PairsLaunchesByTheirNumberAndSaysWhenTheyAreTooFew) {
  const RunCase fused = case_of("fused", 8), aten = case_of("aten", 8);
  const std::vector<CaseLateness> cases{{&fused, {launch_of(0, 10, 10'000), launch_of(3, 10, 1)}},
                                        {&aten, {launch_of(0, 10, 50'000), launch_of(2, 10, 7)}}};
  const Json rows = path_savings_json(cases);
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0]["launches"], 1);
  EXPECT_NEAR(dispatch_of(rows[0])["ratio"].get<double>(), 0.2, 1e-9);
  EXPECT_TRUE(dispatch_of(rows[0])["ratio_low"].is_null());
  EXPECT_NE(dispatch_of(rows[0])["reason"].get<std::string>().find("needs 3"), std::string::npos);
}

}  // namespace
}  // namespace tpjitter
