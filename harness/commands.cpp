#include "harness/commands.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "harness/backend.h"
#include "harness/contract/error.h"
#include "harness/metadata_paths.h"
#include "harness/plan.h"

namespace tpjitter {
namespace fs = std::filesystem;
namespace {

// runs/<scenario>-<local time>, so that runs sort by when they were made.
fs::path default_directory(const std::string& name) {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char stamp[32];
  std::strftime(stamp, sizeof stamp, "%Y%m%d-%H%M%S", &local);
  return fs::path("runs") / fmt::format("{}-{}", name, stamp);
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

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

}  // namespace

Json list_scenarios() {
  Json list = Json::array();
  for (const fs::path& file : scenario_files()) {
    const Scenario scenario = load_scenario(file, {});
    list.push_back({{"name", scenario.name},
                    {"summary", first_line(scenario.summary)},
                    {"file", file.string()},
                    {"world_size", scenario.world_size},
                    {"cases", scenario.cases.size()}});
  }
  return list;
}

Json list_paths() {
  Json list = Json::array();
  for (const MetadataPath& path : metadata_paths()) {
    list.push_back({{"name", path.name},
                    {"summary", path.summary},
                    {"source", path.source},
                    {"host_work", path.host_work}});
  }
  return list;
}

int run_command(const RunRequest& request, const std::function<int(const fs::path&)>& report) {
  std::vector<Scenario> scenarios;  // all of them are read before the first is run
  for (const std::string& file : request.scenarios) {
    scenarios.push_back(load_scenario(file, request.overrides));
  }
  int exit_code = kExitPass;
  for (const Scenario& scenario : scenarios) {
    RunOptions options = request.options;
    if (options.out.empty()) {
      options.out = default_directory(scenario.name);
    } else if (scenarios.size() > 1) {
      options.out /= scenario.name;
    }
    const RunOutcome outcome = run_scenario(scenario, options);
    const int reported = report(options.out);
    if (!outcome.complete) {
      fmt::print(stderr, "tpjitter: {}\n", outcome.reason);
      exit_code = kExitRunFailed;
    } else if (exit_code == kExitPass) {
      exit_code = reported;
    }
    fmt::print("\nrun directory: {}\n", options.out.string());
    if (outcome.complete && !options.quiet) {
      fmt::print(stderr, "next: tpjitter report {} --format md\n", options.out.string());
    }
    if (!outcome.complete) break;
  }
  return exit_code;
}

int plan_command(const std::string& file, const std::vector<std::string>& overrides,
                 const std::string& backend, const std::optional<int>& world_size) {
  Scenario scenario = load_scenario(file, overrides);
  if (world_size) scenario.world_size = *world_size;
  const Plan plan = make_plan(scenario, find_backend(backend), "");
  fmt::print("{}: {}\n", scenario.name, first_line(scenario.summary));
  fmt::print("backend {}, {} ranks, {} launch(es), about {:.0f} s a launch\n", plan.backend->name,
             plan.world_size, plan.launches, plan.estimated_seconds());
  for (const PlannedCase& c : plan.cases) {
    if (!c.skip_reason.empty()) {
      fmt::print("  {}  skipped: {}\n", c.name, c.skip_reason);
      continue;
    }
    fmt::print("  {}  {} repetition(s) of {} steps after {} to warm up\n", c.name,
               c.config.repetitions, c.config.steps, c.config.warmup_steps);
  }
  return kExitPass;
}

int print_list(const Json& list, bool json) {
  if (json) {
    fmt::print("{}\n", list.dump(2));
    return kExitPass;
  }
  for (const Json& entry : list) {
    fmt::print("{:<32} {}\n", entry.at("name").get<std::string>(),
               entry.at("summary").get<std::string>());
  }
  return kExitPass;
}

}  // namespace tpjitter
