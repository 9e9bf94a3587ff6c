// The report for a terminal: warnings first, then the status, the comparison of the paths, each
// rank, and how it was measured. Rendered from the summary document alone.
#include <fmt/format.h>

#include <ostream>

#include "reports/report.h"
#include "reports/summary_view.h"
#include "reports/text_table.h"
#include "reports/verdict.h"

namespace tpjitter {
namespace {

void heading(const std::string& text, std::ostream& out) {
  const std::string wrapped = wrap(text, 0, 0);
  out << '\n' << wrapped << std::string(std::min(display_width(text), kTextWidth), '-') << '\n';
}

void write_warnings(const Json& summary, std::ostream& out) {
  for (const Json& warning : summary["warnings"]) {
    out << wrap(fmt::format("warning [{}]: {}", plain(warning["code"]), warning_line(warning)), 0,
                2);
  }
  if (const std::string note = injected_note(summary); !note.empty()) {
    out << wrap("note [injected]: " + note, 0, 2);
  }
  for (const Json& skipped : summary["skipped_cases"]) {
    out << wrap(fmt::format("skipped {}: {}", plain(skipped["name"]), plain(skipped["reason"])), 0,
                2);
  }
}

void write_status(const Json& summary, std::ostream& out) {
  std::string line = "status: " + plain(summary["status"]);
  if (!summary["status_reason"].is_null()) line += ", " + plain(summary["status_reason"]);
  out << wrap(line, 0, 2);
  for (const Json& rank : summary["ranks"]) {
    if (rank["status"] == "complete") continue;
    out << wrap(fmt::format("rank {}: {}{}, {} rows", plain(rank["rank"]), plain(rank["status"]),
                            rank["ended_at"].is_null() ? "" : " at " + plain(rank["ended_at"]),
                            plain(rank["rows"])),
                2, 4);
  }
}

void write_verification(const Json& summary, std::ostream& out) {
  std::uint64_t checked = 0, failed = 0, equal = 0, unknown = 0;
  for (const Json& c : summary["cases"]) {
    checked += c["steps_checked"].get<std::uint64_t>();
    failed += c["checksum_failures"].get<std::uint64_t>();
    equal += c["bit_equal"] == true ? 1 : 0;
    unknown += c["bit_equal"].is_null() ? 1 : 0;
  }
  const std::size_t cases = summary["cases"].size();
  out << wrap(
      fmt::format("metadata: bit-equal to the reference in {} of {} cases{}; {} step checksums "
                  "compared, {} wrong",
                  equal, cases, unknown > 0 ? fmt::format(" ({} not checked)", unknown) : "",
                  checked, failed),
      0, 2);
}

void write_case(const Json& summary, const Json& c, std::ostream& out) {
  heading(fmt::format("{}: which rank is late?", plain(c["name"])), out);
  out << render_table(rank_table(c), 0);
  if (c["phases"].size() > 1) out << '\n' << render_table(phase_table(c), 0);
  for (const std::string& line : reason_lines(summary, c)) out << wrap("- " + line, 0, 2);
  if (c["outliers"].empty()) return;
  out << '\n' << wrap(kOutlierNote, 0, 0);
  for (const OutlierTable& table : outlier_tables(c)) {
    out << table.title << ":\n" << render_table(table.groups, 2);
  }
}

void write_attribution(const Json& summary, std::ostream& out) {
  heading("What makes the ranks wait?", out);
  for (const Json& c : summary["cases"]) {
    if (const std::string injected = injected_line(c); !injected.empty()) {
      out << wrap(fmt::format("{}: injected: {}", plain(c["name"]), injected), 0, 2);
      out << wrap(attribution_line(c), 2, 4);
    } else {
      out << wrap(fmt::format("{}: {}", plain(c["name"]), attribution_line(c)), 0, 2);
    }
    for (const Json& missing : c["attribution"]["missing_evidence"]) {
      out << wrap("missing: " + plain(missing), 2, 4);
    }
    out << wrap("next: " + plain(c["attribution"]["next_experiment"]), 2, 4);
  }
  if (summary["savings"].empty()) return;
  heading("What does a path save of the lateness, in which stage?", out);
  out << render_table(savings_table(summary), 0) << wrap(savings_note(summary), 0, 0);
}

void write_one(const Json& summary, std::ostream& out) {
  write_warnings(summary, out);
  out << wrap(title_line(summary), 0, 2);
  write_status(summary, out);
  write_verification(summary, out);
  out << wrap("verdict: " + make_verdict(summary, {}).sentence, 0, 2);
  if (!summary["cases"].empty()) {
    heading("Which path costs least? Maximum over ranks in each replay, quantiles over replays.",
            out);
    out << render_table(comparison_table(summary), 0);
    if (const std::string note = device_note(summary); !note.empty()) out << wrap(note, 0, 0);
    out << wrap(
        "A dash: too few samples or not taken, for the reasons given below the table or at each "
        "case. "
        "First steps after warm-up and of each block are left out.",
        0, 0);
    for (const std::string& line : common_reason_lines(summary)) out << wrap("- " + line, 0, 2);
    for (const Json& c : summary["cases"]) write_case(summary, c, out);
    write_attribution(summary, out);
  }
  heading("What does nothing cost? Controls and floors of the wait.", out);
  out << render_table(control_table(summary), 0);
  for (const std::string& line : control_reason_lines(summary)) out << wrap("- " + line, 0, 2);
  for (const Json& c : summary["cases"]) {
    out << wrap(fmt::format("floor {}: {}", plain(c["name"]), floor_line(summary, c)), 0, 2);
  }
  if (const std::vector<std::string> lines = clock_lines(summary); !lines.empty()) {
    heading("Can stamps of different clocks be compared?", out);
    for (const std::string& line : lines) out << wrap("- " + line, 0, 2);
  }
  heading("How was it measured?", out);
  for (const std::string& line : method_lines(summary)) out << wrap(line, 0, 2);
  // Not wrapped: a line break in it could not be pasted.
  if (const std::string command = command_line(summary); !command.empty()) {
    out << "command, to measure it again:\n  " << command << '\n';
  }
}

}  // namespace

void write_text(const std::vector<Json>& summaries, std::ostream& out) {
  for (std::size_t i = 0; i < summaries.size(); ++i) {
    if (i > 0) out << '\n' << std::string(kTextWidth, '=') << "\n\n";
    write_one(summaries[i], out);
  }
}

}  // namespace tpjitter
