// The sections of a page, in order, one row each.
#pragma once

#include <iosfwd>
#include <span>

#include "reports/report.h"

namespace tpjitter {

struct HtmlSection {
  const char* key;  // its anchor
  const char* title;
  const char* question;  // that it answers
  void (*write)(std::span<const AnalysedRun> runs, std::ostream& out);
};
std::span<const HtmlSection> html_sections();

}  // namespace tpjitter
