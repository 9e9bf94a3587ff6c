// The scenarios that come with the program, by name.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace tpjitter {

std::vector<std::filesystem::path> scenario_files();
// A file, or the name of a shipped scenario.
std::filesystem::path find_scenario(const std::string& word);

}  // namespace tpjitter
