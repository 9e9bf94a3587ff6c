// What measuring costs: a host stamp, and a whole phase row (every stamp, stage word and field of
// run_step over a device that does nothing). Measured by each rank before its cases and recorded.
#pragma once

#include "harness/contract/run_info.h"

namespace tpjitter {

struct Overhead {
  double stamp_ns = 0;  // one now_ns()
  double row_ns = 0;    // run_step of one phase, without device work or the usage system call
};
Overhead measure_overhead();

}  // namespace tpjitter
