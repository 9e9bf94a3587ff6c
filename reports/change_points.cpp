#include "reports/change_points.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace tpjitter {
namespace {

constexpr int kPermutations = 999;

struct Split {
  std::size_t at = 0;
  double statistic = 0;
};

// The split at which the values before it and those up to some later end differ most: mk / (m + k)
// times the energy distance of the two, exponent 1. The end may come before the last value, so that
// a change that is taken back is seen too. Sums over pairs come from prefix sums of the distances.
Split best_split(std::span<const double> values) {
  const std::size_t n = values.size();
  Split best;
  if (n < 2 * kMinChangeSegment) return best;
  // sums[i][j]: of |a - b| over the first i values a and the first j values b.
  std::vector<double> sums((n + 1) * (n + 1), 0);
  const auto sum = [&](std::size_t i, std::size_t j) -> double& { return sums[i * (n + 1) + j]; };
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < n; ++j) {
      sum(i + 1, j + 1) =
          std::abs(values[i] - values[j]) + sum(i, j + 1) + sum(i + 1, j) - sum(i, j);
    }
  }
  for (std::size_t at = kMinChangeSegment; at + kMinChangeSegment <= n; ++at) {
    for (std::size_t end = at + kMinChangeSegment; end <= n; ++end) {
      const double m = static_cast<double>(at), k = static_cast<double>(end - at);
      const double left = sum(at, at) / (m * (m - 1));
      const double right = (sum(end, end) - 2 * sum(at, end) + sum(at, at)) / (k * (k - 1));
      const double between = (sum(at, end) - sum(at, at)) / (m * k);
      const double statistic = m * k / (m + k) * (2 * between - left - right);
      if (statistic > best.statistic) best = {at, statistic};
    }
  }
  return best;
}

// Share of orders of the same values whose best split is as good; the given one counts.
double permutation_p(std::span<const double> values, double statistic) {
  std::vector<double> order(values.begin(), values.end());
  std::mt19937_64 random(20140917 + values.size());
  int as_good = 1;
  for (int i = 0; i < kPermutations; ++i) {
    std::shuffle(order.begin(), order.end(), random);
    as_good += best_split(order).statistic >= statistic;
    // It cannot become significant any more.
    if (as_good > kChangeAlpha * (kPermutations + 1)) break;
  }
  return static_cast<double>(as_good) / (kPermutations + 1);
}

double median(std::span<const double> values) {
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  const std::size_t middle = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

void divide(std::span<const double> values, std::size_t offset, std::vector<ChangePoint>* found) {
  const Split split = best_split(values);
  // Rounding leaves a tiny distance between equal values.
  const double scale = *std::max_element(
      values.begin(), values.end(), [](double a, double b) { return std::abs(a) < std::abs(b); });
  if (split.at == 0 || split.statistic <= 1e-9 * std::abs(scale)) return;
  const double p = permutation_p(values, split.statistic);
  if (p > kChangeAlpha) return;
  divide(values.first(split.at), offset, found);
  found->push_back({offset + split.at, 0, 0, p});
  divide(values.subspan(split.at), offset + split.at, found);
}

}  // namespace

std::vector<ChangePoint> change_points(std::span<const double> values) {
  std::vector<ChangePoint> found;
  const bool finite =
      std::all_of(values.begin(), values.end(), [](double value) { return std::isfinite(value); });
  if (values.size() < kMinChangeSeries || !finite) return found;
  divide(values, 0, &found);
  for (std::size_t i = 0; i < found.size(); ++i) {
    const std::size_t begin = i == 0 ? 0 : found[i - 1].index;
    const std::size_t end = i + 1 < found.size() ? found[i + 1].index : values.size();
    found[i].before = median(values.subspan(begin, found[i].index - begin));
    found[i].after = median(values.subspan(found[i].index, end - found[i].index));
  }
  return found;
}

}  // namespace tpjitter
