// One rank in one replay, as the attribution compares it with others: its host stages since the
// accept of its step, and its wait. Differences of stamps of one clock only.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "reports/attribution.h"
#include "reports/floors.h"
#include "reports/stamps.h"

namespace tpjitter {

// Host time of one rank since the accept of its step, up to the current replay.
struct StageSums {
  std::int64_t accept = 0, inputs = 0, graph_launch = 0;
  bool usable = false;
  bool preempted = false;  // the first row of a step counts the switches of all of it

  void add(const PhaseRow& row, bool first_of_step) {
    if (first_of_step) {
      *this = {row.accept_seen_ns, 0, 0, row.accept_seen_ns != 0,
               row.context_switches_involuntary > 0};
    }
    if (row.inputs_begin_ns != 0 && row.inputs_end_ns != 0) {
      inputs = sum_ns(inputs, difference_ns(row.inputs_end_ns, row.inputs_begin_ns));
    }
    if (!launched(row)) return;
    usable = usable && row.launch_end_ns != 0 && row.dispatch_end_ns != 0;
    graph_launch = sum_ns(graph_launch, difference_ns(row.launch_end_ns, row.dispatch_end_ns));
  }
  // Whatever is neither inputs nor launch.
  std::int64_t dispatch(const PhaseRow& row) const {
    return difference_ns(difference_ns(row.launch_end_ns, accept), sum_ns(inputs, graph_launch));
  }
};

// One rank in one replay.
struct RankReplay {
  std::int64_t launch = 0;  // entry, host clock
  std::array<std::int64_t, kNumStages>
      at{};  // time spent in each stage; coupling: the accept itself
  bool stages = false;
  bool preempted = false;  // in this step
  bool modelled = false;   // arrival is on the host clock
  bool polled = false;     // for a flag that was not there yet
  std::optional<std::int64_t> wait, excess, transfer;
  std::optional<std::int64_t> later;  // mean excess wait of the graph's other all-reduces
};

void read_replay(const PhaseRow& row, const StageSums& sums, const Floors& floors, std::size_t rank,
                 RankReplay* replay);

// The two last to arrive, if both polled: each flag's way is in the other's wait, so that half the
// sum of their waits is the flight whatever their skew. Over the floor of the control, ns; needs
// the excess of every rank. The model's flight is a constant.
std::optional<std::int64_t> flight_shift(const std::vector<RankReplay>& ranks);

// Index of the median rank but the laggard, by arrival, or by launch where not all have `waits`.
std::size_t median_other(const std::vector<RankReplay>& ranks, std::size_t laggard, bool waits,
                         std::vector<std::size_t>* scratch);

struct Lateness {
  std::int64_t ns = 0;
  bool has_flight_shift = false;  // what the flight took over its floor is in `ns`
};

// How much later the last rank to arrive did so than `other`, of what the ranks waited; needs the
// wait of every rank. If the two last both polled, the mean of their waits is the flight, as above,
// and `other` waited for it and the lateness. If not, the floors are taken out where both have one.
Lateness lateness_of(const std::vector<RankReplay>& ranks, std::size_t other);

// Index of the one rank with the largest value; nullopt when two share it.
template <class Value>
std::optional<std::size_t> only_largest(const std::vector<RankReplay>& ranks, Value value) {
  std::size_t best = 0;
  bool tie = false;
  for (std::size_t i = 1; i < ranks.size(); ++i) {
    if (value(ranks[i]) > value(ranks[best])) {
      best = i;
      tie = false;
    } else if (value(ranks[i]) == value(ranks[best])) {
      tie = true;
    }
  }
  return tie ? std::nullopt : std::optional(best);
}

}  // namespace tpjitter
