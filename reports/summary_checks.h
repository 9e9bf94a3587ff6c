// What is wrong with a case beyond its files: rows that match no others, metadata that was wrong, no
// rows at all. Each appends to `problems`.
#pragma once

#include <string>
#include <vector>

#include "harness/contract/run_info.h"
#include "reports/replays.h"

namespace tpjitter {

void check_table(const RunCase& c, const ReplayTable& table, bool every_rank_has_rows,
                 std::vector<RunWarning>* problems);
// What the run itself found wrong with a case's metadata: its times mean nothing then.
void check_metadata(const RunCase& c, std::vector<RunWarning>* problems);
void check_empty_cases(const std::vector<std::string>& names, std::vector<RunWarning>* problems);

}  // namespace tpjitter
