#include "harness/shipped_scenarios.h"

#include <algorithm>
#include <system_error>

namespace tpjitter {
namespace fs = std::filesystem;

std::vector<fs::path> scenario_files() {
  std::vector<fs::path> files;
  for (const char* root : {"scenarios", TPJITTER_SCENARIO_DIR}) {
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(root, error)) {
      if (entry.path().extension() == ".toml") files.push_back(entry.path());
    }
    if (!files.empty()) break;
  }
  std::sort(files.begin(), files.end());
  return files;
}

fs::path find_scenario(const std::string& word) {
  // A directory of a scenario's name, such as the run it was recorded in, does not hide it.
  if (fs::is_regular_file(word) || word.find('/') != std::string::npos) return word;
  for (const fs::path& file : scenario_files()) {
    if (file.stem() == word) return file;
  }
  return word;
}

}  // namespace tpjitter
