// What a wait costs when nobody is late. Two floors: flight (this rank really waited, so the flag's
// way through the fabric is in it), from the zero-skew controls in run.json; and local (the flag
// was already there), from the rows of the case itself that did not wait.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reports/replays.h"

namespace tpjitter {

inline constexpr std::uint64_t kMinLocalFloorRows = 10;

struct Floors {
  std::vector<std::optional<std::int64_t>> flight;  // [launch], ns
  std::vector<std::optional<std::int64_t>> local;   // [rank], ns; absent: flight stands in for it
  std::vector<std::uint64_t> local_rows;            // [rank], rows that the local floor is made of
  std::string all_reduce;                           // kernel of this case, empty if unknown
  std::optional<std::int64_t> control_bytes;        // size of the control samples used

  // Floor of a row: nullopt if there is none.
  std::optional<std::int64_t> of(const PhaseRow& row, std::size_t rank) const;
};

Floors compute_floors(const Run& run, int case_index, const ReplayTable& table);

}  // namespace tpjitter
