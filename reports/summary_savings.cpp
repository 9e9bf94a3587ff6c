// The table of `savings[]`: what a path saves of the laggard's lateness, stage by stage.
#include <fmt/format.h>

#include <algorithm>

#include "reports/summary_view.h"

namespace tpjitter {
namespace {

std::string ratio_cell(const Json& stage) {
  const auto ratio = number_or_none(stage["ratio"]);
  return ratio ? fmt::format("{:.3f}", *ratio) : "-";
}

std::string interval_cell(const Json& stage) {
  const auto low = number_or_none(stage["ratio_low"]), high = number_or_none(stage["ratio_high"]);
  return low && high ? fmt::format("{:.3f}..{:.3f}", *low, *high) : "-";
}

}  // namespace

std::vector<TableGroup> savings_table(const Json& summary) {
  TableGroup names{"", {{"case", {}}}};
  TableGroup means{"mean lateness us in a replay", {}};
  TableGroup ratio{"dispatch, to the base", {{"ratio", {}}, {"95%", {}}}};
  const auto add = [&](const std::string& name, const Json& row, const char* mean) {
    names.columns[0].cells.push_back(name);
    std::size_t column = 0;
    for (const Json& stage : row["stages"]) {
      if (means.columns.size() <= column) means.columns.push_back({plain(stage["stage"]), {}});
      means.columns[column++].cells.push_back(
          fmt::format("{:.2f}", stage[mean].get<double>() / 1000));
    }
  };
  std::string base;
  for (const Json& row : summary["savings"]) {
    if (plain(row["base"]) != base) {
      base = plain(row["base"]);
      add(base + " (base)", row, "base_mean_ns");
      for (TableColumn& column : ratio.columns) column.cells.push_back("1");
    }
    add(plain(row["case"]), row, "mean_ns");
    for (const Json& stage : row["stages"]) {
      if (stage["stage"] != "dispatch") continue;
      ratio.columns[0].cells.push_back(ratio_cell(stage));
      ratio.columns[1].cells.push_back(interval_cell(stage));
    }
  }
  return {names, means, ratio};
}

std::string savings_note(const Json& summary) {
  std::size_t launches = 0;
  std::string reason;
  bool interval = false;
  for (const Json& row : summary["savings"]) {
    launches = std::max(launches, row["launches"].get<std::size_t>());
    for (const Json& stage : row["stages"]) {
      if (stage["stage"] != "dispatch") continue;
      interval = interval || !stage["ratio_low"].is_null();
      if (reason.empty() && !stage["reason"].is_null()) reason = plain(stage["reason"]);
    }
  }
  std::string note = fmt::format(
      "The last rank's lateness against the median other rank, over the replays in which one rank "
      "was last, split over host stages; means of {} process launch{}.",
      launches, launches == 1 ? "" : "es");
  if (!interval && !reason.empty()) note += " No interval: " + reason + ".";
  return note;
}

}  // namespace tpjitter
