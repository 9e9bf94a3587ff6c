// What a CI system shows beside the change itself: workflow commands of GitHub, and GitLab's code
// quality report. A place is the rule's line in the thresholds file.
#include <fmt/format.h>

#include <map>

#include "reports/gate_exports.h"
#include "reports/text_table.h"

namespace tpjitter {
namespace {

std::string percent_of(const std::string& text) {  // %0A and the like, as workflow commands escape
  std::string escaped;
  for (const char c : text) {
    if (c == '%') {
      escaped += "%25";
    } else if (c == '\r' || c == '\n') {
      escaped += c == '\r' ? "%0D" : "%0A";
    } else {
      escaped += c;
    }
  }
  return escaped;
}

std::string github(const GateResult& result) {
  std::string text;
  for (const GateRow& row : result.rows) {
    const Outcome outcome = outcome_of(row);
    if (outcome == Outcome::kPassed) continue;
    const char* level = outcome == Outcome::kSkipped ? "warning" : "error";
    text += fmt::format("::{} title=tpjitter {}::{}\n", level, verdict_name(row.verdict),
                        percent_of(fmt::format("{}: {}", row_label(row), row.reason)));
  }
  text += fmt::format("::{} title=tpjitter gate::{}\n", result.exit_code == 0 ? "notice" : "error",
                      percent_of(result.headline));
  return text;
}

// FNV-1a: the same finding has the same fingerprint in every pipeline, which is how GitLab tells new
// ones from old.
std::string fingerprint(const std::string& text) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return fmt::format("{:016x}", hash);
}

// "ci/thresholds.toml:12:1" as file and line; the built-in rules stand in no file.
Json location_of(const std::string& place) {
  const auto column = place.rfind(':');
  const auto line =
      column == std::string::npos || column == 0 ? std::string::npos : place.rfind(':', column - 1);
  int number = 1;
  std::string path = "tpjitter gate";
  if (line != std::string::npos) {
    path = place.substr(0, line);
    number = std::max(1, std::atoi(place.c_str() + line + 1));
  }
  return {{"path", printable(path)}, {"lines", {{"begin", number}}}};
}

Json finding(const std::string& name, const std::string& subject, const std::string& description,
             const char* severity, const std::string& place) {
  return {{"description", printable(description)},
          {"check_name", "tpjitter " + name},
          {"fingerprint", fingerprint(name + "/" + subject)},
          {"severity", severity},
          {"location", location_of(place)}};
}

std::string gitlab(const GateResult& result) {
  Json findings = Json::array();
  std::map<std::string, int> rules_before;  // on the same subject, passed ones too
  for (const GateRow& row : result.rows) {
    // Rules are told apart by file and turn: a line number moves with every edit above it.
    std::string subject =
        fmt::format("{}/{}/{}/{}", row_label(row), check_kind_name(row.kind), row.limit_source,
                    location_of(row.place)["path"].get<std::string>());
    if (const int n = rules_before[subject]++; n > 0) subject += fmt::format("/{}", n);
    const Outcome outcome = outcome_of(row);
    if (outcome == Outcome::kPassed) continue;
    findings.push_back(finding(verdict_name(row.verdict), subject,
                               fmt::format("{}: {}", row_label(row), row.reason),
                               outcome == Outcome::kSkipped   ? "minor"
                               : outcome == Outcome::kFailure ? "critical"
                                                              : "blocker",
                               row.place));
  }
  if (result.exit_code != 0) {
    findings.push_back(finding("verdict", "gate", result.headline,
                               result.exit_code == 1 ? "critical" : "blocker", ""));
  }
  return json_text(findings);
}

}  // namespace

std::string gate_annotations(const GateResult& result, const std::string& system) {
  return system == "gitlab" ? gitlab(result) : github(result);
}

}  // namespace tpjitter
