// What one step's rebuilds cost the host on a path: the record's "operations", from running each
// rebuild against a recording device.
#pragma once

#include <string>
#include <vector>

#include "harness/contract/run_info.h"
#include "harness/step_plan.h"
#include "kernels/metadata_page_table.h"

namespace tpjitter {

// A phase with the arguments of its next rebuild; only sizes and host lengths are read.
struct PhaseCall {
  PlannedPhase phase;
  kernels::AtenMetadataArgs aten;
  kernels::PageTableMetadataArgs page_table;
};

// {"calls", "kernel_launches", "copies", "syncs"} of the step and {"phases": [...]} of each rebuild.
Json path_operations(const std::string& path, const std::vector<PhaseCall>& calls);

}  // namespace tpjitter
