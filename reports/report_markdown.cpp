// The report for a pull request comment: the comparison in sight, everything else folded. Text from
// the record is escaped: a name cannot end a cell, open a tag or make a link.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <ostream>
#include <sstream>
#include <string_view>

#include "reports/report.h"
#include "reports/summary_view.h"
#include "reports/verdict.h"

namespace tpjitter {
namespace {

// GitHub's comments hold 65536 characters; some are left for what stands around the report.
constexpr std::size_t kCommentBytes = 60'000;

// Where head and tail do not fit, their lists and tables have at most this each, in parts of kParts;
// what is left is for lines that do not grow with the run, and for the details of cases.
constexpr std::size_t kParts = 24, kComparisonParts = 6, kWarningParts = 4, kListParts = 2;

constexpr const char* kLeftOut =
    "left out, so that this fits a comment; the HTML page and the JSON summary have them";
constexpr std::size_t kLeftOutBytes = 120;  // with its number

constexpr std::size_t kNoLimit = SIZE_MAX;

std::string escape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '|':
        out += "\\|";
        break;
      case '\\':
      case '`':
      case '*':
      case '_':
      case '[':
      case ']':
      case '#':
      case '~':
      case '!':
      case '@':
        out += '\\';
        out += c;
        break;
      default:
        out += c;
    }
  }
  return out;
}

// Inside an HTML tag Markdown's backslashes would show.
std::string escape_html(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else {
      out += c;
    }
  }
  return out;
}

// As many lines as there is room for, in bytes, and the number of the others.
void write_lines(const std::vector<std::string>& lines, std::size_t room, std::ostream& out) {
  room -= std::min(room, kLeftOutBytes);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].size() + 1 > room) {
      out << fmt::format("\n{} more, {}.\n", lines.size() - i, kLeftOut);
      return;
    }
    room -= lines[i].size() + 1;
    out << lines[i] << '\n';
  }
}

void write_table(const std::vector<TableGroup>& groups, std::size_t room, std::ostream& out) {
  std::string heads = "|", rule = "|";
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (const TableColumn& column : groups[g].columns) {
      heads += fmt::format(" {}{}{} |", groups[g].title, groups[g].title.empty() ? "" : ", ",
                           column.head);
      rule += g == 0 ? "---|" : "---:|";
    }
  }
  out << heads << '\n' << rule << '\n';
  std::vector<std::string> rows;
  for (std::size_t row = 0; row < groups[0].columns[0].cells.size(); ++row) {
    std::string& line = rows.emplace_back("|");
    for (const TableGroup& group : groups) {
      for (const TableColumn& column : group.columns)
        line += ' ' + escape(column.cells[row]) + " |";
    }
  }
  write_lines(rows, room - std::min(room, heads.size() + rule.size() + 2), out);
}

void write_list(const std::vector<std::string>& lines, std::size_t room, std::ostream& out) {
  std::vector<std::string> items;
  for (const std::string& line : lines) items.push_back("- " + escape(plain_spaces(line)));
  write_lines(items, room, out);
}

// Blank lines around the content: without them GitHub shows the Markdown inside as text.
void open_details(const std::string& title, std::ostream& out) {
  out << "\n<details><summary>" << escape_html(title) << "</summary>\n\n";
}
void close_details(std::ostream& out) { out << "\n</details>\n"; }

void write_warnings(const Json& summary, std::size_t room, std::ostream& out) {
  std::vector<std::string> lines;
  for (const Json& warning : summary["warnings"]) {
    lines.push_back(
        fmt::format("- **{}**: {}", escape(plain(warning["code"])), escape(warning_line(warning))));
  }
  const std::string note = injected_note(summary);
  if (!note.empty()) lines.push_back("- **injected**: " + escape(note));
  for (const Json& skipped : summary["skipped_cases"]) {
    lines.push_back(fmt::format("- skipped {}: {}", escape(plain(skipped["name"])),
                                escape(plain(skipped["reason"]))));
  }
  write_lines(lines, room, out);
  if (!lines.empty()) out << '\n';
}

void write_case(const Json& summary, const Json& c, std::ostream& out) {
  open_details(plain(c["name"]), out);
  write_table(rank_table(c), kNoLimit, out);
  if (c["phases"].size() > 1) {
    out << '\n';
    write_table(phase_table(c), kNoLimit, out);
  }
  out << '\n';
  std::vector<std::string> lines;
  if (const std::string line = injected_line(c); !line.empty())
    lines.push_back("injected: " + line);
  lines.push_back("attribution: " + attribution_line(c));
  for (const Json& missing : c["attribution"]["missing_evidence"]) {
    lines.push_back("missing: " + plain(missing));
  }
  lines.push_back("next: " + plain(c["attribution"]["next_experiment"]));
  lines.push_back("floor: " + floor_line(summary, c));
  for (const std::string& reason : reason_lines(summary, c)) lines.push_back(reason);
  write_list(lines, kNoLimit, out);
  if (!c["outliers"].empty()) {
    out << '\n' << escape(kOutlierNote) << "\n\n";
    for (const OutlierTable& table : outlier_tables(c)) {
      out << escape(table.title) << ":\n\n";
      write_table(table.groups, kNoLimit, out);
      out << '\n';
    }
  }
  close_details(out);
}

// The details of as many cases as there is room for, in bytes.
void write_cases(const Json& summary, std::size_t room, std::ostream& out) {
  room -= std::min(room, kLeftOutBytes);
  std::size_t left_out = 0;
  for (const Json& c : summary["cases"]) {
    std::ostringstream text;
    write_case(summary, c, text);
    if (left_out > 0 || text.view().size() > room) {
      ++left_out;
      continue;
    }
    room -= text.view().size();
    out << text.view();
  }
  if (left_out > 0) {
    out << fmt::format("\nDetails of {} of {} cases are {}.\n", left_out, summary["cases"].size(),
                       kLeftOut);
  }
}

void write_head(const Json& summary, std::size_t part, std::ostream& out) {
  out << "### tpjitter: " << escape(title_line(summary)) << "\n\n";
  write_warnings(summary, kWarningParts * part, out);
  out << "Status: **" << escape(plain(summary["status"])) << "**";
  if (!summary["status_reason"].is_null()) out << ", " << escape(plain(summary["status_reason"]));
  out << "\n\n" << escape(make_verdict(summary, {}).sentence) << "\n\n";
  if (!summary["cases"].empty()) {
    write_table(comparison_table(summary), kComparisonParts * part, out);
    out << "\nMaximum over ranks in each replay, quantiles over replays. " << device_note(summary)
        << '\n';
    const std::vector<std::string> reasons = common_reason_lines(summary);
    if (!reasons.empty()) out << '\n';
    write_list(reasons, kListParts * part, out);
  }
}

void write_tail(const Json& summary, std::size_t part, std::ostream& out) {
  if (!summary["savings"].empty()) {
    open_details("What a path saves of the lateness", out);
    write_table(savings_table(summary), kListParts * part, out);
    out << '\n' << escape(savings_note(summary)) << '\n';
    close_details(out);
  }
  open_details("Controls", out);
  write_table(control_table(summary), kListParts * part, out);
  const std::vector<std::string> reasons = control_reason_lines(summary);
  if (!reasons.empty()) out << '\n';
  write_list(reasons, kListParts * part, out);
  close_details(out);
  if (const std::vector<std::string> lines = clock_lines(summary); !lines.empty()) {
    open_details("Clocks", out);
    write_list(lines, kListParts * part, out);
    close_details(out);
  }
  open_details("How it was measured", out);
  if (const std::string command = command_line(summary); !command.empty()) {
    // One line without line breaks, and what begins with ` is quoted: it cannot end the block.
    out << "```sh\n" << command << "\n```\n\n";
  }
  write_list(method_lines(summary), kListParts * part, out);
  close_details(out);
}

void write_one(const Json& summary, std::size_t room, std::ostream& out) {
  std::string head, tail;
  for (const std::size_t whole : {kNoLimit, room}) {
    std::ostringstream head_text, tail_text;
    write_head(summary, whole / kParts, head_text);
    write_tail(summary, whole / kParts, tail_text);
    head = head_text.str();
    tail = tail_text.str();
    if (head.size() + tail.size() <= room) break;
  }
  out << head;
  write_cases(summary, room - std::min(room, head.size() + tail.size()), out);
  out << tail;
}

}  // namespace

void write_markdown(const std::vector<Json>& summaries, std::ostream& out) {
  constexpr std::string_view kBetween = "\n---\n\n";
  for (std::size_t i = 0; i < summaries.size(); ++i) {
    if (i > 0) out << kBetween;
    write_one(summaries[i], kCommentBytes / summaries.size() - kBetween.size(), out);
  }
}

}  // namespace tpjitter
