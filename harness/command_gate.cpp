// `tpjitter gate`, `compare` and `baseline make`: flags, files and the exit code. Reports are
// written before the exit code is returned, so that a red gate still explains itself.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <filesystem>
#include <memory>

#include "harness/contract/error.h"
#include "harness/output_file.h"
#include "harness/subcommands.h"
#include "reports/baseline.h"
#include "reports/gate.h"
#include "reports/gate_exports.h"
#include "reports/google_benchmark.h"

namespace tpjitter {
namespace {

namespace fs = std::filesystem;

struct GateRequest {
  std::vector<fs::path> runs, baselines;
  fs::path thresholds, junit, markdown, output, annotations_file;
  std::vector<std::string> allow;
  std::string annotations;
  bool json = false, init = false;
};

std::string today() {
  const std::chrono::year_month_day date(
      std::chrono::floor<std::chrono::days>(std::chrono::system_clock::now()));
  return fmt::format("{:04}-{:02}-{:02}", static_cast<int>(date.year()),
                     static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()));
}

// Both sides Google Benchmark's JSON, or neither.
bool of_benchmarks(const GateRequest& request) {
  std::size_t files = 0;
  for (const auto* side : {&request.runs, &request.baselines}) {
    for (const fs::path& path : *side) files += is_benchmark_file(path);
  }
  if (files == 0) return false;
  if (files != request.runs.size() + request.baselines.size() || request.baselines.empty()) {
    throw ConfigError(
        "gate: Google Benchmark files are compared with Google Benchmark files only; "
        "pass them for the contender and for --baseline");
  }
  return true;
}

GateResult judge(const GateRequest& request) {
  GateOptions options;
  options.built_in = request.thresholds.empty();
  options.allow = request.allow;
  options.today = today();
  if (of_benchmarks(request)) {
    options.thresholds = options.built_in
                             ? default_benchmark_thresholds()
                             : load_thresholds(request.thresholds, benchmark_metrics());
    return evaluate_benchmarks(read_benchmarks(request.baselines), read_benchmarks(request.runs),
                               options);
  }
  const LaunchSet contender = read_sides(request.runs);
  std::optional<LaunchSet> baseline;
  if (!request.baselines.empty()) {
    try {
      baseline = read_sides(request.baselines);
    } catch (const Error& error) {  // 3 says that the contender is incomplete
      if (error.exit_code() != kExitRunFailed) throw;
      throw ConfigError(fmt::format("baseline: {}", error.what()));
    }
  }
  options.thresholds = options.built_in ? default_thresholds(gate_metrics(), contender.backend)
                                        : load_thresholds(request.thresholds, gate_metrics());
  return evaluate_gate(baseline ? &*baseline : nullptr, contender, options);
}

void write_reports(const GateRequest& request, const GateResult& result) {
  if (!request.junit.empty()) write_output_file(request.junit, gate_junit(result), "--junit");
  if (!request.markdown.empty()) {
    write_output_file(request.markdown, gate_markdown(result), "--markdown");
  }
  if (!request.annotations_file.empty()) {
    write_output_file(request.annotations_file, gate_annotations(result, request.annotations),
                      "--annotations-file");
  }
}

// What cannot be judged is in the reports too: an older, green one must not stay in their place.
GateResult judged(const GateRequest& request) {
  try {
    return judge(request);
  } catch (const Error& error) {
    GateResult result;
    result.verdict = Verdict::kNothingMeasured;
    result.exit_code = error.exit_code();
    result.headline = error.what();
    write_reports(request, result);
    throw;
  }
}

int gate_command(const GateRequest& request) {
  const GateResult result = judged(request);
  if (request.json) {
    fmt::print("{}", json_text(gate_json(result)));
  } else {
    fmt::print("{}", gate_text(result));
  }
  if (!request.annotations.empty() && request.annotations_file.empty()) {
    // With --json stdout holds the document and nothing else.
    fmt::print(request.json ? stderr : stdout, "{}", gate_annotations(result, request.annotations));
  }
  if (std::fflush(stdout) != 0) throw RunError("stdout: the result cannot be written");
  write_reports(request, result);
  return result.exit_code;
}

int init_command(const GateRequest& request) {
  const std::string text = thresholds_with_noise(read_sides(request.runs));
  if (request.output.empty()) {
    fmt::print("{}", text);
  } else {
    write_output_file(request.output, text, "-o");
  }
  return kExitPass;
}

}  // namespace

void add_gate_commands(CLI::App& app, int& exit_code) {
  auto request = std::make_shared<GateRequest>();
  CLI::App* gate = app.add_subcommand(
      "gate", "Verdict on a run against a baseline and thresholds, as an exit code");
  gate->add_option("run", request->runs, "Run directories of the contender")->required();
  // An empty name, as of a CI variable that is not set, would quietly be none.
  std::vector<CLI::Option*> of_verdict = {
      gate->add_option("--baseline", request->baselines, "Run directories or baseline files")
          ->check(not_empty()),
      gate->add_option("--thresholds", request->thresholds, "Thresholds file, TOML")
          ->check(not_empty()),
      gate->add_option("--allow", request->allow, "Key that may differ, repeatable")
          ->allow_extra_args(false),
      gate->add_option("--junit", request->junit, "JUnit XML file to write")->check(not_empty()),
      gate->add_option("--markdown", request->markdown, "Markdown file to write")
          ->check(not_empty()),
      gate->add_option("--annotations", request->annotations,
                       "Also print annotations as this CI system reads them")
          ->check(CLI::IsMember({"github", "gitlab"})),
      gate->add_option("--annotations-file", request->annotations_file,
                       "File for them instead; gitlab needs one")
          ->check(not_empty()),
      gate->add_flag("--json", request->json, "Result as JSON")};
  CLI::Option* init =
      gate->add_flag("--init", request->init, "Print thresholds with this run's noise instead");
  for (CLI::Option* option : of_verdict) init->excludes(option);
  gate->add_option("-o", request->output, "File for --init")->check(not_empty());
  gate->callback([request, &exit_code] {
    if (!request->init && !request->output.empty()) {
      throw ConfigError("gate: -o goes with --init; --junit and --markdown name other files");
    }
    if (!request->annotations_file.empty() && request->annotations.empty()) {
      throw ConfigError("gate: --annotations-file needs --annotations github or gitlab");
    }
    if (request->annotations == "gitlab" && request->annotations_file.empty()) {
      throw ConfigError(
          "gate: --annotations gitlab makes a code quality report, which is a file: name it with "
          "--annotations-file");
    }
    exit_code = request->init ? init_command(*request) : gate_command(*request);
  });

  auto sides = std::make_shared<GateRequest>();
  sides->runs.resize(1);
  sides->baselines.resize(1);
  CLI::App* compare = app.add_subcommand("compare", "What changed from one run to another");
  compare->add_option("base", sides->baselines[0], "Run directory or baseline file")->required();
  compare->add_option("contender", sides->runs[0], "Run directory or baseline file")->required();
  compare->add_option("--thresholds", sides->thresholds, "Thresholds file, TOML")
      ->check(not_empty());
  compare->add_option("--allow", sides->allow, "Key that may differ, repeatable")
      ->allow_extra_args(false);
  compare->add_flag("--json", sides->json, "Result as JSON");
  compare->callback([sides, &exit_code] { exit_code = gate_command(*sides); });

  auto made = std::make_shared<GateRequest>();
  CLI::App* baseline = app.add_subcommand("baseline", "Compact baselines");
  baseline->require_subcommand(1);
  CLI::App* make = baseline->add_subcommand("make", "Make one of one or more runs");
  make->add_option("run", made->runs, "Run directories")->required();
  make->add_option("-o", made->output, "Baseline file to write")->required()->check(not_empty());
  make->callback([made, &exit_code] {
    const LaunchSet set = read_sides(made->runs);
    if (!set.incomplete.empty()) {
      throw RunError(
          fmt::format("{}: no baseline is made of an incomplete run", set.incomplete.front()));
    }
    if (set.rows == 0) {
      throw RecordError("baseline make: the runs hold no rows", kExitNothingMeasured);
    }
    write_output_file(made->output, json_text(launch_set_to_json(set)), "-o");
    exit_code = kExitPass;
  });
}

}  // namespace tpjitter
