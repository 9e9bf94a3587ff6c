#include "reports/gpu_idle.h"

#include <algorithm>

#include "reports/stamps.h"

namespace tpjitter {

void GpuIdle::add(std::size_t rank, const PhaseRow& row, const std::optional<HostStages>& host) {
  Rank& last = ranks_[rank];
  if (row.gpu_begin_ns == 0 || row.gpu_end_ns == 0 || (row.flags & kFlagNoDeviceStamps) != 0) {
    last = {};
    return;
  }
  const std::int64_t previous_begin = last.first_begin, previous_end = last.last_end;
  last.last_end = row.gpu_end_ns;
  if (!host) return;
  last.first_begin = row.gpu_begin_ns;
  // Between blocks the host does other things.
  if (previous_begin == 0 || (row.flags & kFlagFirstOfBlock) != 0) return;
  const std::int64_t idle = difference_ns(row.gpu_begin_ns, previous_end);
  if (longest_ && longest_->idle >= idle) return;
  longest_ = Longest{idle, difference_ns(row.gpu_begin_ns, previous_begin), *host};
}

void GpuIdle::end_of_replay(bool counts) {
  if (longest_ && counts) {
    const auto& [idle, step, host] = *longest_;
    values_.add(idle);
    ++steps_;
    if (idle > step / 4) ++mostly_idle_;
    const std::array<std::int64_t, kNumHostStages> stages = {host.inputs, host.dispatch,
                                                             host.graph_launch};
    const std::int64_t all = sum_ns(sum_ns(host.inputs, host.dispatch), host.graph_launch);
    // Where the host worked ahead, or the gap is made elsewhere, no stage fills it.
    if (idle > 0 && all >= idle / 2 && all <= 2 * idle) {
      const auto most = std::max_element(stages.begin(), stages.end());
      ++votes_[static_cast<std::size_t>(most - stages.begin())];
    }
  }
  longest_.reset();
}

Distribution GpuIdle::idle() const { return values_.distribution(); }

std::optional<std::size_t> GpuIdle::stage() const {
  const auto most = std::max_element(votes_.begin(), votes_.end());
  if (2 * *most <= steps_) return std::nullopt;
  return static_cast<std::size_t>(most - votes_.begin());
}

}  // namespace tpjitter
