// The machine as it was: recorded in run.json, and what about it makes figures doubtful.
#pragma once

#include <vector>

#include "harness/contract/run_info.h"

namespace tpjitter {

// CPU, kernel, governor, SMT, cgroup quota, isolation, load, NUMA.
Json read_environment();

// Findings with what to do, for `ranks` rank processes on this host.
std::vector<RunWarning> environment_warnings(const Json& environment, int ranks);

Json build_versions();       // tpjitter, compiler, build type
const char* git_revision();  // of this build; "unknown" outside git

}  // namespace tpjitter
