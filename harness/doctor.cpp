#include "harness/doctor.h"

#include <fmt/format.h>

#include <algorithm>

#include "harness/backend.h"
#include "harness/contract/error.h"
#include "harness/doctor_checks.h"
#include "harness/environment.h"

namespace tpjitter {
namespace {

std::vector<MachineCheck> all_checks() {
  std::vector<MachineCheck> checks(gpu_checks().begin(), gpu_checks().end());
  checks.insert(checks.end(), host_checks().begin(), host_checks().end());
  return checks;
}

const char* status_of(Severity worst) {
  return worst == Severity::kOk ? "ready" : severity_name(worst);
}

}  // namespace

const char* severity_name(Severity severity) {
  constexpr const char* kNames[] = {"ok", "advice", "doubtful", "unusable"};
  return kNames[static_cast<int>(severity)];
}

MachineFacts read_machine(const std::string& backend, int ranks, const std::string& out) {
  MachineFacts facts;
  facts.asked = backend;
  facts.environment = read_environment();
  facts.versions = build_versions();
  facts.limits = read_limits(out);
  facts.no_gpu_reason = "the cuda backend is not in this build";
  bool known = backend == "auto" || backend == "cuda";
  for (const BackendEntry& entry : backends()) {
    known = known || backend == entry.name;
    if (entry.name != std::string("cuda")) continue;
    facts.gpus = entry.capacity(&facts.no_gpu_reason);
    if (facts.on_gpus()) entry.describe(facts.environment, facts.versions);
  }
  if (!known) {
    throw ConfigError(
        fmt::format("--backend {}: no such backend; allowed: auto, cuda, host", backend));
  }
  facts.ranks = ranks > 0 ? ranks : facts.on_gpus() ? facts.gpus : 2;
  return facts;
}

std::vector<Finding> examine(const MachineFacts& facts) {
  std::vector<Finding> findings;
  for (const MachineCheck& check : all_checks()) {
    if (const auto verdict = check.check(facts)) {
      findings.push_back({check.code, verdict->severity, verdict->text, verdict->advice});
    }
  }
  return findings;
}

Severity worst_severity(const std::vector<Finding>& findings) {
  Severity worst = Severity::kOk;
  for (const Finding& finding : findings) worst = std::max(worst, finding.severity);
  return worst;
}

int doctor_exit_code(Severity worst) {
  if (worst == Severity::kUnusable) return kExitRunFailed;
  return worst == Severity::kDoubtful ? kExitInconclusive : kExitPass;
}

Json doctor_json(const MachineFacts& facts, const std::vector<Finding>& findings) {
  Json list = Json::array();
  for (const Finding& finding : findings) {
    list.push_back({{"code", finding.code},
                    {"severity", severity_name(finding.severity)},
                    {"text", finding.text},
                    {"advice", finding.advice.empty() ? Json(nullptr) : Json(finding.advice)}});
  }
  return {{"schema", "tpjitter.doctor/1"},
          {"status", status_of(worst_severity(findings))},
          {"backend", facts.on_gpus() || facts.asked == "cuda" ? "cuda" : "host"},
          {"ranks", facts.ranks},
          {"findings", list},
          {"environment", facts.environment},
          {"versions", facts.versions},
          {"limits", facts.limits}};
}

std::string doctor_text(const MachineFacts& facts, const std::vector<Finding>& findings) {
  const Json document = doctor_json(facts, findings);
  std::string text =
      fmt::format("{}: {} backend, {} ranks\n", document["status"].get<std::string>(),
                  document["backend"].get<std::string>(), facts.ranks);
  std::vector<Finding> sorted = findings;
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const Finding& a, const Finding& b) { return a.severity > b.severity; });
  for (const Finding& finding : sorted) {
    text +=
        fmt::format("{:<9}{}: {}\n", severity_name(finding.severity), finding.code, finding.text);
    if (!finding.advice.empty()) text += fmt::format("{:<9}-> {}\n", "", finding.advice);
  }
  return text;
}

std::vector<RunWarning> environment_warnings(const Json& environment, int ranks) {
  MachineFacts facts;
  facts.environment = environment;
  facts.ranks = ranks;
  if (environment.contains("gpus")) facts.gpus = static_cast<int>(environment["gpus"].size());
  std::vector<RunWarning> warnings;
  for (const MachineCheck& check : all_checks()) {
    const auto verdict = check.check(facts);
    if (!verdict || static_cast<int>(verdict->severity) < check.warns_from) continue;
    warnings.push_back({check.code, verdict->text + "; " + verdict->advice, std::nullopt});
  }
  return warnings;
}

}  // namespace tpjitter
