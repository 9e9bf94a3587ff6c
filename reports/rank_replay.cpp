#include "reports/rank_replay.h"

#include <algorithm>

namespace tpjitter {
namespace {

std::optional<std::int64_t> later_excess(const PhaseRow& row, std::int64_t first_wait,
                                         const Floors& floors) {
  const auto launch = static_cast<std::size_t>(row.launch);
  if (row.all_reduce_count < 2 || launch >= floors.flight.size() || !floors.flight[launch]) {
    return std::nullopt;
  }
  const std::int64_t others = difference_ns(row.all_reduce_wait_sum_ns, first_wait);
  return difference_ns(others / (row.all_reduce_count - 1), *floors.flight[launch]);
}

struct LastTwo {
  const RankReplay *last = nullptr, *second = nullptr;  // the later, the less it waits
};

LastTwo last_two(const std::vector<RankReplay>& ranks) {
  LastTwo two;
  for (const RankReplay& r : ranks) {
    if (two.last == nullptr || *r.wait < *two.last->wait) {
      two.second = two.last;
      two.last = &r;
    } else if (two.second == nullptr || *r.wait < *two.second->wait) {
      two.second = &r;
    }
  }
  return two;
}

}  // namespace

void read_replay(const PhaseRow& row, const StageSums& sums, const Floors& floors, std::size_t rank,
                 RankReplay* replay) {
  RankReplay& r = *replay;
  r = {};
  r.launch = row.launch_begin_ns;
  r.wait = wait_ns(row);
  r.modelled = (row.flags & kFlagModelledDevice) != 0 && r.wait.has_value();
  if (r.wait) {
    r.polled = (row.flags & kFlagWaited) != 0;
    const auto floor = floors.of(row, rank);
    if (floor) r.excess = difference_ns(*r.wait, *floor);
    r.later = later_excess(row, *r.wait, floors);
    if (row.first_all_reduce_end_ns != 0) {
      r.transfer = difference_ns(row.first_all_reduce_end_ns, row.first_all_reduce_last_seen_ns);
    }
  }
  r.stages = sums.usable;
  r.preempted = sums.preempted;
  if (!r.stages) return;
  r.at[kStageCoupling] = sums.accept;
  r.at[kStageInputs] = sums.inputs;
  r.at[kStageGraphLaunch] = sums.graph_launch;
  r.at[kStageDispatch] = sums.dispatch(row);
  if (r.modelled) {
    r.at[kStageLaunchToArrival] = difference_ns(row.first_all_reduce_own_ns, row.launch_end_ns);
  }
}

std::optional<std::int64_t> flight_shift(const std::vector<RankReplay>& ranks) {
  const auto [last, second] = last_two(ranks);
  if (second == nullptr || !last->polled || !second->polled || last->modelled) return {};
  return sum_ns(*last->excess, *second->excess) / 2;
}

std::size_t median_other(const std::vector<RankReplay>& ranks, std::size_t laggard, bool waits,
                         std::vector<std::size_t>* scratch) {
  scratch->clear();
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (rank != laggard) scratch->push_back(rank);
  }
  const auto earlier = [&](std::size_t a, std::size_t b) {
    // Who waits longer arrived earlier.
    if (waits) return *ranks[a].wait > *ranks[b].wait;
    return ranks[a].launch < ranks[b].launch;
  };
  const auto middle = scratch->begin() + static_cast<std::ptrdiff_t>((scratch->size() - 1) / 2);
  std::nth_element(scratch->begin(), middle, scratch->end(), earlier);
  return *middle;
}

Lateness lateness_of(const std::vector<RankReplay>& ranks, std::size_t other) {
  const auto [last, second] = last_two(ranks);
  const RankReplay& early = ranks[other];
  if (second != nullptr && last->polled && second->polled) {
    const std::int64_t half = difference_ns(*second->wait, *last->wait) / 2;
    return {sum_ns(difference_ns(*early.wait, *second->wait), half), false};
  }
  if (!last->excess || !early.excess) return {difference_ns(*early.wait, *last->wait), false};
  return {difference_ns(*early.excess, *last->excess), early.polled && !last->polled};
}

}  // namespace tpjitter
