// Reading a summary document (tpjitter.summary/1): what text and Markdown share.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "harness/contract/run_info.h"
#include "reports/text_table.h"

namespace tpjitter {

// A number of a metric ("dispatch_ns", "p99"); nullopt where the summary has null.
std::optional<std::int64_t> metric_value(const Json& metrics, const char* key,
                                         const char* statistic);
std::optional<std::int64_t> integer_or_none(const Json& value);
std::optional<double> number_or_none(const Json& value);

// A plain value as people read it; a nested one as JSON.
std::string plain(const Json& value);

// Columns of one metric, one unit: a row for each of `metrics`.
TableGroup metric_group(const std::string& title, const std::vector<const Json*>& metrics,
                        const char* key, const std::vector<const char*>& statistics);

// The tables of a report.
std::vector<TableGroup> comparison_table(const Json& summary);
std::vector<TableGroup> rank_table(const Json& summary_case);
std::vector<TableGroup> phase_table(const Json& summary_case);
// Steps that stand out, "launch.repetition.step": a table for each quantity that ranks them.
struct OutlierTable {
  std::string title;
  std::vector<TableGroup> groups;
};
std::vector<OutlierTable> outlier_tables(const Json& summary_case);
inline constexpr const char* kOutlierNote =
    "Steps that stand out above the case's median (launch.repetition.step), with the late rank's "
    "context switches (voluntary+involuntary) and page faults (minor+major) since the step before.";
std::vector<TableGroup> control_table(const Json& summary);
// What a path saves of the lateness, by stage (summary_savings.cpp); empty for one path.
std::vector<TableGroup> savings_table(const Json& summary);
std::string savings_note(const Json& summary);

// Sentences, without line breaks.
std::string title_line(const Json& summary);    // "smoke: 2 ranks, host backend (...)"
std::string device_note(const Json& summary);   // what the waits are
std::string warning_line(const Json& warning);  // without its code
std::string attribution_line(const Json& summary_case);
// Delays that a case injected, "" for none; and whether the run has any such case, in one line.
std::string injected_line(const Json& summary_case);
std::string injected_note(const Json& summary);
// How the clocks were compared; empty without a calibration, method_lines says so then.
std::vector<std::string> clock_lines(const Json& summary);
std::string floor_line(const Json& summary, const Json& summary_case);
// The command that made the run, for a shell: words that need it are quoted.
std::string command_line(const Json& summary);
std::vector<std::string> method_lines(const Json& summary);  // how it was measured
// Why figures are null (summary_reasons.cpp): what is true of every case, and what only of one.
std::vector<std::string> common_reason_lines(const Json& summary);
std::vector<std::string> control_reason_lines(const Json& summary);
std::vector<std::string> reason_lines(const Json& summary, const Json& summary_case);

}  // namespace tpjitter
