// `tpjitter run` and `tpjitter plan`, and the processes that `run` starts by exec of this program.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <ctime>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "harness/backend.h"
#include "harness/contract/error.h"
#include "harness/doctor.h"
#include "harness/environment.h"
#include "harness/launcher.h"
#include "harness/messages.h"
#include "harness/noise.h"
#include "harness/plan.h"
#include "harness/rank.h"
#include "harness/recorder.h"
#include "harness/shipped_scenarios.h"
#include "harness/subcommands.h"

namespace tpjitter {
namespace fs = std::filesystem;
namespace {

struct RunRequest {
  std::vector<std::string> scenarios;
  std::vector<std::string> overrides;
  RunOptions options;
};

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

int run_command(const RunRequest& request) {
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
    const int reported = print_report(options[i].out);
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

int plan_command(const RunRequest& request) {
  const Scenario scenario =
      load_scenario(find_scenario(request.scenarios.front()), request.overrides);
  const RunOptions& options = request.options;
  const Plan plan = make_plan(scenario, find_backend(options.backend), options.case_glob);
  fmt::print("{}: {}\n", scenario.name, scenario.summary);
  fmt::print("backend {}, {}, {}, about {:.0f} s a launch\n", plan.backend->name,
             counted(plan.world_size, "rank"), counted(plan.launches, "launch"),
             plan.estimated_seconds());
  for (const RunWarning& warning : environment_warnings(read_environment(), plan.world_size)) {
    if (warning.code == "oversubscribed") {
      fmt::print("warning [{}]: {}\n", warning.code, warning.text);
    }
  }
  for (const std::string& note : plan.notes) fmt::print("note: {}\n", note);
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

using Words = std::vector<std::string>;
using Request = std::shared_ptr<RunRequest>;

// A flag for what --set could say too; checked with the rest of the scenario.
void add_shorthand(CLI::App& command, const Request& request, const char* flag, const char* key,
                   const char* help) {
  command.add_option_function<std::string>(
      flag,
      [request, key](const std::string& value) {
        request->overrides.push_back(fmt::format("{}={}", key, value));
      },
      help);
}

// What run and plan take alike.
void add_scenario_flags(CLI::App& command, const Request& request) {
  command.add_option("--backend", request->options.backend, "auto, cuda or host")
      ->capture_default_str();
  add_shorthand(command, request, "--world-size", "world_size",
                "Ranks, in place of the scenario's");
  // Bound to the list itself, --set would replace what a shorthand has put there.
  const auto add_overrides = [request](const Words& values) {
    request->overrides.insert(request->overrides.end(), values.begin(), values.end());
  };
  command
      .add_option_function<Words>("--set", add_overrides,
                                  "KEY=VALUE in place of the scenario's, repeatable")
      ->allow_extra_args(false);
  command
      .add_option("--case", request->options.case_glob, "Only cases whose name matches the pattern")
      ->check(not_empty());
  add_shorthand(command, request, "--launches", "sampling.launches", "Process launches");
}

}  // namespace

void add_run_command(CLI::App& app, const std::vector<std::string>& command_line, int& exit_code) {
  auto request = std::make_shared<RunRequest>();
  request->options.command = command_line;
  CLI::App* run = app.add_subcommand("run", "Measure a scenario and print its report");
  run->add_option("scenario", request->scenarios,
                  "Scenario file(s), TOML, or names of shipped ones")
      ->required();
  add_scenario_flags(*run, request);
  run->add_option("--out", request->options.out,
                  "Run directory; several scenarios: one below it each (default: runs/NAME-TIME)")
      ->envname("TPJITTER_OUT")
      ->check(not_empty());
  run->add_flag("--overwrite", request->options.overwrite, "Replace the run that --out holds");
  run->add_flag("--quiet", request->options.quiet, "No progress on stderr")
      ->envname("TPJITTER_QUIET");
  run->add_option("--deadline-scale", request->options.deadline_scale,
                  "Stretches every deadline, for sanitizer builds")
      ->check(CLI::Range(0.01, 1000.0));
  run->callback([request, &exit_code] { exit_code = run_command(*request); });
}

void add_plan_command(CLI::App& app, int& exit_code) {
  auto request = std::make_shared<RunRequest>();
  request->scenarios.resize(1);
  CLI::App* plan = app.add_subcommand("plan", "The cases a run would take, and for how long");
  plan->add_option("scenario", request->scenarios[0], "Scenario file, TOML")->required();
  add_scenario_flags(*plan, request);
  plan->callback([request, &exit_code] { exit_code = plan_command(*request); });
}

void add_process_commands(CLI::App& app, int& exit_code) {
  struct Flags {
    int control_fd = -1, rank = -1, parent = -1;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* rank = app.add_subcommand("rank", "A rank process; started by `run`");
  rank->group("");
  rank->add_option("--control-fd", flags->control_fd)->required();
  rank->add_option("--rank", flags->rank)->required();
  rank->add_option("--parent", flags->parent)->required();
  rank->callback([flags, &exit_code] {
    exit_code = rank_main(flags->control_fd, flags->rank, flags->parent);
  });
  CLI::App* noise = app.add_subcommand("noise", "The noise process; started by `run`");
  noise->group("");
  noise->add_option("--control-fd", flags->control_fd)->required();
  noise->add_option("--parent", flags->parent)->required();
  noise->callback(
      [flags, &exit_code] { exit_code = noise_main(flags->control_fd, flags->parent); });
}

}  // namespace tpjitter
