// How often each value occurs, exactly: all figures of a distribution come from it, its curve, and
// those of several parts together, without keeping the samples. They are integer nanoseconds and
// mostly lie close together, so that counters in pages of neighbouring values are few; a value that
// has no page is kept as it is, and pages are paid for by those: 12 bytes a value at most, 16 beyond 32 bits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "reports/quantiles.h"

namespace tpjitter {

// Exact points of an empirical distribution: `count` samples are at or below `value_ns`.
struct CumulativePoint {
  std::int64_t value_ns;
  std::uint64_t count;
};
inline constexpr std::size_t kMaxCumulativePoints = 200;

class ValueCounts {
 public:
  void add(std::int64_t value) {
    if (std::uint32_t* counter = counter_of(value)) {
      ++*counter;
    } else {
      keep_alone(value);
    }
  }
  // What is not kAbsent.
  // The counters of a group are looked up before the first is touched: their cache misses overlap.
  void add_column(std::span<const std::int64_t> column) {
    constexpr std::size_t kGroup = 16;
    std::uint32_t* counters[kGroup];
    while (!column.empty()) {
      const auto group = column.first(std::min(kGroup, column.size()));
      for (std::size_t i = 0; i < group.size(); ++i) {
        counters[i] = group[i] == kAbsent ? nullptr : counter_of(group[i]);
        __builtin_prefetch(counters[i], 1);
      }
      for (std::size_t i = 0; i < group.size(); ++i) {
        if (counters[i] != nullptr) {
          ++*counters[i];
        } else if (group[i] != kAbsent) {
          keep_alone(group[i]);
        }
      }
      column = column.subspan(group.size());
    }
  }
  // Each value of `other` less `shift`.
  void add(const ValueCounts& other, std::int64_t shift = 0);

  std::uint64_t size() const;
  std::optional<std::int64_t> nearest_rank(int permille) const;  // whatever the number of values
  Distribution distribution() const;
  Distribution distribution_less(std::int64_t shift) const;  // of each value less `shift`
  // At most kMaxCumulativePoints points, evenly apart on a log scale; the last is the largest sample.
  std::vector<CumulativePoint> cumulative_points() const;

 private:
  struct Bucket;
  struct Buckets;

  static constexpr int kPageBits = 10;
  static constexpr std::size_t kPageValues = std::size_t{1} << kPageBits;

  // A page for so many values that were kept alone: few values take little memory.
  static constexpr std::size_t kAlonePerPage = 128;
  static constexpr std::size_t kMaxPages = 1024;

  struct Entry {
    std::int64_t key = 0;
    std::uint32_t* page = nullptr;  // null: free
  };
  static std::size_t place_in_page(std::int64_t value) {
    return static_cast<std::size_t>(value) & (kPageValues - 1);
  }
  // Open addressing; at least half of the entries are free.
  Entry& entry_of(std::int64_t key) {
    std::size_t i =
        static_cast<std::size_t>(static_cast<std::uint64_t>(key) * 0x9e3779b97f4a7c15 >> shift_);
    while (entries_[i].page != nullptr && entries_[i].key != key)
      i = (i + 1) & (entries_.size() - 1);
    return entries_[i];
  }
  // Null: the value stands alone.
  std::uint32_t* counter_of(std::int64_t value) {
    std::uint32_t* page = page_of(value >> kPageBits);
    return page == nullptr ? nullptr : page + place_in_page(value);
  }
  std::uint32_t* page_of(std::int64_t key) {
    Entry& entry = entry_of(key);
    return entry.page != nullptr ? entry.page : new_page(key);
  }
  std::uint32_t* new_page(std::int64_t key);
  void keep_alone(std::int64_t value) {
    ++kept_alone_;
    const auto narrow = static_cast<std::int32_t>(value);
    if (narrow == value) {
      alone_.push_back(narrow);
    } else {
      far_.push_back(value);
    }
  }
  void settle();  // what has a page by now is counted there
  // Calls see(value, count); a value may come several times.
  template <class See>
  void for_each_in_pages(const See& see) const;
  template <class See>
  void for_each(const See& see) const;
  Buckets buckets() const;
  // The values at `places`, from 0 in ascending order of all.
  std::vector<std::int64_t> values_at(const Buckets& buckets,
                                      std::vector<std::uint64_t> places) const;

  std::vector<Entry> entries_ = std::vector<Entry>(16);  // a power of two
  int shift_ = 64 - 4;                                   // leaves a place in entries_
  std::vector<std::unique_ptr<std::uint32_t[]>> pages_;
  std::vector<std::int32_t> alone_;
  std::vector<std::int64_t> far_;  // alone, and beyond 32 bits
  std::size_t kept_alone_ = 0;     // ever, also those that have a page by now
};

}  // namespace tpjitter
