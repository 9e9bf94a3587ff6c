// A rank process: started by exec from `tpjitter run`, never by hand.
#pragma once

#include <sys/types.h>

namespace tpjitter {

// Runs the plan in the control segment behind `control_fd` as rank `rank`, for as long as `parent`
// lives; returns the exit code.
int rank_main(int control_fd, int rank, pid_t parent);

}  // namespace tpjitter
