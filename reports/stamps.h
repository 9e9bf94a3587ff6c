// Arithmetic on the stamps of one row. Stamps of a damaged record can hold anything, so differences
// wrap instead of overflowing.
#pragma once

#include <cstdint>
#include <optional>

#include "harness/contract/phase_row.h"

namespace tpjitter {

inline std::int64_t difference_ns(std::int64_t later, std::int64_t earlier) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(later) -
                                   static_cast<std::uint64_t>(earlier));
}

inline std::int64_t sum_ns(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}

inline bool launched(const PhaseRow& row) {
  return (row.flags & kFlagNoLaunch) == 0 && row.launch_begin_ns != 0;
}

// The wait of a row's first all-reduce on the rank's own clock, ns; nullopt where it was not taken.
inline std::optional<std::int64_t> wait_ns(const PhaseRow& row) {
  constexpr std::uint32_t kNoWait = kFlagNoLaunch | kFlagBracketed | kFlagNoDeviceStamps;
  if ((row.flags & kNoWait) != 0 || row.first_all_reduce_own_ns == 0 ||
      row.first_all_reduce_last_seen_ns == 0) {
    return std::nullopt;
  }
  return difference_ns(row.first_all_reduce_last_seen_ns, row.first_all_reduce_own_ns);
}

}  // namespace tpjitter
