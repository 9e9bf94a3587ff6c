// Arrivals of the ranks at the first all-reduce of a replay, on one clock: how far apart they are,
// against the excess wait that this must make, and the stage that ends with them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reports/rank_replay.h"
#include "reports/run_clocks.h"
#include "reports/value_counts.h"

namespace tpjitter {

class Arrivals {
 public:
  Arrivals(const CaseClocks& clocks, std::size_t ranks) : clocks_(clocks), times_(ranks) {}

  // A rank's row of the current replay.
  void read(const PhaseRow& row, std::size_t rank);
  // All were read: with every arrival on one clock, launch_to_arrival ends at it in `ranks`.
  void add(std::optional<std::int64_t> exposed_ns, std::vector<RankReplay>* ranks);
  std::uint64_t unaligned() const { return unaligned_; }  // replays without all arrivals
  // Why replays have none, given how many were compared.
  std::string reason(std::uint64_t replays) const;
  const ValueCounts& gap() const { return gap_; }            // last minus first, per replay
  const ValueCounts& residual() const { return residual_; }  // exposed minus gap
  std::optional<std::int64_t> bound_ns() const { return bound_ns_; }  // of a gap, the largest

 private:
  const CaseClocks& clocks_;
  std::vector<std::optional<RunClocks::Time>> times_;  // [rank], of the current replay
  ValueCounts gap_, residual_;
  std::optional<std::int64_t> bound_ns_;
  std::uint64_t unaligned_ = 0;
};

}  // namespace tpjitter
