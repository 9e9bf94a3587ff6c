#include "reports/quantiles.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "reports/column.h"

namespace tpjitter {
namespace {

constexpr std::uint64_t kSamplesAbove = 10;  // a quantile needs this many samples above it

// Index of the ceil(q n)-th smallest value, n > 0.
std::size_t rank_index(std::uint64_t n, int permille) {
  const std::uint64_t q = static_cast<std::uint64_t>(permille);
  const std::uint64_t rank = (n * q + 999) / 1000;
  return static_cast<std::size_t>(std::max<std::uint64_t>(rank, 1) - 1);
}

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

// Count, extremes and sum, without the absent ones if some may be. The sum is kept in halves: one of
// 64-bit values must not wrap.
class Totals {
 public:
  void add(std::int64_t value, bool may_be_absent) {
    const bool there = !may_be_absent || value != kAbsent;
    const std::int64_t counted = there ? value : 0;
    n_ += there ? 1 : 0;
    negative_ += counted < 0 ? 1 : 0;
    upper_half_ += counted >> 32;
    lower_half_ += static_cast<std::uint32_t>(counted);
    least_ = std::min(least_, there ? value : INT64_MAX);
    most_ = std::max(most_, value);
  }
  Distribution distribution() const {
    Distribution d;
    d.n = n_;
    if (n_ == 0) return d;
    d.negative = negative_;
    d.min = least_;
    d.max = most_;
    __extension__ using Wide = __int128;
    const Wide sum = static_cast<Wide>(upper_half_) * (std::int64_t{1} << 32) + lower_half_;
    const Wide n = static_cast<Wide>(n_);
    d.mean = static_cast<double>(sum / n) + static_cast<double>(sum % n) / static_cast<double>(n);
    return d;
  }

 private:
  std::uint64_t n_ = 0, negative_ = 0, lower_half_ = 0;
  std::int64_t upper_half_ = 0, least_ = INT64_MAX, most_ = INT64_MIN;
};

// Many samples: the wanted ones lie, almost surely, between two of a sorted part of the samples. One
// pass without branches keeps those few and counts what lies below, and the selection among them is
// exact; where the guess was wrong the plain selection does it.
constexpr std::size_t kManySamples = 1u << 15;
constexpr std::size_t kProbes = 4096;
constexpr double kDeviations = 4.2;  // of a wanted value's place among the probes, to each side

struct Bracket {
  std::int64_t low, high;
  std::uint64_t below = 0;  // values under `low`
  Column kept;
  std::uint64_t equal = 0;  // in place of kept where low == high

  void keep(std::span<const std::int64_t> values, std::uint64_t values_below) {
    below = values_below;
    if (low == high) {
      equal = static_cast<std::uint64_t>(std::count(values.begin(), values.end(), low));
      return;
    }
    kept.resize(values.size() + 1);
    std::size_t size = 0;
    for (const std::int64_t value : values) {
      kept[size] = value;
      size += (value >= low) & (value <= high) ? 1 : 0;
    }
    kept.resize(size);
  }
  // `place`: in the order of all values; nullopt: not in here.
  std::optional<std::int64_t> select(std::uint64_t place) {
    if (place < below || place - below >= std::max<std::uint64_t>(kept.size(), equal)) {
      return std::nullopt;
    }
    if (equal > 0) return low;
    const auto at = kept.begin() + static_cast<std::ptrdiff_t>(place - below);
    std::nth_element(kept.begin(), at, kept.end());
    return *at;
  }
};

std::vector<std::int64_t> sorted_probes(std::span<const std::int64_t> values, bool may_be_absent) {
  std::vector<std::int64_t> probes;
  const std::size_t n = values.size();
  for (std::size_t i = 0; i < kProbes; ++i) {
    // Irregular steps: a step's rebuilds repeat with a period.
    const std::int64_t value = values[(i * n + (i * 7919) % kProbes * n / kProbes) / kProbes];
    if (!may_be_absent || value != kAbsent) probes.push_back(value);
  }
  std::sort(probes.begin(), probes.end());
  return probes;
}

// nullopt: too few samples, or the guess was wrong.
std::optional<Distribution> describe_many(std::span<const std::int64_t> values,
                                          bool may_be_absent) {
  const std::vector<std::int64_t> probes = sorted_probes(values, may_be_absent);
  if (probes.size() < kProbes / 2) return std::nullopt;
  const auto bracket = [&](int permille, bool open) {
    const std::size_t i = rank_index(probes.size(), permille);
    const double q = permille / 1000.0;
    const auto margin = static_cast<std::size_t>(
        kDeviations * std::sqrt(static_cast<double>(probes.size()) * q * (1 - q)) + 2);
    return Bracket{probes[i > margin ? i - margin : 0],
                   open ? INT64_MAX : probes[std::min(i + margin, probes.size() - 1)],
                   0,
                   {},
                   0};
  };
  Bracket middle = bracket(kP50, false), upper = bracket(kP90, false), top = bracket(kP99, true);
  Totals totals;
  std::uint64_t below_middle = 0, below_upper = 0, below_top = 0;
  Column memory(values.size() + 1);  // room for all
  std::int64_t* end = memory.data();
  for (const std::int64_t value : values) {
    totals.add(value, may_be_absent);
    below_middle += value < middle.low ? 1 : 0;
    below_upper += value < upper.low ? 1 : 0;
    below_top += value < top.low ? 1 : 0;
    *end = value;
    const bool keep = ((value >= middle.low) & (value <= middle.high)) |
                      ((value >= upper.low) & (value <= upper.high)) | (value >= top.low);
    end += keep ? 1 : 0;
  }
  Distribution d = totals.distribution();
  if (d.n < kManySamples) return std::nullopt;
  const std::span<const std::int64_t> kept(memory.data(), end);
  const auto place = [&](int permille) {  // after the absent ones
    return values.size() - d.n + rank_index(d.n, permille);
  };
  middle.keep(kept, below_middle);
  d.p50 = middle.select(place(kP50));
  upper.keep(kept, below_upper);
  d.p90 = upper.select(place(kP90));
  top.keep(kept, below_top);
  d.p99 = top.select(place(kP99));
  d.p999 = top.select(place(kP999));
  if (!d.p50 || !d.p90 || !d.p99 || !d.p999) return std::nullopt;
  return d;
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
  if (values.size() >= kManySamples) {
    if (const auto d = describe_many(values, false)) return *d;
  }
  Totals totals;
  for (const std::int64_t value : values) totals.add(value, false);
  Distribution d = totals.distribution();
  select_in_place(values, &d);
  return d;
}

Distribution describe_column(std::span<const std::int64_t> column) {
  if (column.size() >= kManySamples) {
    if (const auto d = describe_many(column, true)) return *d;
  }
  std::vector<std::int64_t> values;
  std::copy_if(column.begin(), column.end(), std::back_inserter(values),
               [](std::int64_t value) { return value != kAbsent; });
  Totals totals;
  for (const std::int64_t value : values) totals.add(value, false);
  Distribution d = totals.distribution();
  select_in_place(values, &d);
  return d;
}

}  // namespace tpjitter
