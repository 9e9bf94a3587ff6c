#include "reports/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <ostream>

#include "harness/contract/error.h"
#include "reports/run_reader.h"
#include "reports/summary.h"

namespace tpjitter {
namespace {

constexpr Exporter kExporters[] = {
    {"text", "tables for a terminal", write_text},
    {"md", "Markdown for a pull request, details folded", write_markdown},
    {"json", "the summary itself, tpjitter.summary/1", write_json},
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

}  // namespace

std::span<const Exporter> exporters() { return kExporters; }

int report(const std::vector<std::filesystem::path>& runs, const std::string& format,
           std::ostream& out) {
  const auto exporter = std::find_if(std::begin(kExporters), std::end(kExporters),
                                     [&](const Exporter& e) { return format == e.format; });
  if (exporter == std::end(kExporters)) {
    std::string known;
    for (const Exporter& e : kExporters)
      known += fmt::format("{}{}", known.empty() ? "" : " | ", e.format);
    throw ConfigError(fmt::format("--format {}: not known; allowed: {}", format, known));
  }
  std::vector<Json> summaries;
  int exit_code = kExitPass;
  for (const auto& given : runs) {
    for (const auto& directory : expand(given)) {
      Summary summary = summarize(read_run(directory));
      exit_code = std::max(exit_code, summary.exit_code);  // 6 before 3 before 0
      summaries.push_back(std::move(summary.document));
    }
  }
  if (summaries.empty()) throw ConfigError("report needs at least one run directory");
  exporter->write(summaries, out);
  out.flush();
  if (!out) throw RunError("the report could not be written; check the disk");
  return exit_code;
}

}  // namespace tpjitter
