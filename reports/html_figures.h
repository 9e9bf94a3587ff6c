// The sections that the page's script draws into: curves, the heat map and the time line.
#pragma once

#include <iosfwd>
#include <span>

#include "reports/report.h"

namespace tpjitter {

void write_curves_section(std::span<const AnalysedRun> runs, std::ostream& out);
void write_heat_section(std::span<const AnalysedRun> runs, std::ostream& out);
void write_timeline_section(std::span<const AnalysedRun> runs, std::ostream& out);

}  // namespace tpjitter
