// `tpjitter list ops`: what one rebuild of a metadata path does, found by running the path's own
// code against a device that only records.
#pragma once

#include <string>

#include "harness/contract/run_info.h"

namespace tpjitter {

// {path, phase, swa, ops[] {name, kind, dtype, shape, kernel_launches, copies, syncs}, totals
// {calls, kernel_launches, copies, syncs}} for batch 8, int32 lengths (int64 in draft-extend).
// Throws ConfigError with the allowed set for a path or a phase that there is none of.
Json list_ops(const std::string& path, const std::string& phase, bool swa);

// A line an operation and the totals, aligned, or the JSON object. Returns the exit code.
int print_ops(const Json& list, bool json);

}  // namespace tpjitter
