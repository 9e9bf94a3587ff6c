// The summary of a run (tpjitter.summary/1): computed once, and the only thing that text, Markdown
// and JSON are rendered from. A pure function of the record: no time, path or locale of rendering.
#pragma once

#include <vector>

#include "harness/contract/run_info.h"
#include "reports/case_detail.h"
#include "reports/run_reader.h"

namespace tpjitter {

inline constexpr const char* kSummarySchema = "tpjitter.summary/1";

struct Summary {
  Json document;      // reports/summary.schema.json
  int exit_code = 0;  // 0, 3 incomplete or damaged, 6 no rows
};

// `details`: what a page draws besides, one for each measured case, from the same columns.
Summary summarize(const Run& run, std::vector<CaseDetail>* details = nullptr);

// Its exit code and `status` alone, for what is rendered from the rows and not from figures.
Summary check_run(const Run& run);

}  // namespace tpjitter
