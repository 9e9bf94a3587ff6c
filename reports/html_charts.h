// The data that a page carries for its script: curves, stages and the rows of the worst steps.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "reports/report.h"

namespace tpjitter {

// Metrics that have curves.
std::span<const char* const> curve_metrics();

// At most `most` ranks of a case, those that lag most, in rank order.
std::vector<std::size_t> shown_ranks(const Json& summary_case, std::size_t most);
inline constexpr std::size_t kMaxDrawnRanks = 16;   // curves, lanes of the time line
inline constexpr std::size_t kMaxTableRanks = 128;  // rows of tables

// "fused/bs8", or "smoke: fused/bs8" where several runs share the page.
std::string case_label(std::span<const AnalysedRun> runs, std::size_t run, const Json& c);

// visit(number of the run, number of the case in it, its summary), in the order of the page's data.
void for_each_case(std::span<const AnalysedRun> runs, auto&& visit) {
  for (std::size_t i = 0; i < runs.size(); ++i) {
    std::size_t number = 0;
    for (const Json& c : runs[i].summary["cases"]) visit(i, number++, c);
  }
}

// JSON that may stand inside a script element.
std::string page_data(std::span<const AnalysedRun> runs);

}  // namespace tpjitter
