#include "reports/gate_statistics.h"

#include <algorithm>
#include <boost/math/distributions/normal.hpp>
#include <boost/math/distributions/students_t.hpp>
#include <cmath>
#include <map>
#include <numeric>

namespace tpjitter {
namespace {

using boost::math::complement;
using boost::math::normal;
using boost::math::students_t;

int sign(double x) { return x > 0 ? 1 : x < 0 ? -1 : 0; }

// Kendall's S: concordant minus discordant pairs.
long kendall_s(std::span<const double> values) {
  long s = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    for (std::size_t j = i + 1; j < values.size(); ++j) s += sign(values[j] - values[i]);
  }
  return s;
}

// Number of permutations of n values with k inversions, for all k.
std::vector<double> inversion_counts(std::size_t n) {
  std::vector<double> counts{1};
  for (std::size_t size = 2; size <= n; ++size) {
    std::vector<double> next(counts.size() + size - 1, 0);
    for (std::size_t k = 0; k < counts.size(); ++k) {
      for (std::size_t more = 0; more < size; ++more) next[k + more] += counts[k];
    }
    counts = std::move(next);
  }
  return counts;
}

// P(|S| >= |s|) over all orders of n distinct values. S = n(n-1)/2 - 2 * inversions.
double exact_trend_p(std::size_t n, long s) {
  const std::vector<double> counts = inversion_counts(n);
  const long pairs = static_cast<long>(n * (n - 1) / 2);
  double extreme = 0, all = 0;
  for (std::size_t k = 0; k < counts.size(); ++k) {
    all += counts[k];
    if (std::labs(pairs - 2 * static_cast<long>(k)) >= std::labs(s)) extreme += counts[k];
  }
  return extreme / all;
}

// Interval and p-values from effect, standard error and degrees of freedom.
WelchResult with_interval(WelchResult result) {
  if (result.standard_error == 0) {
    result.low = result.high = result.effect;
    result.p_greater = result.effect > 0 ? 0 : 1;
    result.p_less = result.effect < 0 ? 0 : 1;
    return result;
  }
  const students_t t(result.degrees_of_freedom);
  const double statistic = result.effect / result.standard_error;
  result.p_greater = cdf(complement(t, statistic));
  result.p_less = cdf(t, statistic);
  const double half = quantile(t, 0.5 + kGateConfidence / 2) * result.standard_error;
  result.low = result.effect - half;
  result.high = result.effect + half;
  return result;
}

// Launches a side of `sides` whose variances add up to `variance`.
std::optional<int> number_needed(double variance, int sides, double limit) {
  if (!(limit > 0)) return std::nullopt;
  for (int n = static_cast<int>(kMinLaunches); n <= 1000; ++n) {
    const students_t t(static_cast<double>(sides) * (n - 1));
    const double error = std::sqrt(variance / n);
    if ((quantile(t, 1 - kGateAlpha) + quantile(t, kGatePower)) * error <= limit) return n;
  }
  return std::nullopt;
}

}  // namespace

MeanAndVariance mean_and_variance(std::span<const double> values) {
  MeanAndVariance result;
  result.n = values.size();
  if (values.empty()) return result;
  result.mean = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(result.n);
  for (const double value : values) {
    result.variance += (value - result.mean) * (value - result.mean);
  }
  result.variance = result.n > 1 ? result.variance / static_cast<double>(result.n - 1) : 0;
  return result;
}

std::optional<WelchResult> welch(std::span<const double> base, std::span<const double> contender) {
  if (base.size() < 2 || contender.size() < 2) return std::nullopt;
  const MeanAndVariance a = mean_and_variance(base), b = mean_and_variance(contender);
  const double va = a.variance / static_cast<double>(a.n);
  const double vb = b.variance / static_cast<double>(b.n);
  WelchResult result;
  result.effect = b.mean - a.mean;
  result.standard_error = std::sqrt(va + vb);
  if (!std::isfinite(result.effect) || !std::isfinite(result.standard_error)) return std::nullopt;
  if (result.standard_error == 0) {
    result.degrees_of_freedom = static_cast<double>(a.n + b.n - 2);
    return with_interval(result);
  }
  const double share = va / (va + vb);  // squares of the variances themselves may overflow
  result.degrees_of_freedom = 1 / (share * share / static_cast<double>(a.n - 1) +
                                   (1 - share) * (1 - share) / static_cast<double>(b.n - 1));
  return with_interval(result);
}

std::optional<WelchResult> against_value(std::span<const double> values, double fixed) {
  if (values.size() < 2) return std::nullopt;
  const MeanAndVariance m = mean_and_variance(values);
  WelchResult result;
  result.effect = m.mean - fixed;
  result.standard_error = std::sqrt(m.variance / static_cast<double>(m.n));
  result.degrees_of_freedom = static_cast<double>(m.n - 1);
  if (!std::isfinite(result.effect) || !std::isfinite(result.standard_error)) return std::nullopt;
  return with_interval(result);
}

double detectable_effect(const WelchResult& result) {
  if (result.standard_error == 0) return 0;
  const students_t t(result.degrees_of_freedom);
  return (quantile(t, 1 - kGateAlpha) + quantile(t, kGatePower)) * result.standard_error;
}

std::optional<int> launches_needed(std::span<const double> base, std::span<const double> contender,
                                   double limit) {
  if (base.size() < 2 || contender.size() < 2) return std::nullopt;
  return number_needed(mean_and_variance(base).variance + mean_and_variance(contender).variance, 2,
                       limit);
}

std::optional<int> launches_needed(std::span<const double> values, double limit) {
  if (values.size() < 2) return std::nullopt;
  return number_needed(mean_and_variance(values).variance, 1, limit);
}

std::vector<double> benjamini_hochberg(std::span<const double> p_values) {
  std::vector<std::size_t> order(p_values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return p_values[a] < p_values[b]; });
  std::vector<double> adjusted(p_values.size());
  double smallest = 1;
  for (std::size_t rank = order.size(); rank-- > 0;) {
    const double scaled =
        p_values[order[rank]] * static_cast<double>(order.size()) / static_cast<double>(rank + 1);
    smallest = std::min(smallest, scaled);
    adjusted[order[rank]] = smallest;
  }
  return adjusted;
}

double trend_p_value(std::span<const double> values) {
  const std::size_t n = values.size();
  if (n < 4) return 1;
  const long s = kendall_s(values);
  std::map<double, double> ties;
  for (const double value : values) ++ties[value];
  if (ties.size() == n && n <= 10) return exact_trend_p(n, s);
  const auto term = [](double t) { return t * (t - 1) * (2 * t + 5); };
  double variance = term(static_cast<double>(n));
  for (const auto& [value, count] : ties) variance -= term(count);
  variance /= 18;
  if (variance <= 0 || s == 0) return 1;
  const double z = (std::abs(static_cast<double>(s)) - 1) / std::sqrt(variance);
  return std::min(1.0, 2 * cdf(complement(normal(), z)));
}

double theil_sen_slope(std::span<const double> times, std::span<const double> values) {
  std::vector<double> slopes;
  for (std::size_t i = 0; i < values.size(); ++i) {
    for (std::size_t j = i + 1; j < values.size(); ++j) {
      if (times[i] != times[j]) slopes.push_back((values[j] - values[i]) / (times[j] - times[i]));
    }
  }
  if (slopes.empty()) return 0;
  std::sort(slopes.begin(), slopes.end());
  const std::size_t middle = slopes.size() / 2;
  return slopes.size() % 2 == 1 ? slopes[middle] : (slopes[middle - 1] + slopes[middle]) / 2;
}

std::optional<double> bistable_gap(std::span<const double> values, double least_gap) {
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  for (std::size_t i = 2; i + 2 <= sorted.size(); ++i) {  // the upper cluster begins at i
    const double gap = sorted[i] - sorted[i - 1];
    const double wider = std::max(sorted[i - 1] - sorted.front(), sorted.back() - sorted[i]);
    if (gap > least_gap && gap >= 4 * wider) return gap;
  }
  return std::nullopt;
}

Interval wilson_interval(std::uint64_t successes, std::uint64_t n, double confidence) {
  if (n == 0) return {};
  const double z = quantile(normal(), 0.5 + confidence / 2);
  const double count = static_cast<double>(n);
  const double p = static_cast<double>(successes) / count;
  const double scale = 1 + z * z / count;
  const double centre = (p + z * z / (2 * count)) / scale;
  const double half = z / scale * std::sqrt(p * (1 - p) / count + z * z / (4 * count * count));
  return {std::max(0.0, centre - half), std::min(1.0, centre + half)};
}

}  // namespace tpjitter
