// The table of the steps that stand out, with the late rank's host counters beside them.
#include <fmt/format.h>

#include "reports/summary_view.h"

namespace tpjitter {

std::vector<TableGroup> outlier_table(const Json& summary_case) {
  TableGroup names{"", {{"step", {}}}}, host{"host, late rank", {}};
  TableColumn rank{"rank", {}}, stage{"stage", {}};
  TableColumn switches{"switches", {}}, faults{"faults", {}}, cpu{"CPU", {}};
  std::vector<std::optional<std::int64_t>> excess, steps;
  const auto text = [](const Json& value) { return value.is_null() ? "-" : plain(value); };
  for (const Json& o : summary_case["outliers"]) {
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
  const auto column = [](const char* name, const std::vector<std::optional<std::int64_t>>& values) {
    const DisplayUnit unit = choose_unit(values);
    TableColumn cells{fmt::format("{} {}", name, unit.name), {}};
    for (const auto& value : values) cells.cells.push_back(format_ns(value, unit));
    return cells;
  };
  host.columns = {switches, faults, cpu};
  return {names, {"", {rank, stage, column("excess", excess), column("step", steps)}}, host};
}

}  // namespace tpjitter
