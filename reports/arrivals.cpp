#include "reports/arrivals.h"

#include <fmt/format.h>

#include <algorithm>

namespace tpjitter {

void Arrivals::read(const PhaseRow& row, std::size_t rank) {
  times_[rank].reset();
  const bool modelled = (row.flags & kFlagModelledDevice) != 0;
  if (clocks_.clocks == nullptr || row.first_all_reduce_own_ns == 0 || !launched(row) ||
      clocks_.clocks->host_clock() != modelled) {
    return;
  }
  times_[rank] =
      clocks_.clocks->on_rank0(row.launch, static_cast<int>(rank), row.first_all_reduce_own_ns);
}

void Arrivals::add(std::optional<std::int64_t> exposed_ns, std::vector<RankReplay>* ranks) {
  if (!std::all_of(times_.begin(), times_.end(), [](auto& time) { return time.has_value(); })) {
    ++unaligned_;
    return;
  }
  const auto [first, last] = std::minmax_element(
      times_.begin(), times_.end(), [](auto& a, auto& b) { return a->time_ns < b->time_ns; });
  const std::int64_t gap = difference_ns((*last)->time_ns, (*first)->time_ns);
  gap_.add(gap);
  if (exposed_ns) residual_.add(difference_ns(*exposed_ns, gap));
  bound_ns_ = std::max(bound_ns_.value_or(0), (*first)->bound_ns + (*last)->bound_ns);
  for (std::size_t rank = 0; rank < ranks->size(); ++rank) {
    RankReplay& r = (*ranks)[rank];
    std::int64_t launch_end = 0;  // coupling is the accept itself: the stages add up to it
    for (std::size_t s = 0; s < kStageLaunchToArrival; ++s)
      launch_end = sum_ns(launch_end, r.at[s]);
    r.at[kStageLaunchToArrival] = difference_ns(times_[rank]->time_ns, launch_end);
  }
}

std::string Arrivals::reason(std::uint64_t replays) const {
  if (!clocks_.reason.empty()) return clocks_.reason;
  return fmt::format("{} of {} replays lack a stamp or lie outside the calibrated time", unaligned_,
                     replays);
}

}  // namespace tpjitter
