// Estimators of the gate. A value is one statistic of one process launch, so that the spread
// between launches, which the steps of a launch cannot show, is in every interval. Distribution
// functions are Boost.Math's.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tpjitter {

inline constexpr std::size_t kMinLaunches = 3;   // a side, below which there is no verdict
inline constexpr double kGateAlpha = 0.01;       // false discoveries among regressions
inline constexpr double kGateConfidence = 0.95;  // of the interval, two-sided
inline constexpr double kGatePower = 0.95;       // of the smallest detectable effect

struct MeanAndVariance {
  double mean = 0;
  double variance = 0;  // with n - 1; 0 for one value
  std::size_t n = 0;
};
MeanAndVariance mean_and_variance(std::span<const double> values);

// Welch's comparison of two means (Welch 1947), contender minus base.
struct WelchResult {
  double effect = 0;
  double low = 0, high = 0;          // kGateConfidence interval
  double p_greater = 1, p_less = 1;  // one-sided: effect is not above 0, not below 0
  double degrees_of_freedom = 0;
  double standard_error = 0;
};
// nullopt: fewer than two values on a side, or values too large to square. Equal values on both sides give a standard error of 0,
// and p 0 or 1 by the sign of the effect (1 for none).
std::optional<WelchResult> welch(std::span<const double> base, std::span<const double> contender);

// The same of one set of values against a fixed one.
std::optional<WelchResult> against_value(std::span<const double> values, double fixed);

// Smallest effect that is found with kGatePower at kGateAlpha, one-sided, from the spread seen.
double detectable_effect(const WelchResult& result);
// Launches a side that would make that effect at most `limit`; nullopt: more than 1000, or none do.
std::optional<int> launches_needed(std::span<const double> base, std::span<const double> contender,
                                   double limit);
// The same for one set of values against a fixed one.
std::optional<int> launches_needed(std::span<const double> values, double limit);

// Benjamini-Hochberg (1995): p-values adjusted for their number, in the order given.
std::vector<double> benjamini_hochberg(std::span<const double> p_values);

// Mann-Kendall test of a trend in time order, exact for n <= 10, else normal with ties corrected.
// Two-sided p; 1 for fewer than 4 values.
double trend_p_value(std::span<const double> values);
// Theil-Sen slope: the median of all pairwise slopes. `times` in any unit; 0 when undefined.
double theil_sen_slope(std::span<const double> times, std::span<const double> values);

// Two clusters with nothing between: at least two values in each, and the gap between them at least
// four times the wider cluster's range and above `least_gap`. The gap, or nullopt.
std::optional<double> bistable_gap(std::span<const double> values, double least_gap);

// Wilson's interval (1927) of a proportion, two-sided.
struct Interval {
  double low = 0, high = 1;
};
Interval wilson_interval(std::uint64_t successes, std::uint64_t n, double confidence);

}  // namespace tpjitter
