#include "reports/report.h"

#include <fmt/format.h>
#include <fnmatch.h>
#include <malloc.h>

#include <algorithm>
#include <charconv>
#include <ostream>

#include "harness/contract/error.h"
#include "reports/run_reader.h"
#include "reports/summary.h"
#include "reports/text_table.h"

namespace tpjitter {
namespace {

using Runs = std::span<const AnalysedRun>;

// Formats that are rendered from the summaries alone.
template <void (*kWrite)(const std::vector<Json>&, std::ostream&)>
void from_summaries(Runs runs, const ReportOptions&, std::ostream& out) {
  std::vector<Json> summaries;
  for (const AnalysedRun& run : runs) summaries.push_back(run.summary);
  kWrite(summaries, out);
}

constexpr Exporter kExporters[] = {
    {"text", "txt", "tables for a terminal", true, false, false, from_summaries<write_text>},
    {"md", "md", "Markdown for a pull request, details folded", true, false, false,
     from_summaries<write_markdown>},
    {"json", "json", "the summary itself, tpjitter.summary/1", true, false, false,
     from_summaries<write_json>},
    {"html", "html", "one page that opens offline, with charts", true, true, true, write_html},
    {"csv", "csv", "the metrics as one table; --replays: every replay", true, false, false,
     write_csv},
    {"perfetto", "perfetto.json", "a trace of the worst steps, or of --steps", false, false, false,
     write_perfetto},
};

std::vector<std::filesystem::path> expand(const std::filesystem::path& directory) {
  std::error_code error;
  std::vector<std::filesystem::path> inner;
  if (!std::filesystem::exists(directory / "run.json", error)) {
    for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
      if (std::filesystem::exists(entry.path() / "run.json", error)) inner.push_back(entry.path());
    }
    std::sort(inner.begin(), inner.end());
  }
  return inner.empty() ? std::vector{directory} : inner;
}

// Columns of millions of values come and go: their pages are kept instead of being given back and
// cleared anew each time (half of the system time of a report on ten million rows).
void keep_freed_memory() {
  mallopt(M_MMAP_THRESHOLD, 32 << 20);  // the most that it takes
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  mallopt(M_ARENA_MAX, 1);
}

// An option that a format does not look at would be ignored in silence.
void check_options(const std::string& format, const ReportOptions& options) {
  if (options.steps && format != "perfetto")
    throw ConfigError("--steps goes with --format perfetto");
  if (options.replays && format != "csv") throw ConfigError("--replays goes with --format csv");
  if (!options.case_glob.empty() && format != "perfetto" && !options.replays) {
    throw ConfigError("--case goes with --format perfetto or csv --replays");
  }
}

void check_case_glob(const std::vector<AnalysedRun>& runs, const std::string& glob) {
  if (glob.empty()) return;
  std::string names;
  for (const AnalysedRun& run : runs) {
    for (const RunCase& c : run.run.info.cases) {
      if (c.skip_reason) continue;
      if (matches(glob, c.name)) return;
      names += (names.empty() ? "" : ", ") + printable(c.name);
    }
  }
  throw ConfigError(fmt::format("--case {}: matches no measured case; there are: {}", glob, names));
}

}  // namespace

bool matches(const std::string& glob, const std::string& name) {
  return glob.empty() || fnmatch(glob.c_str(), name.c_str(), 0) == 0;
}

std::span<const Exporter> exporters() { return kExporters; }

std::string run_label(std::span<const AnalysedRun> runs, std::size_t number) {
  const std::string& name = runs[number].run.info.scenario_name;
  std::size_t same = 0, before = 0;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].run.info.scenario_name != name) continue;
    ++same;
    before += i < number ? 1 : 0;
  }
  return same > 1 ? fmt::format("{} ({})", printable(name), before + 1) : printable(name);
}

const Exporter& find_exporter(const std::string& format) {
  const auto exporter = std::find_if(std::begin(kExporters), std::end(kExporters),
                                     [&](const Exporter& e) { return format == e.format; });
  if (exporter != std::end(kExporters)) return *exporter;
  std::string known;
  for (const Exporter& e : kExporters)
    known += fmt::format("{}{}", known.empty() ? "" : " | ", e.format);
  throw ConfigError(fmt::format("--format {}: not known; allowed: {}", format, known));
}

StepRange parse_step_range(const std::string& text) {
  const auto number = [&](std::size_t begin, std::size_t end, int* value) {
    const char* last = text.data() + end;
    const auto [at, error] = std::from_chars(text.data() + begin, last, *value);
    return error == std::errc() && at == last && begin < end && *value >= 0;
  };
  StepRange range;
  const std::size_t dots = text.find("..");
  const bool one = dots == std::string::npos;
  const bool good =
      one ? number(0, text.size(), &range.first)
          : number(0, dots, &range.first) && number(dots + 2, text.size(), &range.last);
  if (one) range.last = range.first;
  if (!good || range.last < range.first) {
    throw ConfigError(
        fmt::format("--steps {}: write FIRST..LAST, such as 10..20, steps from 0", text));
  }
  return range;
}

int report(const std::vector<std::filesystem::path>& runs, const std::string& format,
           std::ostream& out, const ReportOptions& options) {
  const Exporter& exporter = find_exporter(format);
  check_options(format, options);
  keep_freed_memory();
  std::vector<AnalysedRun> analysed;
  int exit_code = kExitPass;
  for (const auto& given : runs) {
    for (const auto& directory : expand(given)) {
      AnalysedRun& one = analysed.emplace_back();
      one.run = read_run(directory);
      Summary summary = exporter.needs_summary && !options.replays
                            ? summarize(one.run, exporter.needs_details ? &one.details : nullptr)
                            : check_run(one.run);
      exit_code = std::max(exit_code, summary.exit_code);  // 6 before 3 before 0
      one.summary = std::move(summary.document);
    }
  }
  if (analysed.empty()) throw ConfigError("report needs at least one run directory");
  check_case_glob(analysed, options.case_glob);
  exporter.write(analysed, options, out);
  out.flush();
  if (!out) throw RunError("the report could not be written; check the disk");
  return exit_code;
}

}  // namespace tpjitter
