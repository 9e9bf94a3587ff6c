#include "reports/value_counts.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "reports/stamps.h"

namespace tpjitter {
namespace {

// Buckets that grow with the value, so that one stands for a fixed share of it: 64 an octave, for
// values below 0 as for those above.
constexpr int kBucketsLog2 = 6;
constexpr std::size_t kBucketsEachSide = 64u << kBucketsLog2;
constexpr std::size_t kZeroBucket = kBucketsEachSide;

std::size_t bucket_of(std::int64_t value) {
  if (value == 0) return kZeroBucket;
  const auto bits = static_cast<std::uint64_t>(value);
  const std::uint64_t v = value < 0 ? 0 - bits : bits;
  const int octave = static_cast<int>(std::bit_width(v)) - 1;
  const std::uint64_t part =
      octave >= kBucketsLog2 ? v >> (octave - kBucketsLog2) : v << (kBucketsLog2 - octave);
  const std::size_t distance =
      (static_cast<std::size_t>(octave) << kBucketsLog2) + (part & ((1u << kBucketsLog2) - 1)) + 1;
  return value < 0 ? kZeroBucket - distance : kZeroBucket + distance;
}

struct QuantileField {
  int permille;
  std::optional<std::int64_t> Distribution::*value;
};
// Ascending: one that is supported has all before it.
constexpr QuantileField kQuantiles[] = {{kP50, &Distribution::p50},
                                        {kP90, &Distribution::p90},
                                        {kP99, &Distribution::p99},
                                        {kP999, &Distribution::p999}};

using Counted = std::vector<std::pair<std::int64_t, std::uint32_t>>;

// The value at `place`, from 0 in ascending order. Halves what may hold it.
std::int64_t value_at(std::uint64_t place, Counted* values) {
  auto begin = values->begin(), end = values->end();
  while (end - begin > 1) {
    const auto middle = begin + (end - begin) / 2;
    std::nth_element(begin, middle, end);
    std::uint64_t below = 0;
    for (auto at = begin; at != middle; ++at) below += at->second;
    if (place < below) {
      end = middle;
    } else {
      place -= below;
      begin = middle;
    }
  }
  return begin->first;
}

}  // namespace

struct ValueCounts::Bucket {
  std::uint64_t count = 0;
  std::int64_t most = kAbsent;
};

struct ValueCounts::Buckets {
  std::size_t first = 0;    // bucket_of the smallest value
  std::vector<Bucket> all;  // up to that of the largest

  std::uint64_t size() const {
    std::uint64_t n = 0;
    for (const Bucket& bucket : all) n += bucket.count;
    return n;
  }
};

std::uint32_t* ValueCounts::new_page(std::int64_t key) {
  if (pages_.size() >= std::min(kMaxPages, kept_alone_ / kAlonePerPage)) {
    return nullptr;
  }
  if (2 * (pages_.size() + 1) > entries_.size()) {
    std::vector<Entry> before(2 * entries_.size());
    before.swap(entries_);
    --shift_;
    for (const Entry& entry : before) {
      if (entry.page != nullptr) entry_of(entry.key) = entry;
    }
    settle();
  }
  pages_.push_back(std::make_unique<std::uint32_t[]>(kPageValues));
  entry_of(key) = {key, pages_.back().get()};
  return pages_.back().get();
}

void ValueCounts::settle() {
  std::erase_if(alone_, [&](std::int32_t value) {
    std::uint32_t* page = entry_of(value >> kPageBits).page;
    if (page != nullptr) ++page[place_in_page(value)];
    return page != nullptr;
  });
}

template <class See>
void ValueCounts::for_each_in_pages(const See& see) const {
  for (const Entry& entry : entries_) {
    if (entry.page == nullptr) continue;
    const std::int64_t first = entry.key * static_cast<std::int64_t>(kPageValues);
    for (std::size_t i = 0; i < kPageValues; ++i) {
      if (entry.page[i] != 0) see(first + static_cast<std::int64_t>(i), entry.page[i]);
    }
  }
}

template <class See>
void ValueCounts::for_each(const See& see) const {
  for_each_in_pages(see);
  for (const std::int32_t value : alone_) see(std::int64_t{value}, 1u);
  for (const std::int64_t value : far_) see(value, 1u);
}

void ValueCounts::add(const ValueCounts& other, std::int64_t shift) {
  other.for_each_in_pages([&](std::int64_t value, std::uint32_t count) {
    value = difference_ns(value, shift);
    for (; count > 0; --count) {  // kept alone until they have paid for a page
      if (std::uint32_t* counter = counter_of(value)) {
        *counter += count;
        break;
      }
      keep_alone(value);
    }
  });
  for (const std::int32_t value : other.alone_) add(difference_ns(value, shift));
  for (const std::int64_t value : other.far_) add(difference_ns(value, shift));
}

std::uint64_t ValueCounts::size() const {
  std::uint64_t n = 0;
  for_each([&](std::int64_t, std::uint32_t count) { n += count; });
  return n;
}

ValueCounts::Buckets ValueCounts::buckets() const {
  std::int64_t least = std::numeric_limits<std::int64_t>::max(), most = kAbsent;
  for_each([&](std::int64_t value, std::uint32_t) {
    least = std::min(least, value);
    most = std::max(most, value);
  });
  Buckets buckets;
  if (least > most) return buckets;
  buckets.first = bucket_of(least);
  buckets.all.resize(bucket_of(most) - buckets.first + 1);
  for_each([&](std::int64_t value, std::uint32_t count) {
    Bucket& bucket = buckets.all[bucket_of(value) - buckets.first];
    bucket.count += count;
    bucket.most = std::max(bucket.most, value);
  });
  return buckets;
}

// The bucket of each place is known from the counts; only the values in there are put in order.
std::vector<std::int64_t> ValueCounts::values_at(const Buckets& buckets,
                                                 std::vector<std::uint64_t> places) const {
  struct Wanted {
    std::size_t bucket = 0;
    Counted values;
  };
  std::vector<Wanted> wanted(places.size());
  for (std::size_t i = 0; i < places.size(); ++i) {
    std::size_t b = 0;
    while (places[i] >= buckets.all[b].count) places[i] -= buckets.all[b++].count;
    wanted[i].bucket = buckets.first + b;
  }
  for_each([&](std::int64_t value, std::uint32_t count) {
    const std::size_t bucket = bucket_of(value);
    for (Wanted& w : wanted) {
      if (w.bucket == bucket) w.values.emplace_back(value, count);
    }
  });
  std::vector<std::int64_t> found;
  for (std::size_t i = 0; i < places.size(); ++i) {
    found.push_back(value_at(places[i], &wanted[i].values));
  }
  return found;
}

std::optional<std::int64_t> ValueCounts::nearest_rank(int permille) const {
  const Buckets all = buckets();
  if (all.size() == 0) return std::nullopt;
  return values_at(all, {rank_index(all.size(), permille)}).front();
}

Distribution ValueCounts::distribution() const {
  Distribution d;
  const Buckets all = buckets();
  d.n = all.size();
  if (d.n == 0) return d;
  WideInt sum = 0;
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for_each([&](std::int64_t value, std::uint32_t count) {
    sum += static_cast<WideInt>(value) * count;
    least = std::min(least, value);
    d.negative += value < 0 ? count : 0;
  });
  d.min = least;
  d.max = all.all.back().most;
  d.mean = mean_of(sum, d.n);
  std::vector<std::uint64_t> places;
  for (const auto& [permille, value] : kQuantiles) {
    if (quantile_supported(d.n, permille)) places.push_back(rank_index(d.n, permille));
  }
  const std::vector<std::int64_t> found = values_at(all, places);
  for (std::size_t q = 0; q < found.size(); ++q) d.*kQuantiles[q].value = found[q];
  return d;
}

Distribution ValueCounts::distribution_less(std::int64_t shift) const {
  ValueCounts less;
  less.add(*this, shift);
  return less.distribution();
}

std::vector<CumulativePoint> ValueCounts::cumulative_points() const {
  std::vector<CumulativePoint> points;
  std::uint64_t below = 0;
  for (const Bucket& bucket : buckets().all) {
    if (bucket.count == 0) continue;
    below += bucket.count;
    if (bucket.most <= 0) points.clear();  // it has no logarithm: one point for all of these
    points.push_back({bucket.most, below});
  }
  if (points.size() <= kMaxCumulativePoints) return points;
  std::vector<CumulativePoint> fewer;
  const std::size_t n = points.size(), last = kMaxCumulativePoints - 1;
  for (std::size_t i = 0; i <= last; ++i) fewer.push_back(points[i * (n - 1) / last]);
  return fewer;
}

}  // namespace tpjitter
