// The tables of harness/doctor.h: one small function a check, over facts alone. The host's stand in
// doctor_host_checks.cpp, the GPUs' in doctor_gpu_checks.cpp.
#pragma once

#include <optional>
#include <span>

#include "harness/doctor.h"

namespace tpjitter {

// What a check says; nullopt: it does not apply here, or the machine does not tell.
struct Verdict {
  Severity severity = Severity::kOk;
  std::string text, advice;
};

// From which severity on a run keeps a finding as a warning.
inline constexpr int kWarnAdvice = static_cast<int>(Severity::kAdvice);
inline constexpr int kWarnDoubtful = static_cast<int>(Severity::kDoubtful);
inline constexpr int kWarnNever = static_cast<int>(Severity::kUnusable) + 1;

struct MachineCheck {
  const char* code;
  int warns_from;
  std::optional<Verdict> (*check)(const MachineFacts& facts);
};

std::span<const MachineCheck> gpu_checks();
std::span<const MachineCheck> host_checks();

// A fact, or null where the machine does not tell it.
inline const Json& fact(const Json& object, const char* key) {
  static const Json kNone = nullptr;
  return object.is_object() && object.contains(key) ? object[key] : kNone;
}
inline const Json& env(const MachineFacts& f, const char* key) { return fact(f.environment, key); }

}  // namespace tpjitter
