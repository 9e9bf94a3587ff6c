// Errors and exit codes, shared by everything. Thrown where found, caught once in main.
// A message is one line that names the file, key, rank or step and what to do.
#pragma once

#include <stdexcept>
#include <string>

namespace tpjitter {

enum ExitCode : int {
  kExitPass = 0,
  kExitRegressed = 1,        // also: selftest failed
  kExitUsage = 2,            // bad flag, scenario, or a directory that is no run
  kExitRunFailed = 3,        // run failed or incomplete (Ctrl-C too); record damaged
  kExitInconclusive = 4,     // inconclusive or doubtful
  kExitIncomparable = 5,     // the two runs may not be compared
  kExitNothingMeasured = 6,  // zero rows
  kExitSkipped = 77,         // tests only
};

class Error : public std::runtime_error {
 public:
  Error(const std::string& message, int exit_code)
      : std::runtime_error(message), exit_code_(exit_code) {}
  int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
};

// A scenario, flag or key that the user can correct.
class ConfigError : public Error {
 public:
  explicit ConfigError(const std::string& message) : Error(message, kExitUsage) {}
};

// A rank died, hung, or failed; a disk was full; the user interrupted.
class RunError : public Error {
 public:
  explicit RunError(const std::string& message) : Error(message, kExitRunFailed) {}
};

// A wait that passed its deadline: who waited, for whom, at which stage.
class TimeoutError : public RunError {
 public:
  using RunError::RunError;
};

// A run directory that is damaged, truncated, newer than this program, or not a run at all.
class RecordError : public Error {
 public:
  RecordError(const std::string& message, int exit_code) : Error(message, exit_code) {}
};

}  // namespace tpjitter
