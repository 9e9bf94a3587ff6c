// `tpjitter run`: from a scenario to a run directory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "harness/contract/scenario.h"

namespace tpjitter {

struct RunOptions {
  std::string backend = "auto";
  std::filesystem::path out;  // the run directory
  bool overwrite = false;
  std::string case_glob;  // empty: all cases
  bool quiet = false;     // no progress on stderr
  double deadline_scale = 1.0;
  std::int64_t step_pause_ns = 0;    // pauses before steps, up to this (harness/coupling.h)
  std::vector<std::string> command;  // argv, recorded
};

struct RunOutcome {
  bool complete = false;
  std::string reason;  // when it is not: one line
};

// Throws ConfigError for what run_scenario would refuse, without writing anything.
void check_run(Scenario scenario, const RunOptions& options);

// Throws ConfigError before anything is written, RunError when nothing could be recorded.
RunOutcome run_scenario(Scenario scenario, const RunOptions& options);

}  // namespace tpjitter
