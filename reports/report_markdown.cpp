// The report for a pull request comment: the comparison in sight, everything else folded. Text from
// the record is escaped: a name cannot end a cell, open a tag or make a link.
#include <fmt/format.h>

#include <algorithm>
#include <ostream>
#include <sstream>

#include "reports/report.h"
#include "reports/summary_view.h"
#include "reports/verdict.h"

namespace tpjitter {
namespace {

// GitHub's comments hold 65536 characters; some are left for what stands around the report.
constexpr std::size_t kCommentBytes = 60'000;

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

void write_table(const std::vector<TableGroup>& groups, std::ostream& out) {
  std::string heads = "|", rule = "|";
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (const TableColumn& column : groups[g].columns) {
      heads += fmt::format(" {}{}{} |", groups[g].title, groups[g].title.empty() ? "" : ", ",
                           column.head);
      rule += g == 0 ? "---|" : "---:|";
    }
  }
  out << heads << '\n' << rule << '\n';
  for (std::size_t row = 0; row < groups[0].columns[0].cells.size(); ++row) {
    out << '|';
    for (const TableGroup& group : groups) {
      for (const TableColumn& column : group.columns)
        out << ' ' << escape(column.cells[row]) << " |";
    }
    out << '\n';
  }
}

void write_list(const std::vector<std::string>& lines, std::ostream& out) {
  for (const std::string& line : lines) out << "- " << escape(plain_spaces(line)) << '\n';
}

// Blank lines around the content: without them GitHub shows the Markdown inside as text.
void open_details(const std::string& title, std::ostream& out) {
  out << "\n<details><summary>" << escape_html(title) << "</summary>\n\n";
}
void close_details(std::ostream& out) { out << "\n</details>\n"; }

void write_warnings(const Json& summary, std::ostream& out) {
  for (const Json& warning : summary["warnings"]) {
    out << fmt::format("- **{}**: {}\n", escape(plain(warning["code"])),
                       escape(warning_line(warning)));
  }
  const std::string note = injected_note(summary);
  if (!note.empty()) out << "- **injected**: " << escape(note) << '\n';
  for (const Json& skipped : summary["skipped_cases"]) {
    out << fmt::format("- skipped {}: {}\n", escape(plain(skipped["name"])),
                       escape(plain(skipped["reason"])));
  }
  if (!summary["warnings"].empty() || !summary["skipped_cases"].empty() || !note.empty()) {
    out << '\n';
  }
}

void write_case(const Json& summary, const Json& c, std::ostream& out) {
  open_details(plain(c["name"]), out);
  write_table(rank_table(c), out);
  if (c["phases"].size() > 1) {
    out << '\n';
    write_table(phase_table(c), out);
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
  write_list(lines, out);
  if (!c["outliers"].empty()) {
    out << '\n' << escape(kOutlierNote) << "\n\n";
    for (const OutlierTable& table : outlier_tables(c)) {
      out << escape(table.title) << ":\n\n";
      write_table(table.groups, out);
      out << '\n';
    }
  }
  close_details(out);
}

// The details of as many cases as there is room for, in bytes.
void write_cases(const Json& summary, std::size_t room, std::ostream& out) {
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
    out << fmt::format(
        "\nDetails of {} of {} cases are left out, so that this fits a comment; the HTML page and "
        "the JSON summary have them.\n",
        left_out, summary["cases"].size());
  }
}

void write_head(const Json& summary, std::ostream& out) {
  out << "### tpjitter: " << escape(title_line(summary)) << "\n\n";
  write_warnings(summary, out);
  out << "Status: **" << escape(plain(summary["status"])) << "**";
  if (!summary["status_reason"].is_null()) out << ", " << escape(plain(summary["status_reason"]));
  out << "\n\n" << escape(make_verdict(summary, {}).sentence) << "\n\n";
  if (!summary["cases"].empty()) {
    write_table(comparison_table(summary), out);
    out << "\nMaximum over ranks in each replay, quantiles over replays. " << device_note(summary)
        << '\n';
    const std::vector<std::string> reasons = common_reason_lines(summary);
    if (!reasons.empty()) out << '\n';
    write_list(reasons, out);
  }
}

void write_tail(const Json& summary, std::ostream& out) {
  if (!summary["savings"].empty()) {
    open_details("What a path saves of the lateness", out);
    write_table(savings_table(summary), out);
    out << '\n' << escape(savings_note(summary)) << '\n';
    close_details(out);
  }
  open_details("Controls", out);
  write_table(control_table(summary), out);
  const std::vector<std::string> reasons = control_reason_lines(summary);
  if (!reasons.empty()) out << '\n';
  write_list(reasons, out);
  close_details(out);
  if (const std::vector<std::string> lines = clock_lines(summary); !lines.empty()) {
    open_details("Clocks", out);
    write_list(lines, out);
    close_details(out);
  }
  open_details("How it was measured", out);
  if (const std::string command = command_line(summary); !command.empty()) {
    // One line without line breaks, and what begins with ` is quoted: it cannot end the block.
    out << "```sh\n" << command << "\n```\n\n";
  }
  write_list(method_lines(summary), out);
  close_details(out);
}

void write_one(const Json& summary, std::size_t room, std::ostream& out) {
  std::ostringstream head, tail;
  write_head(summary, head);
  write_tail(summary, tail);
  const std::size_t fixed = head.view().size() + tail.view().size();
  out << head.view();
  write_cases(summary, room - std::min(room, fixed), out);
  out << tail.view();
}

}  // namespace

void write_markdown(const std::vector<Json>& summaries, std::ostream& out) {
  for (std::size_t i = 0; i < summaries.size(); ++i) {
    if (i > 0) out << "\n---\n\n";
    write_one(summaries[i], kCommentBytes / summaries.size(), out);
  }
}

}  // namespace tpjitter
