// What each command of the program does, apart from how its flags are parsed. Each returns the
// exit code and throws Error.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "harness/launcher.h"

namespace tpjitter {

struct RunRequest {
  std::vector<std::string> scenarios;
  std::vector<std::string> overrides;
  RunOptions options;
};

// `report` prints a run's summary and returns its exit code.
int run_command(const RunRequest& request,
                const std::function<int(const std::filesystem::path&)>& report);
int plan_command(const std::string& scenario, const std::vector<std::string>& overrides,
                 const RunOptions& options);
Json list_scenarios();
Json list_paths();
Json list_compositions();
// One line an entry, or the JSON array.
int print_list(const Json& list, bool json);

}  // namespace tpjitter
