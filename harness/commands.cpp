#include "harness/commands.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "harness/backend.h"
#include "harness/compositions/composition.h"
#include "harness/contract/error.h"
#include "harness/doctor.h"
#include "harness/environment.h"
#include "harness/messages.h"
#include "harness/metadata_paths.h"
#include "harness/plan.h"
#include "harness/recorder.h"
#include "harness/torch/torch_path.h"

namespace tpjitter {
namespace fs = std::filesystem;
namespace {

// As a shell reads it back.
std::string shell_word(const std::string& text) {
  const bool plain = text.find_first_not_of(
                         "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                         "0123456789_-./:=,+@%") == std::string::npos;
  if (plain && !text.empty()) return text;
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

// runs/<scenario>-<local time>, so that runs sort by when they were made; made here, so that two
// runs of one second do not share it.
fs::path default_directory(const std::string& name) {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char stamp[32];
  std::strftime(stamp, sizeof stamp, "%Y%m%d-%H%M%S", &local);
  const std::string base = fmt::format("{}-{}", name, stamp);
  std::error_code error;
  fs::create_directories("runs", error);
  if (error) throw ConfigError("runs: cannot be made: " + error.message() + "; pass --out");
  for (int n = 1;; ++n) {
    const fs::path path = fs::path("runs") / (n == 1 ? base : fmt::format("{}-{}", base, n));
    if (fs::create_directory(path, error)) return path;
    if (error) {
      throw ConfigError(
          fmt::format("{}: cannot be made: {}; pass --out", path.string(), error.message()));
    }
  }
}

// "1 rank", "2 ranks", "3 launches".
std::string counted(std::int64_t n, const std::string& what) {
  if (n == 1) return "1 " + what;
  return fmt::format("{} {}{}", n, what, what.ends_with("ch") ? "es" : "s");
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

// A file, or the name of a shipped scenario.
fs::path find_scenario(const std::string& word) {
  // A directory of a scenario's name, such as the run it was recorded in, does not hide it.
  if (fs::is_regular_file(word) || word.find('/') != std::string::npos) return word;
  for (const fs::path& file : scenario_files()) {
    if (file.stem() == word) return file;
  }
  return word;
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
    if (path.name == std::string("torch") && !kHasTorchPath) {
      list.back()["not_built"] = kHowToGetTorchPath;
    }
  }
  return list;
}

Json list_compositions() {
  Json list = Json::array();
  for (const Composition& composition : compositions()) {
    Json modes = Json::array();
    if (composition.decode) modes.push_back("decode");
    if (composition.speculative) modes.push_back("speculative");
    list.push_back({{"name", composition.name},
                    {"summary", composition.summary},
                    {"source", composition.source},
                    {"modes", std::move(modes)}});
  }
  return list;
}

int run_command(const RunRequest& request, const std::function<int(const fs::path&)>& report) {
  // Everything that can be refused is, before the first scenario is run.
  std::vector<Scenario> scenarios;
  std::vector<RunOptions> options(request.scenarios.size(), request.options);
  for (std::size_t i = 0; i < request.scenarios.size(); ++i) {
    scenarios.push_back(load_scenario(find_scenario(request.scenarios[i]), request.overrides));
    check_run(scenarios[i], options[i]);
    if (options[i].out.empty()) continue;
    if (request.scenarios.size() > 1) options[i].out /= scenarios[i].name;
    check_run_directory(options[i].out, options[i].overwrite);
    for (std::size_t j = 0; j < i; ++j) {
      if (options[j].out == options[i].out) {
        throw ConfigError(fmt::format("--out: {} and {} would both go to {}; run them apart",
                                      request.scenarios[j], request.scenarios[i],
                                      options[i].out.string()));
      }
    }
  }
  int exit_code = kExitPass;
  for (std::size_t i = 0; i < scenarios.size(); ++i) {
    if (options[i].out.empty()) options[i].out = default_directory(scenarios[i].name);
    const RunOutcome outcome = run_scenario(scenarios[i], options[i]);
    const int reported = report(options[i].out);
    if (!outcome.complete) {
      print_message(fmt::format("tpjitter: {}\n", outcome.reason));
      exit_code = kExitRunFailed;
    } else if (exit_code == kExitPass) {
      exit_code = reported;
    }
    fmt::print("\nrun directory: {}\n", options[i].out.string());
    if (!outcome.complete) break;
    if (!options[i].quiet) {
      print_message(fmt::format("next: {} report {} --format md\n",
                                shell_word(options[i].command.front()),
                                shell_word(options[i].out.string())));
    }
  }
  return exit_code;
}

int plan_command(const std::string& file, const std::vector<std::string>& overrides,
                 const RunOptions& options) {
  const Scenario scenario = load_scenario(find_scenario(file), overrides);
  const Plan plan = make_plan(scenario, find_backend(options.backend), options.case_glob);
  fmt::print("{}: {}\n", scenario.name, first_line(scenario.summary));
  fmt::print("backend {}, {}, {}, about {:.0f} s a launch\n", plan.backend->name,
             counted(plan.world_size, "rank"), counted(plan.launches, "launch"),
             plan.estimated_seconds());
  for (const RunWarning& warning : environment_warnings(read_environment(), plan.world_size)) {
    if (warning.code == "oversubscribed") {
      fmt::print("warning [{}]: {}\n", warning.code, warning.text);
    }
  }
  for (const PlannedCase& c : plan.cases) {
    if (!c.skip_reason.empty()) {
      fmt::print("  {}  skipped: {}\n", c.name, c.skip_reason);
      continue;
    }
    fmt::print("  {}  {} of {} steps after {} to warm up\n", c.name,
               counted(c.config.repetitions, "repetition"), c.config.steps, c.config.warmup_steps);
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
