// The program. Parses flags, calls a command, catches once, turns errors into exit codes.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

#include "harness/commands.h"
#include "harness/contract/error.h"
#include "harness/list_ops.h"
#include "harness/messages.h"
#include "harness/noise.h"
#include "harness/output_file.h"
#include "harness/rank.h"
#include "harness/subcommands.h"
#include "reports/html_sections.h"
#include "reports/metrics.h"
#include "reports/report.h"

namespace {

using namespace tpjitter;

int report_command(const std::vector<std::filesystem::path>& runs, const std::string& format,
                   std::filesystem::path output, const ReportOptions& options = {}) {
  const Exporter& exporter = find_exporter(format);
  const bool beside = output.empty() && exporter.to_file && !runs.empty();
  if (beside) output = runs.front() / fmt::format("report.{}", exporter.extension);
  if (output.empty()) {
    const int exit_code = report(runs, format, std::cout, options);
    std::cout.flush();
    return exit_code;
  }
  std::ostringstream text;
  const int exit_code = report(runs, format, text, options);
  write_output_file(output, text.str(), "-o");
  if (beside) std::cout << output.string() << std::endl;
  return exit_code;
}

Json list_metrics() {
  Json list = Json::array();
  for (const Metric& metric : metrics()) {
    list.push_back({{"name", metric.key}, {"unit", metric.unit}, {"summary", metric.summary}});
  }
  return list;
}

// Of the HTML page, in order.
Json list_sections() {
  Json list = Json::array();
  for (const HtmlSection& section : html_sections()) {
    list.push_back(
        {{"name", section.key}, {"title", section.title}, {"summary", section.question}});
  }
  return list;
}

// What a command printed has to arrive: a full disk behind stdout is an error, whatever was printed.
int check_stdout(int exit_code) {
  std::cout.flush();
  if (std::cout && std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return exit_code;
  print_message(fmt::format("tpjitter: stdout: cannot be written: {}\n", std::strerror(errno)));
  return exit_code == kExitPass ? static_cast<int>(kExitRunFailed) : exit_code;
}

int parse_and_run(int argc, char** argv) {
  CLI::App app{"tpjitter measures how far apart tensor-parallel ranks launch, and what it costs"};
  app.require_subcommand(1);
  app.set_version_flag("--version", TPJITTER_VERSION);
  int exit_code = kExitPass;

  RunRequest request;
  request.options.command.assign(argv, argv + argc);
  // A flag for what --set could say too; checked with the rest of the scenario.
  const auto add_shorthand = [&](CLI::App* command, const char* flag, const char* key,
                                 const char* help) {
    command->add_option_function<std::string>(
        flag,
        [&request, key](const std::string& value) {
          request.overrides.push_back(fmt::format("{}={}", key, value));
        },
        help);
  };
  // Bound to the list itself, --set would replace what a shorthand has put there.
  using Words = std::vector<std::string>;
  const auto add_overrides = [&request](const Words& values) {
    request.overrides.insert(request.overrides.end(), values.begin(), values.end());
  };
  const CLI::Validator not_empty(
      [](const std::string& value) { return std::string(value.empty() ? "is empty" : ""); }, "",
      "not_empty");
  CLI::App* run = app.add_subcommand("run", "Measure a scenario and print its report");
  run->add_option("scenario", request.scenarios, "Scenario file(s), TOML, or names of shipped ones")
      ->required();
  run->add_option("--backend", request.options.backend, "auto, cuda or host")
      ->capture_default_str();
  add_shorthand(run, "--world-size", "world_size", "Ranks, in place of the scenario's");
  run->add_option("--out", request.options.out,
                  "Run directory; several scenarios: one below it each (default: runs/NAME-TIME)")
      ->envname("TPJITTER_OUT")
      ->check(not_empty);
  run->add_flag("--overwrite", request.options.overwrite, "Replace the run that --out holds");
  run->add_option_function<Words>("--set", add_overrides,
                                  "KEY=VALUE in place of the scenario's, repeatable")
      ->allow_extra_args(false);
  run->add_option("--case", request.options.case_glob, "Only cases whose name matches the pattern")
      ->check(not_empty);
  add_shorthand(run, "--launches", "sampling.launches", "Process launches");
  run->add_flag("--quiet", request.options.quiet, "No progress on stderr")
      ->envname("TPJITTER_QUIET");
  run->add_option("--deadline-scale", request.options.deadline_scale,
                  "Stretches every deadline, for sanitizer builds")
      ->check(CLI::Range(0.01, 1000.0));
  run->callback([&] {
    exit_code = run_command(request, [](const std::filesystem::path& directory) {
      return report_command({directory}, "text", {});
    });
  });

  std::string plan_file;
  CLI::App* plan = app.add_subcommand("plan", "The cases a run would take, and for how long");
  plan->add_option("scenario", plan_file, "Scenario file, TOML")->required();
  plan->add_option("--backend", request.options.backend, "auto, cuda or host");
  add_shorthand(plan, "--world-size", "world_size", "Ranks, in place of the scenario's");
  plan->add_option("--case", request.options.case_glob, "Only cases whose name matches the pattern")
      ->check(not_empty);
  add_shorthand(plan, "--launches", "sampling.launches", "Process launches");
  plan->add_option_function<Words>("--set", add_overrides, "KEY=VALUE, repeatable")
      ->allow_extra_args(false);
  plan->callback([&] { exit_code = plan_command(plan_file, request.overrides, request.options); });

  std::string what;
  bool json = false;
  CLI::App* list = app.add_subcommand(
      "list", "What there is: scenarios, paths, compositions, ops, metrics, sections");
  list->add_option("what", what)
      ->required()
      ->check(CLI::IsMember({"scenarios", "paths", "compositions", "ops", "metrics", "sections"}));
  list->add_flag("--json", json, "As JSON");
  std::string ops_path, ops_phase;
  bool ops_swa = false;
  list->add_option("--path", ops_path, "Metadata path, for `list ops`");
  list->add_option("--phase", ops_phase, "Serving phase, for `list ops`");
  list->add_flag("--swa", ops_swa, "With sliding-window attention, for `list ops`");
  list->callback([&] {
    if (what == "ops") {
      exit_code = print_ops(list_ops(ops_path, ops_phase, ops_swa), json);
      return;
    }
    if (!ops_path.empty() || !ops_phase.empty() || ops_swa) {
      throw ConfigError(fmt::format("list {}: --path, --phase and --swa go with `ops`", what));
    }
    exit_code = print_list(what == "scenarios"      ? list_scenarios()
                           : what == "paths"        ? list_paths()
                           : what == "compositions" ? list_compositions()
                           : what == "sections"     ? list_sections()
                                                    : list_metrics(),
                           json);
  });

  std::vector<std::filesystem::path> runs;
  std::string format = "text";
  std::filesystem::path output;
  CLI::App* report = app.add_subcommand("report", "Report on run directories");
  report->add_option("run", runs, "Run directory or directories")->required();
  report->add_option("--format", format, "text, md, json, html, csv or perfetto")
      ->envname("TPJITTER_FORMAT")
      ->capture_default_str();
  report->add_option("-o", output, "File to write; default: stdout, html: report.html in the run")
      ->check(not_empty);
  ReportOptions report_options;
  std::string steps;
  report
      ->add_option("--case", report_options.case_glob,
                   "perfetto, csv --replays: only cases whose name matches the pattern")
      ->check(not_empty);
  report->add_option("--steps", steps, "perfetto: FIRST..LAST in place of the worst 100 steps")
      ->check(not_empty);
  report->add_flag("--replays", report_options.replays, "csv: a line for every replay and rank");
  report->callback([&] {
    if (!steps.empty()) report_options.steps = parse_step_range(steps);
    exit_code = report_command(runs, format, output, report_options);
  });

  add_doctor_command(app, exit_code);
  add_gate_commands(app, exit_code);
  add_history_command(app, exit_code);
  add_selftest_command(app, exit_code);

  int control_fd = -1;
  int rank = -1;
  int parent = -1;
  CLI::App* rank_process = app.add_subcommand("rank", "A rank process; started by `run`");
  rank_process->group("");
  rank_process->add_option("--control-fd", control_fd)->required();
  rank_process->add_option("--rank", rank)->required();
  rank_process->add_option("--parent", parent)->required();
  rank_process->callback([&] { exit_code = rank_main(control_fd, rank, parent); });
  CLI::App* noise = app.add_subcommand("noise", "The noise process; started by `run`");
  noise->group("");
  noise->add_option("--control-fd", control_fd)->required();
  noise->add_option("--parent", parent)->required();
  noise->callback([&] { exit_code = noise_main(control_fd, parent); });

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // help, version
    print_message(fmt::format("tpjitter: {}; see tpjitter --help\n", error.what()));
    return kExitUsage;
  }
  return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return check_stdout(parse_and_run(argc, argv));
  } catch (const tpjitter::Error& error) {
    print_message(fmt::format("tpjitter: {}\n", error.what()));
    return error.exit_code();
  } catch (const std::system_error& error) {  // fmt's, of a stdout that takes no more
    print_message(fmt::format("tpjitter: the output cannot be written: {}\n", error.what()));
    return tpjitter::kExitRunFailed;
  } catch (const std::exception& error) {
    print_message(fmt::format("tpjitter: internal error: {}\n", error.what()));
    return tpjitter::kExitRunFailed;
  }
}
