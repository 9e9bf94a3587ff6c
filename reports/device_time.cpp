#include "reports/device_time.h"

#include <algorithm>

#include "reports/stamps.h"

namespace tpjitter {

std::optional<std::int64_t> DeviceTime::offset_ns(std::size_t rank, const PhaseRow& row) {
  if ((row.flags & kFlagNoDeviceStamps) != 0 || row.gpu_begin_ns == 0) return std::nullopt;
  if ((row.flags & kFlagModelledDevice) != 0) return 0;
  if (const auto offset = calibrated(rank, row)) {
    bound_ns_ = std::max(bound_ns_, offset->bound_ns);
    return difference_ns(0, offset->offset_ns);
  }
  aligned_ = false;
  const auto found = placed_.find({rank, row.launch});
  if (found != placed_.end()) return found->second;
  if (!launched(row)) return std::nullopt;
  const std::int64_t offset = difference_ns(row.launch_begin_ns, row.gpu_begin_ns);
  placed_.emplace(std::pair(rank, row.launch), offset);
  return offset;
}

// The rank's own host calibration, or rank 0's by way of the GPUs. A clock gains so little on
// another that the offset at the host's launch is that of the whole graph.
std::optional<AlignedOffset> DeviceTime::calibrated(std::size_t rank, const PhaseRow& row) const {
  if (!launched(row)) return std::nullopt;
  const auto host_to = [&](int gpu) -> std::optional<AlignedOffset> {
    for (const ClockPair& pair : clocks_.pairs()) {
      if (pair.launch != row.launch || pair.a != kHostClock || pair.b != gpu) continue;
      return pair.line.aligned() ? pair.line.at(row.launch_begin_ns) : std::nullopt;
    }
    return std::nullopt;
  };
  const int number = static_cast<int>(rank);
  if (const auto own = host_to(number)) return own;
  const auto first = host_to(0);
  const auto time = clocks_.on_rank0(row.launch, number, row.gpu_begin_ns);
  if (!first || !time) return std::nullopt;
  return AlignedOffset{sum_ns(first->offset_ns, difference_ns(row.gpu_begin_ns, time->time_ns)),
                       sum_ns(first->bound_ns, time->bound_ns)};
}

}  // namespace tpjitter
