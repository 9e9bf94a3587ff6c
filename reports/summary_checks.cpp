#include "reports/summary_checks.h"

#include <fmt/format.h>

#include <algorithm>

#include "harness/contract/error.h"
#include "reports/summary.h"

namespace tpjitter {

void check_table(const RunCase& c, const ReplayTable& table, bool every_rank_has_rows,
                 std::vector<RunWarning>* problems) {
  const auto add = [&](std::uint64_t n, const char* code, const char* text) {
    if (n > 0) {
      problems->push_back({code, fmt::format("case {}: {} {}", c.name, n, text), std::nullopt});
    }
  };
  add(table.duplicates, "duplicate_rows", "rows repeat an ordinal of their rank; left out");
  // A rank without any row is named once, by the reader.
  if (every_rank_has_rows) {
    add(table.missing, "unmatched_rows",
        "rows of other ranks have no partner on some rank; figures over all ranks leave them out");
  }
  add(table.phase_mismatch, "phase_mismatch", "replays in which the ranks disagree on the phase");
}

void check_metadata(const RunCase& c, std::vector<RunWarning>* problems) {
  if (c.bit_equal == false) {
    problems->push_back({"metadata_differs",
                         fmt::format("case {}: path {} did not equal the reference before timing; "
                                     "its times mean nothing",
                                     c.name, c.path),
                         std::nullopt});
  }
  if (c.checksum_failures > 0) {
    problems->push_back({"checksum_failed",
                         fmt::format("case {}: {} of {} steps read wrong metadata; its times mean "
                                     "nothing",
                                     c.name, c.checksum_failures, c.steps_checked),
                         std::nullopt});
  }
}

void check_empty_cases(const std::vector<std::string>& names, std::vector<RunWarning>* problems) {
  constexpr std::size_t kMaxNames = 5;
  if (names.empty()) return;
  std::string list;
  for (std::size_t i = 0; i < std::min(names.size(), kMaxNames); ++i) {
    list += (i == 0 ? "" : ", ") + names[i];
  }
  if (names.size() > kMaxNames) list += fmt::format(" and {} more", names.size() - kMaxNames);
  problems->push_back({"no_rows", fmt::format("cases without rows: {}", list), std::nullopt});
}

std::vector<const RunCase*> measured_cases(const RunInfo& info) {
  std::vector<const RunCase*> measured;
  for (const RunCase& c : info.cases) {
    if (!c.skip_reason) measured.push_back(&c);
  }
  return measured;
}

bool every_rank_has_rows(const Run& run) {
  return std::all_of(run.ranks.begin(), run.ranks.end(),
                     [](const RankRows& r) { return r.written > 0; });
}

ReplayTable checked_table(const Run& run, const RunCase& c, bool all_ranks,
                          std::vector<RunWarning>* problems) {
  ReplayTable table = match_replays(run, c.index);
  check_metadata(c, problems);
  check_table(c, table, all_ranks, problems);
  return table;
}

bool is_complete(const Run& run, const std::vector<RunWarning>& problems) {
  return run.info.status == "complete" && problems.empty();
}

int exit_code_of(const Run& run, bool complete) {
  return static_cast<int>(run.rows == 0 ? kExitNothingMeasured
                          : complete    ? kExitPass
                                        : kExitRunFailed);
}

Summary check_run(const Run& run) {
  std::vector<RunWarning> problems = run.problems;
  std::vector<std::string> empty;
  const bool all_ranks = every_rank_has_rows(run);
  for (const RunCase* c : measured_cases(run.info)) {
    if (checked_table(run, *c, all_ranks, &problems).slots() == 0) empty.push_back(c->name);
  }
  check_empty_cases(empty, &problems);
  const bool complete = is_complete(run, problems);
  Summary summary;
  summary.exit_code = exit_code_of(run, complete);
  summary.document = Json{{"status", complete ? "complete" : "incomplete"}};
  return summary;
}

}  // namespace tpjitter
