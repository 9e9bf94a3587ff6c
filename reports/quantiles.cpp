#include "reports/quantiles.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <iterator>

#include "reports/column.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

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

__extension__ using Wide = __int128;

double mean_of(Wide sum, std::uint64_t samples) {
  const Wide n = static_cast<Wide>(samples);
  return static_cast<double>(sum / n) + static_cast<double>(sum % n) / static_cast<double>(n);
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
    d.mean = mean_of(static_cast<Wide>(upper_half_) * (std::int64_t{1} << 32) + lower_half_, n_);
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
constexpr std::size_t kProbes = 8192;
constexpr double kDeviations = 4.2;  // of a wanted value's place among the probes, to each side

// Values to keep: of two ranges, and from `top` on.
struct Limits {
  std::int64_t middle_low, middle_high, upper_low, upper_high, top;
};

// What one pass over the values finds.
struct Pass {
  std::uint64_t below_middle = 0, below_upper = 0, below_top = 0;  // with the absent ones
  std::uint64_t absent = 0;
  std::uint64_t sum = 0;  // wraps
  std::int64_t least = INT64_MAX;
  std::size_t kept = 0;
};

// Without branches. `kept` has room for all values and four more.
void scan(std::span<const std::int64_t> values, const Limits& l, bool may_be_absent,
          std::int64_t* kept, Pass* pass) {
  Pass p = *pass;
  for (const std::int64_t value : values) {
    const bool absent = may_be_absent & (value == kAbsent);
    p.absent += absent ? 1 : 0;
    p.sum += absent ? 0 : static_cast<std::uint64_t>(value);
    p.least = std::min(p.least, absent ? INT64_MAX : value);
    p.below_middle += value < l.middle_low ? 1 : 0;
    p.below_upper += value < l.upper_low ? 1 : 0;
    p.below_top += value < l.top ? 1 : 0;
    kept[p.kept] = value;
    const bool keep = ((value >= l.middle_low) & (value <= l.middle_high)) |
                      ((value >= l.upper_low) & (value <= l.upper_high)) | (value >= l.top);
    p.kept += keep ? 1 : 0;
  }
  *pass = p;
}

#ifdef __x86_64__
// Lane numbers that move the kept ones of four values to the front, in their order.
constexpr auto kPackLanes = [] {
  std::array<std::array<std::int32_t, 8>, 16> table{};
  for (std::size_t mask = 0; mask < 16; ++mask) {
    std::size_t at = 0;
    for (std::int32_t lane = 0; lane < 4; ++lane) {
      if ((mask >> lane & 1) == 0) continue;
      table[mask][at++] = 2 * lane;
      table[mask][at++] = 2 * lane + 1;
    }
  }
  return table;
}();

// The same for whole fours of values; returns how many it has gone through.
[[gnu::target("avx2,popcnt")]] std::size_t scan_fours(std::span<const std::int64_t> values,
                                                      const Limits& l, bool may_be_absent,
                                                      std::int64_t* kept, Pass* pass) {
  const __m256i middle_low = _mm256_set1_epi64x(l.middle_low);
  const __m256i middle_high = _mm256_set1_epi64x(l.middle_high);
  const __m256i upper_low = _mm256_set1_epi64x(l.upper_low);
  const __m256i upper_high = _mm256_set1_epi64x(l.upper_high);
  const __m256i top = _mm256_set1_epi64x(l.top);
  const __m256i none = _mm256_set1_epi64x(kAbsent), most = _mm256_set1_epi64x(INT64_MAX);
  const __m256i may = _mm256_set1_epi64x(may_be_absent ? -1 : 0);
  __m256i below_middle = _mm256_setzero_si256(), below_upper = below_middle;
  __m256i below_top = below_middle, absent = below_middle, sum = below_middle, least = most;
  std::int64_t* end = kept + pass->kept;
  const std::size_t n = values.size() / 4 * 4;
  for (std::size_t i = 0; i < n; i += 4) {
    const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(&values[i]));
    // A mask is -1 where it holds.
    const __m256i is_absent = _mm256_and_si256(_mm256_cmpeq_epi64(v, none), may);
    const __m256i in_middle = _mm256_cmpgt_epi64(middle_low, v);
    const __m256i in_upper = _mm256_cmpgt_epi64(upper_low, v);
    const __m256i in_top = _mm256_cmpgt_epi64(top, v);
    absent = _mm256_sub_epi64(absent, is_absent);
    sum = _mm256_add_epi64(sum, _mm256_andnot_si256(is_absent, v));
    const __m256i there = _mm256_blendv_epi8(v, most, is_absent);
    least = _mm256_blendv_epi8(least, there, _mm256_cmpgt_epi64(least, there));
    below_middle = _mm256_sub_epi64(below_middle, in_middle);
    below_upper = _mm256_sub_epi64(below_upper, in_upper);
    below_top = _mm256_sub_epi64(below_top, in_top);
    const __m256i drop = _mm256_and_si256(
        in_top, _mm256_and_si256(_mm256_or_si256(in_middle, _mm256_cmpgt_epi64(v, middle_high)),
                                 _mm256_or_si256(in_upper, _mm256_cmpgt_epi64(v, upper_high))));
    const auto keep = static_cast<unsigned>(_mm256_movemask_pd(_mm256_castsi256_pd(drop))) ^ 15u;
    const __m256i lanes =
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kPackLanes[keep].data()));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(end), _mm256_permutevar8x32_epi32(v, lanes));
    end += __builtin_popcount(keep);
  }
  std::array<std::int64_t, 4> lane;
  const auto read = [&](const __m256i& of) { std::memcpy(lane.data(), &of, sizeof lane); };
  const auto total = [&](const __m256i& of) {
    read(of);
    return static_cast<std::uint64_t>(lane[0]) + static_cast<std::uint64_t>(lane[1]) +
           static_cast<std::uint64_t>(lane[2]) + static_cast<std::uint64_t>(lane[3]);
  };
  pass->below_middle += total(below_middle);
  pass->below_upper += total(below_upper);
  pass->below_top += total(below_top);
  pass->absent += total(absent);
  pass->sum += total(sum);
  read(least);
  pass->least = std::min(pass->least, *std::min_element(lane.begin(), lane.end()));
  pass->kept = static_cast<std::size_t>(end - kept);
  return n;
}
#endif

Pass scan_all(std::span<const std::int64_t> values, const Limits& limits, bool may_be_absent,
              std::int64_t* kept) {
  Pass pass;
  std::size_t done = 0;
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx2")) {
    done = scan_fours(values, limits, may_be_absent, kept, &pass);
  }
#endif
  scan(values.subspan(done), limits, may_be_absent, kept, &pass);
  return pass;
}

struct Bracket {
  std::int64_t low, high;       // that two probes had; those above `low` are kept
  std::uint64_t not_above = 0;  // values up to `low`: often one that half of the samples have
  Column kept;

  void keep(std::span<const std::int64_t> values, std::uint64_t values_not_above) {
    not_above = values_not_above;
    kept.resize(values.size() + 1);
    std::size_t size = 0;
    for (const std::int64_t value : values) {
      kept[size] = value;
      size += ((value > low) & (value <= high)) ? 1 : 0;
    }
    kept.resize(size);
  }
  // `place`: in the order of `all`; nullopt: not in here.
  std::optional<std::int64_t> select(std::uint64_t place, std::span<const std::int64_t> all) {
    if (place < not_above) {
      const auto below =
          std::count_if(all.begin(), all.end(), [&](std::int64_t value) { return value < low; });
      return static_cast<std::uint64_t>(below) <= place ? std::optional(low) : std::nullopt;
    }
    if (place - not_above >= kept.size()) return std::nullopt;
    const auto at = kept.begin() + static_cast<std::ptrdiff_t>(place - not_above);
    std::nth_element(kept.begin(), at, kept.end());
    return *at;
  }
};

// A number for each i, without order.
std::uint64_t mixed(std::uint64_t i) {
  i = (i + 1) * 0x9e3779b97f4a7c15;
  i = (i ^ i >> 30) * 0xbf58476d1ce4e5b9;
  return i ^ i >> 27;
}

std::vector<std::int64_t> sorted_probes(std::span<const std::int64_t> values, bool may_be_absent) {
  std::vector<std::int64_t> probes;
  const std::size_t n = values.size();
  for (std::size_t i = 0; i < kProbes; ++i) {
    // At a drawn place of its part: ranks and rebuilds repeat with a period.
    const std::size_t part = i * n / kProbes, size = (i + 1) * n / kProbes - part;
    const std::int64_t value = values[part + mixed(i) % size];
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
                   {}};
  };
  Bracket middle = bracket(kP50, false), upper = bracket(kP90, false), top = bracket(kP99, true);
  if (top.low == INT64_MAX) return std::nullopt;
  const Limits limits{middle.low + 1, middle.high, upper.low + 1, upper.high, top.low + 1};
  Column memory(values.size() + 4);
  const Pass pass = scan_all(values, limits, may_be_absent, memory.data());
  Distribution d;
  d.n = values.size() - pass.absent;
  if (d.n < kManySamples) return std::nullopt;
  const std::span<const std::int64_t> kept(memory.data(), pass.kept);
  const auto place = [&](int permille) {  // after the absent ones
    return values.size() - d.n + rank_index(d.n, permille);
  };
  middle.keep(kept, pass.below_middle);
  d.p50 = middle.select(place(kP50), values);
  upper.keep(kept, pass.below_upper);
  d.p90 = upper.select(place(kP90), values);
  top.keep(kept, pass.below_top);
  d.p99 = top.select(place(kP99), values);
  d.p999 = top.select(place(kP999), values);
  if (!d.p50 || !d.p90 || !d.p99 || !d.p999) return std::nullopt;
  d.min = pass.least;
  d.max = top.low;
  for (const std::int64_t value : kept) d.max = std::max(*d.max, value);
  const std::int64_t no_wrap = INT64_MAX / static_cast<std::int64_t>(values.size());
  if (*d.min < 0 || *d.max > no_wrap) {  // counts what is negative, and the sum does not wrap
    Totals totals;
    for (const std::int64_t value : values) totals.add(value, may_be_absent);
    d.negative = totals.distribution().negative;
    d.mean = totals.distribution().mean;
  } else {
    d.mean = mean_of(static_cast<std::int64_t>(pass.sum), d.n);
  }
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
