// Work beside the ranks, on purpose (noise.kind): what a machine does when others use it too. One
// process, a child of the launcher, holds the threads; it rests until rank 0 asks for noise and
// until all ranks are through with the case. Its threads may run wherever the launcher may.
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "harness/contract/run_info.h"
#include "harness/contract/scenario.h"
#include "harness/control.h"

namespace tpjitter {

// The noise process of a launch. Throws RunError when it cannot be started.
class NoiseProcess {
 public:
  explicit NoiseProcess(const ControlSegment& control);
  ~NoiseProcess();  // ends with its owner
  NoiseProcess(const NoiseProcess&) = delete;
  NoiseProcess& operator=(const NoiseProcess&) = delete;

  void check();  // throws RunError if it has ended

 private:
  pid_t pid_ = -1;
};

// Rank 0, before a case's warm-up: returns when every thread is at work, throws TimeoutError.
void start_noise(ControlSegment& control, const CaseConfig& config, std::int64_t deadline_ns);
// And after its last step: {"kind", "threads", "work", "duration_ns"}. `work` counts finished
// pieces, each of about 20 us (busy_threads) or one MiB (memory_bandwidth).
Json stop_noise(ControlSegment& control, const CaseConfig& config, std::int64_t deadline_ns);

int noise_main(int control_fd, pid_t parent);  // the noise process

}  // namespace tpjitter
