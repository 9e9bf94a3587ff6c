// The steps that stand out of a case, with what the host did to the late rank in them: context
// switches, page faults and migrations stand beside the time they may have cost. Worst replays by
// excess wait, then worst steps by time, each above the case's median.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "reports/attribution.h"
#include "reports/replays.h"

namespace tpjitter {

inline constexpr std::size_t kWorstOfEach = 3;

struct Outlier {
  const char* by = "";               // "excess_wait" | "step"
  std::size_t slot = 0;              // the replay; by step: the step's first rebuild
  std::optional<int> rank;           // the late one; none: a tie
  std::optional<std::size_t> stage;  // LatenessStage that holds most of its lateness
  std::optional<std::int64_t> excess_ns;
  std::optional<std::int64_t> step_ns;  // of that rank
  const PhaseRow* row = nullptr;        // first of the step on that rank: its host counters
  std::optional<bool> migrated;         // on another CPU than in the step before
};

// Keeps the worst replays while a case is attributed (its `see` is a ReplayObserver), and the longest
// steps while it is measured.
class OutlierFinder {
 public:
  OutlierFinder(const Run& run, const ReplayTable& table)
      : run_(run), table_(table), steps_(run.ranks.size()) {}

  void see(const ReplayLateness& replay);
  // The values of the metric step_ns from slot `begin` on: each slot of each rank once, in any order
  // and from several threads.
  void see_steps(std::size_t rank, std::size_t begin, std::span<const std::int64_t> step_ns);
  // What is not above the case's p50 does not stand out. Excess waits are on the scale of
  // `attribution.exposed`: without the flight shift.
  std::vector<Outlier> finish(const Attribution& attribution, std::optional<std::int64_t> step_p50);

 private:
  Outlier describe(const char* by, std::size_t slot, std::optional<std::size_t> rank) const;
  std::vector<Outlier> worst_steps(std::int64_t above) const;
  std::size_t first_of_step(std::size_t slot) const;
  std::optional<std::int64_t> step_ns(std::size_t first_slot, std::size_t rank) const;
  const PhaseRow* row_of(std::size_t slot, std::size_t rank) const;

  struct Step {
    std::size_t slot, rank;
    std::int64_t ns;
  };
  const Run& run_;
  const ReplayTable& table_;
  std::mutex mutex_;
  std::vector<std::vector<Step>> steps_;  // [rank]: its longest, the first of equals; under mutex_
  std::vector<ReplayLateness> worst_;     // by exposed_ns, the largest first
};

Json outliers_json(const std::vector<Outlier>& outliers, const Run& run, const ReplayTable& table);

}  // namespace tpjitter
