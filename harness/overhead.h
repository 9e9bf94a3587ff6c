// What measuring costs: a host stamp, a phase row more (every stamp, stage word and field), and all
// of a step's recording. run_step over a device that does nothing is recording without the work;
// without recording nothing is left of it. Measured by each rank before its cases and recorded.
#pragma once

#include <cstdint>

#include "harness/contract/run_info.h"

namespace tpjitter {

// For harness/step.h.
struct NullDevice {
  void wait_accept(std::int64_t) {}
  void check_device(std::int64_t) {}
  void copy_inputs(int) {}
  void rebuild_metadata(int) {}
  void launch_graph(int) {}
  void stage_inputs(std::int64_t) {}
};

struct Overhead {
  double stamp_ns = 0;      // one now_ns()
  double row_ns = 0;        // a further phase of a step, without the usage system call
  double recording_ns = 0;  // a step of one phase, with it
};
Overhead measure_overhead();

}  // namespace tpjitter
