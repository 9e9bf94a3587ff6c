// Who waits for a step's result. `own`: every rank for its GPU's. `rank0`: rank 0 for its own, then
// tells the others through the shared segment, as engines do whose first rank schedules for all.
// Behind that wait, where a launch asks for it, stands a pause that differs from step to step and is
// the same on every rank: without it the pace of the steps can stay in phase with the machine's
// timer tick for a hundred of them, and a tick that falls on a stamp be taken for the rule.
#pragma once

#include <cstdint>

#include "harness/clock.h"
#include "harness/contract/scenario.h"
#include "harness/control.h"

namespace tpjitter {

class Coupling {
 public:
  Coupling() = default;
  Coupling(ControlSegment& control, int rank) : control_(&control), rank_(rank) {}

  // Every rank, for the same case. `deadline_ns`: of a wait for rank 0.
  void prepare(const CaseConfig& config, std::int64_t deadline_ns) {
    by_rank0_ = config.coupling == "rank0";
    deadline_ns_ = deadline_ns;
    pause_ns_ = control_->header().step_pause_ns;
    ++cases_;
  }

  // Returns when this rank knows that `step` is accepted; -1: at once.
  template <class Device>
  void wait_accept(Device& device, std::int64_t step) {
    wait(device, step);
    if (pause_ns_ > 0) spin_until_ns(now_ns() + pause_of(step));
  }

  // Before the step after `step`; spread by the golden ratio, so that steps in turn differ widely.
  std::int64_t pause_of(std::int64_t step) const {
    const auto turn = static_cast<std::uint64_t>(step + 1) * 0x9e3779b97f4a7c15u;
    return static_cast<std::int64_t>((turn >> 33) * static_cast<std::uint64_t>(pause_ns_) >> 31);
  }

 private:
  template <class Device>
  void wait(Device& device, std::int64_t step) {
    if (!by_rank0_ || rank_ == 0) device.wait_accept(step);
    if (!by_rank0_ || step < 0) return;
    if (rank_ == 0) {
      control_->header().told.store(told(step), std::memory_order_release);
    } else {
      device.check_device(step);
      control_->wait_told(rank_, told(step), step, deadline_ns_);
    }
  }
  // Grows over the cases too: a rank may still wait in one while rank 0 prepares the next.
  std::int64_t told(std::int64_t step) const { return (cases_ << 40) + step + 1; }

  ControlSegment* control_ = nullptr;
  int rank_ = 0;
  bool by_rank0_ = false;
  std::int64_t deadline_ns_ = 0;
  std::int64_t pause_ns_ = 0;
  std::int64_t cases_ = 0;  // prepared so far: the same number on every rank
};

}  // namespace tpjitter
