// Keys that change nothing in some cases, because another key says so. Cases that differ in such a
// key alone are one case measured twice: an axis over it is refused, and where only some cases of a
// plan do not take a key, the plan and the record say which.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "harness/contract/scenario.h"

namespace tpjitter {

// Why the key changes nothing in this case: "step.mode is \"decode\"". Nothing: it does, or may.
std::optional<std::string> no_effect(std::string_view key, const CaseConfig& config);

// A line for each axis that changes nothing in some of the cases, and for a step.op_overhead_ns that
// does not reach some. `cases`: those of the scenario that are run.
std::vector<std::string> effect_notes(const Scenario& scenario,
                                      const std::vector<Scenario::Case>& cases);

}  // namespace tpjitter
