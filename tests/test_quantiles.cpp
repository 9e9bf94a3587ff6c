#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "reports/quantiles.h"

namespace tpjitter {
namespace {

std::vector<std::int64_t> one_to(std::int64_t n) {
  std::vector<std::int64_t> values(static_cast<std::size_t>(n));
  std::iota(values.begin(), values.end(), 1);
  std::shuffle(values.begin(), values.end(), std::mt19937(7));
  return values;
}

TEST(Quantiles, NearestRankOfLiteralValues) {
  std::vector<std::int64_t> five = {50, 15, 40, 20, 35};
  EXPECT_EQ(nearest_rank(five, 50), 15);
  EXPECT_EQ(nearest_rank(five, 300), 20);
  EXPECT_EQ(nearest_rank(five, 400), 20);
  EXPECT_EQ(nearest_rank(five, 500), 35);
  EXPECT_EQ(nearest_rank(five, 1000), 50);
  std::vector<std::int64_t> four = {4, 1, 3, 2};
  EXPECT_EQ(nearest_rank(four, 500),
            2);  // the lower of the two middle values: one that was measured
}

TEST(Quantiles, QuantileOfOneSampleIsThatSampleAndOfNoneIsNothing) {
  std::vector<std::int64_t> one = {7};
  EXPECT_EQ(nearest_rank(one, 1), 7);
  EXPECT_EQ(nearest_rank(one, 999), 7);
  EXPECT_EQ(nearest_rank({}, 500), std::nullopt);
}

TEST(Quantiles, AQuantileNeedsTenSamplesAboveIt) {
  EXPECT_FALSE(quantile_supported(19, kP50));
  EXPECT_TRUE(quantile_supported(20, kP50));
  EXPECT_FALSE(quantile_supported(99, kP90));
  EXPECT_TRUE(quantile_supported(100, kP90));
  EXPECT_FALSE(quantile_supported(999, kP99));
  EXPECT_TRUE(quantile_supported(1000, kP99));
  EXPECT_FALSE(quantile_supported(9999, kP999));
  EXPECT_TRUE(quantile_supported(10000, kP999));
  EXPECT_EQ(quantile_reason(42, kP99), "p99 needs 1000 samples, there are 42");
  EXPECT_EQ(quantile_reason(0, kP999), "p999 needs 10000 samples, there are 0");
}

TEST(Quantiles, DescribeOfKnownValues) {
  auto values = one_to(10000);
  const Distribution d = describe(values);
  EXPECT_EQ(d.n, 10000u);
  EXPECT_EQ(d.p50, 5000);
  EXPECT_EQ(d.p90, 9000);
  EXPECT_EQ(d.p99, 9900);
  EXPECT_EQ(d.p999, 9990);
  EXPECT_EQ(d.min, 1);
  EXPECT_EQ(d.max, 10000);
  EXPECT_DOUBLE_EQ(*d.mean, 5000.5);
  EXPECT_EQ(d.negative, 0u);
}

TEST(Quantiles, DescribeOfOneSampleHasNoQuantile) {
  std::vector<std::int64_t> one = {-3};
  const Distribution d = describe(one);
  EXPECT_EQ(d.n, 1u);
  EXPECT_EQ(d.p50, std::nullopt);
  EXPECT_EQ(d.max, -3);
  EXPECT_EQ(d.negative, 1u);
  EXPECT_EQ(describe({}).mean, std::nullopt);
}

TEST(Quantiles, EqualValuesAndExtremesDoNotOverflow) {
  std::vector<std::int64_t> values(1000, INT64_MAX);
  Distribution d = describe(values);
  EXPECT_EQ(d.p99, INT64_MAX);
  EXPECT_DOUBLE_EQ(*d.mean, 9.223372036854775807e18);
  std::vector<std::int64_t> both = {INT64_MAX, INT64_MIN};
  d = describe(both);
  EXPECT_DOUBLE_EQ(*d.mean, -0.5);
}

TEST(Quantiles, EverySizeAgreesWithASortedCopy) {
  std::mt19937_64 random(3);
  for (std::size_t n = 20; n < 1500; n += 37) {
    std::vector<std::int64_t> values(n);
    for (auto& value : values) value = static_cast<std::int64_t>(random() % 50);
    std::vector<std::int64_t> sorted = values;
    std::sort(sorted.begin(), sorted.end());
    const Distribution d = describe(values);
    EXPECT_EQ(d.p50, sorted[(n * 500 + 999) / 1000 - 1]);
    if (n >= 100) {
      EXPECT_EQ(d.p90, sorted[(n * 900 + 999) / 1000 - 1]);
    }
    if (n >= 1000) {
      EXPECT_EQ(d.p99, sorted[(n * 990 + 999) / 1000 - 1]);
    }
  }
}

}  // namespace
}  // namespace tpjitter
