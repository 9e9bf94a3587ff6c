#include "reports/gate_exports.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "reports/text_table.h"

namespace tpjitter {
namespace {

constexpr std::size_t kMarkdownRows = 20, kMarkdownNotes = 10;

std::string xml(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      default:
        // XML 1.0 has no other control characters.
        escaped += static_cast<unsigned char>(c) < 0x20 && c != '\t' ? '?' : c;
    }
  }
  return escaped;
}

std::string markdown(const std::string& text) {
  std::string escaped;
  for (const char c : printable(text)) {
    if (std::string_view("\\`*_[]<>|#~&").find(c) != std::string_view::npos) escaped += '\\';
    escaped += c;
  }
  return escaped;
}

bool decides(const GateRow& row) { return row.required && !row.waived; }

std::string testcase(const GateRow& row) {
  std::string text =
      fmt::format("    <testcase classname=\"{}\" name=\"{} {} {}{}\" time=\"0\"",
                  xml(row.case_name), xml(row.metric), xml(row.statistic),
                  check_kind_name(row.kind), row.phase.empty() ? "" : xml(" " + row.phase));
  const std::string message = xml(fmt::format("{}: {}{}", verdict_name(row.verdict), row.reason,
                                              row.waived ? "; waived: " + *row.waived : ""));
  switch (outcome_of(row)) {
    case Outcome::kPassed:
      return text + "/>\n";
    case Outcome::kFailure:
      return text + fmt::format("><failure message=\"{}\"/></testcase>\n", message);
    case Outcome::kError:
      return text + fmt::format("><error message=\"{}\"/></testcase>\n", message);
    default:
      return text + fmt::format("><skipped message=\"{}\"/></testcase>\n", message);
  }
}

struct Counts {
  int tests = 0, failures = 0, errors = 0, skipped = 0;
  void add(Outcome outcome) {
    ++tests;
    failures += outcome == Outcome::kFailure;
    errors += outcome == Outcome::kError;
    skipped += outcome == Outcome::kSkipped;
  }
  std::string attributes() const {
    return fmt::format("tests=\"{}\" failures=\"{}\" errors=\"{}\" skipped=\"{}\" time=\"0\"",
                       tests, failures, errors, skipped);
  }
};

std::string value_text(const GateRow& row, const std::optional<double>& value) {
  if (!value) return "-";
  return row.kind == CheckKind::kRatio ? fmt::format("{:.3f}", *value)
                                       : fmt::format("{:.2f}", *value / 1000);
}

std::string change_text(const GateRow& row) {
  if (!row.change || !row.baseline || *row.baseline == 0) return "-";
  return fmt::format("{:+.1f} %", *row.change / std::abs(*row.baseline) * 100);
}

int order_of(const GateRow& row) {
  if (!decides(row)) return 9;
  switch (row.verdict) {
    case Verdict::kRegressed:
      return 0;
    case Verdict::kIncomparable:
    case Verdict::kNothingMeasured:
      return 1;
    case Verdict::kInconclusive:
      return 2;
    case Verdict::kImproved:
      return 3;
    default:
      return 4;
  }
}

}  // namespace

Outcome outcome_of(const GateRow& row) {
  if (row.verdict == Verdict::kPass || row.verdict == Verdict::kImproved) return Outcome::kPassed;
  if (!decides(row) || row.verdict == Verdict::kInconclusive) return Outcome::kSkipped;
  return row.verdict == Verdict::kRegressed ? Outcome::kFailure : Outcome::kError;
}

std::string gate_junit(const GateResult& result) {
  std::map<std::string, std::vector<const GateRow*>> suites;
  for (const GateRow& row : result.rows) suites[row.case_name].push_back(&row);
  Counts all;
  std::string body;
  for (const auto& [name, rows] : suites) {
    Counts counts;
    std::string cases;
    for (const GateRow* row : rows) {
      counts.add(outcome_of(*row));
      all.add(outcome_of(*row));
      cases += testcase(*row);
    }
    body += fmt::format("  <testsuite name=\"{}\" {}>\n{}  </testsuite>\n", xml(name),
                        counts.attributes(), cases);
  }
  // What keeps the whole gate from a verdict is a testcase of its own, so that no report is green.
  const bool stopped =
      result.exit_code > 1 && (result.rows.empty() || result.is_void || result.exit_code != 4);
  if (stopped) {
    Counts counts;
    counts.add(Outcome::kError);
    all.add(Outcome::kError);
    body += fmt::format(
        "  <testsuite name=\"gate\" {}>\n    <testcase classname=\"gate\" name=\"verdict\" "
        "time=\"0\"><error message=\"{}\"/></testcase>\n  </testsuite>\n",
        counts.attributes(), xml(result.headline));
  }
  return fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"tpjitter gate\" {}>\n{}"
      "</testsuites>\n",
      all.attributes(), body);
}

std::string gate_markdown(const GateResult& result) {
  std::string text = fmt::format("### tpjitter gate: {}\n\n{}\n\n", verdict_name(result.verdict),
                                 markdown(result.headline));
  std::vector<const GateRow*> rows;
  for (const GateRow& row : result.rows) rows.push_back(&row);
  std::stable_sort(rows.begin(), rows.end(),
                   [](const GateRow* a, const GateRow* b) { return order_of(*a) < order_of(*b); });
  const std::size_t shown = std::min(rows.size(), kMarkdownRows);
  if (shown > 0) {
    text +=
        "| verdict | metric | case | baseline us | contender us | change | limit us |\n"
        "|---|---|---|---:|---:|---:|---:|\n";
  }
  for (std::size_t i = 0; i < shown; ++i) {
    const GateRow& row = *rows[i];
    text += fmt::format("| {}{} | {} {} | {} | {} | {} | {} | {} |\n",
                        row.waived ? "waived" : verdict_name(row.verdict),
                        row.required ? "" : " (advisory)", markdown(row.metric),
                        markdown(row.statistic),
                        markdown(row.case_name + (row.phase.empty() ? "" : ", " + row.phase)),
                        value_text(row, row.baseline), value_text(row, row.contender),
                        change_text(row), value_text(row, row.limit));
  }
  if (rows.size() > shown) text += fmt::format("\n{} more rows.\n", rows.size() - shown);
  std::vector<std::string> notes;
  for (const std::string& line : result.incomparable) notes.push_back("differs: " + line);
  for (const std::string& line : result.allowed) notes.push_back("differs, allowed: " + line);
  for (const GateControl& control : result.controls) {
    if (!control.stable) notes.push_back("control " + control.name + ": " + control.reason);
  }
  notes.insert(notes.end(), result.notes.begin(), result.notes.end());
  const std::vector<std::string> order = order_lines(result);
  notes.insert(notes.end(), order.begin(), order.end());
  if (notes.empty()) return text;
  text += "\n<details><summary>Notes</summary>\n\n";
  for (std::size_t i = 0; i < std::min(notes.size(), kMarkdownNotes); ++i) {
    text += "- " + markdown(notes[i]) + "\n";
  }
  if (notes.size() > kMarkdownNotes) {
    text += fmt::format("- {} more\n", notes.size() - kMarkdownNotes);
  }
  return text + "\n</details>\n";
}

}  // namespace tpjitter
