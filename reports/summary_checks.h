// What is wrong with a case beyond its files: rows that match no others, metadata that was wrong, no
// rows at all. Each appends to `problems`.
#pragma once

#include <string>
#include <vector>

#include "harness/contract/run_info.h"
#include "reports/replays.h"

namespace tpjitter {

// In the order of the record, without the skipped ones.
std::vector<const RunCase*> measured_cases(const RunInfo& info);
bool every_rank_has_rows(const Run& run);
void check_table(const RunCase& c, const ReplayTable& table, bool every_rank_has_rows,
                 std::vector<RunWarning>* problems);
// What the run itself found wrong with a case's metadata: its times mean nothing then.
void check_metadata(const RunCase& c, std::vector<RunWarning>* problems);
void check_empty_cases(const std::vector<std::string>& names, std::vector<RunWarning>* problems);
// Matches the rows of a case and checks both it and them.
ReplayTable checked_table(const Run& run, const RunCase& c, bool all_ranks,
                          std::vector<RunWarning>* problems);

// With all its problems known.
bool is_complete(const Run& run, const std::vector<RunWarning>& problems);
int exit_code_of(const Run& run, bool complete);

}  // namespace tpjitter
