// What about a machine makes figures doubtful or impossible, and what to do about it: one table of
// checks over recorded facts. `tpjitter doctor` prints every finding; a run keeps as warnings those
// that touch its figures. Checks see facts only, so that tests can show any machine.
#pragma once

#include <string>
#include <vector>

#include "harness/contract/run_info.h"

namespace tpjitter {

enum class Severity { kOk, kAdvice, kDoubtful, kUnusable };
const char* severity_name(Severity severity);  // "ok", "advice", "doubtful", "unusable"

struct MachineFacts {
  Json environment = Json::object();  // read_environment() and what the backends add
  Json versions = Json::object();
  Json limits = Json::object();  // read_limits()
  std::string asked = "auto";    // --backend
  int ranks = 2;                 // on this machine
  int gpus = 0;                  // that the cuda backend can use
  std::string no_gpu_reason;     // where gpus is 0
  bool on_gpus() const { return gpus > 0 && asked != "host"; }
};

struct Finding {
  std::string code;  // stable, snake_case
  Severity severity = Severity::kOk;
  std::string text;    // what was found and what it means
  std::string advice;  // what to do; empty: nothing
};

// Facts of this machine. Throws ConfigError for a backend that does not exist. `ranks` 0: a rank a
// GPU, or 2.
MachineFacts read_machine(const std::string& backend, int ranks, const std::string& out);

std::vector<Finding> examine(const MachineFacts& facts);
Severity worst_severity(const std::vector<Finding>& findings);
int doctor_exit_code(Severity worst);  // 0 ready or advice, 4 doubtful, 3 unusable

Json doctor_json(const MachineFacts& facts, const std::vector<Finding>& findings);
std::string doctor_text(const MachineFacts& facts, const std::vector<Finding>& findings);

// The findings that a run of `ranks` ranks must keep beside its figures.
std::vector<RunWarning> environment_warnings(const Json& environment, int ranks);

}  // namespace tpjitter
