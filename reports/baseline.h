// A compact baseline ("tpjitter.baseline/1"): what the gate's statistics need of one or more runs,
// in one JSON file that can be kept beside the code.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "reports/launch_set.h"

namespace tpjitter {

inline constexpr const char* kBaselineSchema = "tpjitter.baseline/1";

Json launch_set_to_json(const LaunchSet& set);
// Throws RecordError (exit 2) naming `file` and the key: another schema, missing or wrong types.
LaunchSet launch_set_from_json(const Json& document, const std::string& file);
LaunchSet launch_set_from_text(const std::string& text, const std::string& file);

// A run directory or a baseline file. Throws RecordError.
LaunchSet read_side(const std::filesystem::path& path);
// All of them as one side.
LaunchSet read_sides(const std::vector<std::filesystem::path>& paths);

}  // namespace tpjitter
