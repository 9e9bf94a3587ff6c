#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "reports/quantiles.h"
#include "reports/value_counts.h"

namespace tpjitter {
namespace {

std::vector<std::int64_t> one_to(std::int64_t n) {
  std::vector<std::int64_t> values(static_cast<std::size_t>(n));
  std::iota(values.begin(), values.end(), 1);
  std::shuffle(values.begin(), values.end(), std::mt19937(7));
  return values;
}

ValueCounts counted(std::span<const std::int64_t> column) {
  ValueCounts counts;
  counts.add_column(column);
  return counts;
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

// Large inputs take another way; every figure must be that of the sorted values.
TEST(Quantiles, ManySamplesGiveTheSameAsSortingThem) {
  constexpr std::size_t kMany = 70'001;
  std::mt19937_64 random(3);
  const auto made_by = [&](auto value) {
    std::vector<std::int64_t> values(kMany);
    for (std::size_t i = 0; i < kMany; ++i) values[i] = value(i);
    return values;
  };
  std::vector<std::vector<std::int64_t>> inputs = {
      made_by([&](std::size_t) { return static_cast<std::int64_t>(random() % 1'000'000); }),
      made_by([&](std::size_t) { return static_cast<std::int64_t>(random()); }),  // all of 64 bits
      made_by([](std::size_t) { return std::int64_t{5}; }),
      made_by([](std::size_t i) { return static_cast<std::int64_t>(i); }),
      made_by([](std::size_t i) { return -static_cast<std::int64_t>(i); }),
      made_by([](std::size_t i) { return static_cast<std::int64_t>(i % 4) * 1'000'000; }),
      made_by([](std::size_t i) { return static_cast<std::int64_t>(i < 300 ? i : 7); }),
      made_by([](std::size_t i) { return i % 100 == 0 ? INT64_MAX : INT64_MIN + 1; }),
      made_by([&](std::size_t) { return std::int64_t{1} << (random() % 62); })};
  // Shares that no probe is likely to guess: nearly all below, then a few far above.
  for (const std::size_t few : {30u, 700u, 7'000u}) {
    inputs.push_back(made_by([&](std::size_t i) {
      return static_cast<std::int64_t>(i >= kMany - few ? 1'000'000 + i : i % 17);
    }));
  }
  for (std::size_t input = 0; input < inputs.size(); ++input) {
    SCOPED_TRACE(input);
    std::vector<std::int64_t> sorted = inputs[input], shuffled = inputs[input];
    std::sort(sorted.begin(), sorted.end());
    std::vector<std::int64_t> column;  // every third has no value
    for (std::size_t i = 0; i < kMany; ++i) {
      column.push_back(inputs[input][i]);
      if (i % 2 == 1) column.push_back(kAbsent);
    }
    for (const Distribution& d : {describe(shuffled), counted(column).distribution()}) {
      EXPECT_EQ(d.n, kMany);
      EXPECT_EQ(d.p50, sorted[(kMany * 500 + 999) / 1000 - 1]);
      EXPECT_EQ(d.p90, sorted[(kMany * 900 + 999) / 1000 - 1]);
      EXPECT_EQ(d.p99, sorted[(kMany * 990 + 999) / 1000 - 1]);
      EXPECT_EQ(d.p999, sorted[(kMany * 999 + 999) / 1000 - 1]);
      EXPECT_EQ(d.min, sorted.front());
      EXPECT_EQ(d.max, sorted.back());
      EXPECT_EQ(d.negative, static_cast<std::uint64_t>(std::count_if(
                                sorted.begin(), sorted.end(), [](auto v) { return v < 0; })));
      long double sum = 0;
      for (const std::int64_t value : sorted) sum += static_cast<long double>(value);
      EXPECT_NEAR(*d.mean, static_cast<double>(sum / kMany), 1e-9 * (1 + std::fabs(*d.mean)));
    }
  }
}

TEST(Quantiles, AColumnOfFewOrNoValuesIsDescribedToo) {
  EXPECT_EQ(counted({}).distribution().n, 0u);
  const std::vector<std::int64_t> absent(50'000, kAbsent);
  EXPECT_EQ(counted(absent).distribution().n, 0u);
  EXPECT_EQ(counted(absent).distribution().max, std::nullopt);
  std::vector<std::int64_t> few = absent;
  for (std::int64_t i = 0; i < 40; ++i) few[static_cast<std::size_t>(i) * 1000] = i;
  const Distribution d = counted(few).distribution();
  EXPECT_EQ(d.n, 40u);
  EXPECT_EQ(d.p50, 19);
  EXPECT_EQ(d.p90, std::nullopt);
  EXPECT_EQ(d.max, 39);
}

// Parts of a case are counted apart and added up; close values have pages by then, others have not.
TEST(ValueCounts, AddedUpAndShiftedTheyAreThoseOfAllValues) {
  std::mt19937_64 random(5);
  ValueCounts sum;
  std::vector<std::int64_t> values;
  for (const std::int64_t spread : {3'000, 40, 5'000'000, 100'000}) {
    ValueCounts part;
    for (int i = 0; i < 20'000; ++i) {
      const auto value = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(spread));
      part.add(value - 1'000);
      values.push_back(value - 1'000 - 77);
    }
    sum.add(part, 77);
  }
  const Distribution expected = describe(values), d = sum.distribution();
  std::sort(values.begin(), values.end());
  for (const Distribution& one : {expected, d}) {
    EXPECT_EQ(one.n, values.size());
    EXPECT_EQ(one.p50, values[39'999]);
    EXPECT_EQ(one.p90, values[71'999]);
    EXPECT_EQ(one.p99, values[79'199]);
    EXPECT_EQ(one.p999, values[79'919]);
    EXPECT_EQ(one.min, values.front());
    EXPECT_EQ(one.max, values.back());
  }
  EXPECT_EQ(d.negative, expected.negative);
  EXPECT_EQ(d.mean, expected.mean);
  for (const int permille : {1, 333, 500, 1000}) {
    EXPECT_EQ(sum.nearest_rank(permille), nearest_rank(values, permille));
  }
  EXPECT_EQ(ValueCounts().nearest_rank(kP50), std::nullopt);
}

}  // namespace
}  // namespace tpjitter
