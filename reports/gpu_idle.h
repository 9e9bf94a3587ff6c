// How long the GPU stands idle between two steps, and which host stage fills that time. The idle
// time is the difference of two stamps of the rank's own GPU clock, so that no offset enters. A
// stage is named by the steps' votes, not by means, so that one slow step names nothing.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "harness/contract/phase_row.h"
#include "reports/value_counts.h"

namespace tpjitter {

// Host time of a rank from the accept of its step to the return of the step's first launch, ns.
struct HostStages {
  std::int64_t inputs = 0, dispatch = 0, graph_launch = 0;
};

class GpuIdle {
 public:
  enum Stage : std::size_t { kInputs, kDispatch, kGraphLaunch, kNumHostStages };

  explicit GpuIdle(std::size_t ranks) : ranks_(ranks) {}

  // Every launch of every rank, in order. `host` only with a step's first launch.
  void add(std::size_t rank, const PhaseRow& row, const std::optional<HostStages>& host);
  // A row of this rank is missing: nothing is known until it has launched again.
  void forget(std::size_t rank) { ranks_[rank] = {}; }
  // After the last rank of a replay: the longest idle time is the step's. Nothing if excluded.
  void end_of_replay(bool counts);

  Distribution idle() const;                 // per step, the longest over ranks
  std::optional<std::size_t> stage() const;  // Stage that fills it in most steps
  // In most steps a quarter of the time or more.
  bool dominant() const { return 2 * mostly_idle_ > steps_; }

 private:
  struct Rank {
    std::int64_t first_begin = 0;  // GPU begin of the step's first graph; 0: unknown
    std::int64_t last_end = 0;     // GPU end of the step's last graph so far
  };
  struct Longest {
    std::int64_t idle = 0, step = 0;
    HostStages host;
  };
  std::vector<Rank> ranks_;
  std::optional<Longest> longest_;  // of the current replay
  ValueCounts values_;
  std::uint64_t steps_ = 0;  // with a value
  std::array<std::uint64_t, kNumHostStages> votes_{};
  std::uint64_t mostly_idle_ = 0;
};

}  // namespace tpjitter
