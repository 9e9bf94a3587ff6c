#include "reports/rank_replay.h"

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

}  // namespace

RankReplay read_replay(const PhaseRow& row, const StageSums& sums, const Floors& floors,
                       std::size_t rank) {
  RankReplay r;
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
  if (!r.stages) return r;
  r.at[kStageCoupling] = sums.accept;
  r.at[kStageInputs] = sums.inputs;
  r.at[kStageGraphLaunch] = sums.graph_launch;
  r.at[kStageDispatch] = sums.dispatch(row);
  if (r.modelled) {
    r.at[kStageLaunchToArrival] = difference_ns(row.first_all_reduce_own_ns, row.launch_end_ns);
  }
  return r;
}

std::optional<std::int64_t> flight_shift(const std::vector<RankReplay>& ranks) {
  const RankReplay *last = nullptr, *second = nullptr;
  for (const RankReplay& r : ranks) {
    if (last == nullptr || *r.wait < *last->wait) {
      second = last;
      last = &r;
    } else if (second == nullptr || *r.wait < *second->wait) {
      second = &r;
    }
  }
  if (second == nullptr || !last->polled || !second->polled || last->modelled) return {};
  return sum_ns(*last->excess, *second->excess) / 2;
}

}  // namespace tpjitter
