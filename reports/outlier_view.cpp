// The tables of the steps that stand out, with the late rank's host counters beside them.
#include <fmt/format.h>

#include "reports/summary_view.h"

namespace tpjitter {

namespace {

std::string text(const Json& value) { return value.is_null() ? "-" : plain(value); }

TableColumn times(const char* name, const std::vector<std::optional<std::int64_t>>& values) {
  const DisplayUnit unit = choose_unit(values);
  TableColumn cells{fmt::format("{} {}", name, unit.name), {}};
  for (const auto& value : values) cells.cells.push_back(format_ns(value, unit));
  return cells;
}

// `waits`: the replays that were ranked by excess wait; else the steps ranked by their time.
std::vector<TableGroup> ranked_by(const std::vector<const Json*>& outliers, bool waits) {
  TableGroup names{"", {{"step", {}}}}, figures{"", {}}, host{"host, late rank", {}};
  TableColumn rank{"rank", {}}, stage{"stage", {}};
  TableColumn switches{"switches", {}}, faults{"faults", {}}, cpu{"CPU", {}};
  std::vector<std::optional<std::int64_t>> excess, steps;
  for (const Json* outlier : outliers) {
    const Json& o = *outlier;
    names.columns[0].cells.push_back(
        fmt::format("{}.{}.{}", plain(o["launch"]), plain(o["repetition"]), plain(o["step"])));
    rank.cells.push_back(text(o["rank"]));
    stage.cells.push_back(text(o["stage"]));
    excess.push_back(integer_or_none(o["excess_ns"]));
    steps.push_back(integer_or_none(o["step_ns"]));
    switches.cells.push_back(fmt::format("{}+{}", text(o["context_switches_voluntary"]),
                                         text(o["context_switches_involuntary"])));
    faults.cells.push_back(fmt::format("{}+{}", text(o["faults_minor"]), text(o["faults_major"])));
    cpu.cells.push_back(text(o["cpu"]) + (o["migrated"] == true ? " moved" : ""));
  }
  figures.columns.push_back(rank);
  if (waits) {
    figures.columns.push_back(times("excess", excess));
    figures.columns.push_back(stage);
  }
  figures.columns.push_back(times("step", steps));
  host.columns = {switches, faults, cpu};
  return {names, figures, host};
}

}  // namespace

std::vector<OutlierTable> outlier_tables(const Json& summary_case) {
  std::vector<const Json*> waits, steps;
  for (const Json& o : summary_case["outliers"]) (o["by"] == "step" ? steps : waits).push_back(&o);
  std::vector<OutlierTable> tables;
  if (!waits.empty()) tables.push_back({"most excess wait", ranked_by(waits, true)});
  if (!steps.empty()) {
    tables.push_back(
        {waits.empty() ? "longest steps" : "longest steps besides these", ranked_by(steps, false)});
  }
  return tables;
}

}  // namespace tpjitter
