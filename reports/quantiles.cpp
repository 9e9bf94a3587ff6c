#include "reports/quantiles.h"

#include <fmt/format.h>

#include <algorithm>

#include "reports/value_counts.h"

namespace tpjitter {
namespace {

constexpr std::uint64_t kSamplesAbove = 10;  // a quantile needs this many samples above it

// Ascending quantiles: each selection looks only at what the one before left above it.
void select_in_place(std::span<std::int64_t> values, Distribution* d) {
  auto begin = values.begin();
  const auto select = [&](int permille) -> std::optional<std::int64_t> {
    if (!quantile_supported(values.size(), permille)) return std::nullopt;
    const auto at =
        values.begin() + static_cast<std::ptrdiff_t>(rank_index(values.size(), permille));
    std::nth_element(begin, at, values.end());
    begin = at;
    return *at;
  };
  d->p50 = select(kP50);
  d->p90 = select(kP90);
  d->p99 = select(kP99);
  d->p999 = select(kP999);
}

// Above this many samples counting them is faster than putting them in order.
constexpr std::size_t kManySamples = 1u << 15;

}  // namespace

bool quantile_supported(std::uint64_t n, int permille) {
  return n * static_cast<std::uint64_t>(1000 - permille) >= kSamplesAbove * 1000;
}

std::string quantile_reason(std::uint64_t n, int permille) {
  const auto rest = static_cast<std::uint64_t>(1000 - permille);
  const std::string name =
      permille % 10 == 0 ? fmt::format("p{}", permille / 10) : fmt::format("p{}", permille);
  return fmt::format("{} needs {} samples, there are {}", name,
                     (kSamplesAbove * 1000 + rest - 1) / rest, n);
}

std::optional<std::int64_t> nearest_rank(std::span<std::int64_t> values, int permille) {
  if (values.empty()) return std::nullopt;
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(rank_index(values.size(), permille));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

std::uint64_t rank_index(std::uint64_t n, int permille) {
  const std::uint64_t rank = (n * static_cast<std::uint64_t>(permille) + 999) / 1000;
  return std::max<std::uint64_t>(rank, 1) - 1;
}

double mean_of(WideInt sum, std::uint64_t samples) {
  const WideInt n = static_cast<WideInt>(samples);
  return static_cast<double>(sum / n) + static_cast<double>(sum % n) / static_cast<double>(n);
}

Distribution describe(std::span<std::int64_t> values) {
  if (values.size() >= kManySamples) {
    ValueCounts counts;
    for (const std::int64_t value : values) counts.add(value);
    return counts.distribution();
  }
  Distribution d;
  d.n = values.size();
  if (values.empty()) return d;
  WideInt sum = 0;
  for (const std::int64_t value : values) {
    sum += value;
    d.negative += value < 0 ? 1 : 0;
  }
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  d.min = *least;
  d.max = *most;
  d.mean = mean_of(sum, d.n);
  select_in_place(values, &d);
  return d;
}

}  // namespace tpjitter
