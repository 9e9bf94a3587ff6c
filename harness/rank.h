// A rank process: started by exec from `tpjitter run`, never by hand.
#pragma once

namespace tpjitter {

// Runs the plan in the control segment behind `control_fd` as rank `rank`; returns the exit code.
int rank_main(int control_fd, int rank);

}  // namespace tpjitter
