// `tpjitter report`: a run's record as text, page, table or trace, on stdout or in a file.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "harness/contract/error.h"
#include "harness/output_file.h"
#include "harness/subcommands.h"
#include "reports/report.h"

namespace tpjitter {
namespace {

struct ReportRequest {
  std::vector<std::filesystem::path> runs;
  std::string format = "text";
  std::filesystem::path output;
  std::string steps;  // "FIRST..LAST"
  ReportOptions options;
};

int report_command(const ReportRequest& request) {
  const Exporter& exporter = find_exporter(request.format);
  std::filesystem::path output = request.output;
  const bool beside = output.empty() && exporter.to_file && !request.runs.empty();
  if (beside) output = request.runs.front() / fmt::format("report.{}", exporter.extension);
  if (output.empty()) {
    const int exit_code = report(request.runs, request.format, std::cout, request.options);
    std::cout.flush();
    return exit_code;
  }
  std::ostringstream text;
  const int exit_code = report(request.runs, request.format, text, request.options);
  write_output_file(output, text.str(), "-o");
  if (beside) std::cout << output.string() << std::endl;
  if (exit_code == kExitRunFailed) {
    std::cerr << "tpjitter: the record is incomplete or damaged: " << output.string()
              << " says what and where\n";
  }
  return exit_code;
}

}  // namespace

int print_report(const std::filesystem::path& run) {
  ReportRequest request;
  request.runs = {run};
  return report_command(request);
}

void add_report_command(CLI::App& app, int& exit_code) {
  auto request = std::make_shared<ReportRequest>();
  CLI::App* report = app.add_subcommand("report", "Report on run directories");
  report->add_option("run", request->runs, "Run directory or directories")->required();
  report->add_option("--format", request->format, "text, md, json, html, csv or perfetto")
      ->envname("TPJITTER_FORMAT")
      ->capture_default_str();
  report
      ->add_option("-o", request->output,
                   "File to write; default: stdout, html: report.html in the run")
      ->check(not_empty());
  report
      ->add_option("--case", request->options.case_glob,
                   "perfetto, csv --replays: only cases whose name matches the pattern")
      ->check(not_empty());
  report
      ->add_option("--steps", request->steps,
                   "perfetto: FIRST..LAST in place of the worst 100 steps")
      ->check(not_empty());
  report->add_flag("--replays", request->options.replays, "csv: a line for every replay and rank");
  report->callback([request, &exit_code] {
    if (!request->steps.empty()) request->options.steps = parse_step_range(request->steps);
    exit_code = report_command(*request);
  });
}

}  // namespace tpjitter
