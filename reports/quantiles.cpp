#include "reports/quantiles.h"

#include <fmt/format.h>

#include <algorithm>

namespace tpjitter {
namespace {

constexpr std::uint64_t kSamplesAbove = 10;  // a quantile needs this many samples above it

// Index of the ceil(q n)-th smallest value, n > 0.
std::size_t rank_index(std::uint64_t n, int permille) {
  const std::uint64_t q = static_cast<std::uint64_t>(permille);
  const std::uint64_t rank = (n * q + 999) / 1000;
  return static_cast<std::size_t>(std::max<std::uint64_t>(rank, 1) - 1);
}

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

Distribution describe(std::span<std::int64_t> values) {
  Distribution d;
  d.n = values.size();
  if (values.empty()) return d;
  __extension__ using Wide = __int128;  // a sum of 64-bit values must not wrap
  Wide sum = 0;
  std::int64_t least = values[0], most = values[0];
  for (const std::int64_t value : values) {
    sum += value;
    least = std::min(least, value);
    most = std::max(most, value);
    d.negative += value < 0 ? 1 : 0;
  }
  d.min = least;
  d.max = most;
  const Wide n = static_cast<Wide>(values.size());
  d.mean = static_cast<double>(sum / n) + static_cast<double>(sum % n) / static_cast<double>(n);
  // Ascending quantiles: each selection looks only at what the one before left above it.
  auto begin = values.begin();
  const auto select = [&](int permille) -> std::optional<std::int64_t> {
    if (!quantile_supported(values.size(), permille)) return std::nullopt;
    const auto at =
        values.begin() + static_cast<std::ptrdiff_t>(rank_index(values.size(), permille));
    std::nth_element(begin, at, values.end());
    begin = at;
    return *at;
  };
  d.p50 = select(kP50);
  d.p90 = select(kP90);
  d.p99 = select(kP99);
  d.p999 = select(kP999);
  return d;
}

}  // namespace tpjitter
