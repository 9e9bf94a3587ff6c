// The first sentence of a page: what the run says, on which rank and stage it hangs, and how sure it
// is. Only figures of the summary; certainty is named by what the record has, never by a feeling.
#pragma once

#include <string>
#include <vector>

#include "reports/case_detail.h"

namespace tpjitter {

struct Verdict {
  std::string sentence;
  std::string certainty;
  std::string next;  // what to try; empty where nothing was measured
};

Verdict make_verdict(const Json& summary, const std::vector<CaseDetail>& details);

// Why a case has no interval.
std::string interval_reason(const MedianInterval& interval);

// "95% interval from 10 launches" and the like, one for the whole table; "" without any interval.
std::string interval_note(const std::vector<CaseDetail>& details);

}  // namespace tpjitter
