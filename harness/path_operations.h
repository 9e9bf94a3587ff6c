// What one step's rebuilds cost the host on a path: the record's "operations", from running each
// rebuild against a recording device, through the case's composition.
#pragma once

#include "harness/contract/run_info.h"
#include "harness/contract/scenario.h"

namespace tpjitter {

// {"calls", "kernel_launches", "copies", "syncs"} of the step and {"phases": [...]} of each rebuild,
// for the case's first inputs. A launch of a glue graph counts as one, whatever it holds.
Json path_operations(const CaseConfig& config);

}  // namespace tpjitter
