// The machine as it was: recorded in run.json and judged by harness/doctor.h. Facts that a machine
// does not tell are null. Files are read below `root`, so that tests can show another machine.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "harness/contract/run_info.h"

namespace tpjitter {

// CPU, kernel, governors, SMT, cgroup quota and throttling, isolation, load, NUMA.
Json read_environment(const std::filesystem::path& root = "/");

// Memory and disk that a run into `out` (or its nearest existing parent) can have, bytes.
Json read_limits(const std::filesystem::path& out);

// Time for which this cgroup or one above it was held back by its CPU quota so far, us; nullopt
// where there is no such counter.
std::optional<std::int64_t> cgroup_throttled_us(const std::filesystem::path& root = "/");

Json build_versions();       // tpjitter, compiler, build type
const char* git_revision();  // of this build; "unknown" outside git

}  // namespace tpjitter
