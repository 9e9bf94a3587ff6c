// `tpjitter report`: reads run directories, analyses each once and renders it.
#pragma once

#include <filesystem>
#include <iosfwd>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "harness/contract/run_info.h"
#include "reports/case_detail.h"
#include "reports/run_reader.h"

namespace tpjitter {

struct AnalysedRun {
  Run run;
  Json summary;                     // tpjitter.summary/1, or its `status` alone
  std::vector<CaseDetail> details;  // by measured case; empty unless the exporter asks for them
};

// The run's scenario; numbered in the order given where several runs have the same.
std::string run_label(std::span<const AnalysedRun> runs, std::size_t number);

struct StepRange {
  int first = 0, last = 0;  // both are in
};
StepRange parse_step_range(const std::string& text);  // "10..20" or "10"; throws ConfigError

// What only some formats look at.
struct ReportOptions {
  std::string case_glob;           // csv --replays, perfetto: only cases that match; "" is all
  std::optional<StepRange> steps;  // perfetto: these steps in place of the worst ones
  bool replays = false;            // csv: one line per replay and rank in place of the statistics
};

bool matches(const std::string& glob, const std::string& case_name);

struct Exporter {
  const char* format;     // value of --format
  const char* extension;  // of a file that holds it
  const char* summary;
  bool needs_summary;  // else the rows and the run's status are enough
  bool needs_details;
  bool to_file;  // without -o it is written beside run.json, not to a terminal
  void (*write)(std::span<const AnalysedRun> runs, const ReportOptions& options, std::ostream& out);
};
std::span<const Exporter> exporters();
const Exporter& find_exporter(const std::string& format);  // throws ConfigError

void write_text(const std::vector<Json>& summaries, std::ostream& out);
void write_markdown(const std::vector<Json>& summaries, std::ostream& out);
void write_json(const std::vector<Json>& summaries, std::ostream& out);
void write_csv(std::span<const AnalysedRun> runs, const ReportOptions& options, std::ostream& out);
void write_html(std::span<const AnalysedRun> runs, const ReportOptions& options, std::ostream& out);
void write_perfetto(std::span<const AnalysedRun> runs, const ReportOptions& options,
                    std::ostream& out);

// A directory without run.json that holds run directories (several scenarios in one --out) stands
// for all of them, by name. Returns the exit code: 0, 3 if a run is incomplete or damaged, 6 if one
// has no rows. Throws ConfigError (unknown format) and RecordError before anything is written.
int report(const std::vector<std::filesystem::path>& runs, const std::string& format,
           std::ostream& out, const ReportOptions& options = {});

}  // namespace tpjitter
