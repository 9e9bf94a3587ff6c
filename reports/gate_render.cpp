// The gate's result for people and for programs; markdown, JUnit and annotations are in
// gate_exports.cpp.
#include <fmt/format.h>

#include <cmath>

#include "reports/gate.h"
#include "reports/text_table.h"

namespace tpjitter {
namespace {

constexpr std::size_t kMostOrderLines = 5;

template <class T>
Json optional_json(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

Json effect_json(const std::optional<OrderEffect>& effect) {
  if (!effect) return Json();
  return {{"effect_ns", effect->ns},
          {"interval_ns", effect->low ? Json{*effect->low, *effect->high} : Json()},
          {"p_value", effect->p_value}};
}

Json effects_json(const GateRow& row) {
  if (row.kind != CheckKind::kChange) return Json();
  return {
      {"slot", effect_json(row.order.slot)},         {"position", effect_json(row.order.position)},
      {"launches", effect_json(row.order.launches)}, {"blocks", effect_json(row.order.blocks)},
      {"sides", effect_json(row.order.sides)},       {"bias_ns", row.order.bias},
      {"bias_source", row.order.bias_source}};
}

Json order_json(const Order& order) {
  if (!order.known) return Json();
  return {{"interleaved", order.interleaved},
          {"midpoint_distance_s", order.midpoint_distance_s},
          {"neighbour_pairs", order.pairs},
          {"contender_second", order.contender_second}};
}

Json row_json(const GateRow& row) {
  return {{"case", row.case_name},
          {"metric", row.metric},
          {"statistic", row.statistic},
          {"phase", row.phase.empty() ? Json() : Json(row.phase)},
          {"check", check_kind_name(row.kind)},
          {"rule", row.place},
          {"required", row.required},
          {"baseline", optional_json(row.baseline)},
          {"contender", optional_json(row.contender)},
          {"baseline_launches", row.baseline_launches},
          {"contender_launches", row.contender_launches},
          {"change", optional_json(row.change)},
          {"interval", row.low ? Json{*row.low, *row.high} : Json()},
          {"limit", optional_json(row.limit)},
          {"limit_source", row.limit_source},
          {"order", effects_json(row)},
          {"detectable", optional_json(row.detectable)},
          {"launches_needed", optional_json(row.launches_needed)},
          {"p_value", optional_json(row.p_value)},
          {"p_adjusted", optional_json(row.p_adjusted)},
          {"verdict", verdict_name(row.verdict)},
          {"reason", row.reason},
          {"waived", optional_json(row.waived)}};
}

// ns as "12.3 us"; a ratio as it is.
std::string shown(const GateRow& row, const std::optional<double>& value, bool sign = false) {
  if (!value) return "-";
  if (row.kind == CheckKind::kRatio) return fmt::format("{:.3f}", *value);
  return sign ? fmt::format("{:+.2f}", *value / 1000) : fmt::format("{:.2f}", *value / 1000);
}

std::string relative(const GateRow& row) {
  if (!row.change || !row.baseline || *row.baseline == 0) return "-";
  return fmt::format("{:+.1f}%", *row.change / std::abs(*row.baseline) * 100);
}

std::string interval(const GateRow& row) {
  if (!row.low) return "-";
  const bool sign = row.kind == CheckKind::kChange;
  return fmt::format("{}..{}", shown(row, row.low, sign), shown(row, row.high, sign));
}

}  // namespace

Json gate_json(const GateResult& result) {
  Json rows = Json::array(), controls = Json::array();
  for (const GateRow& row : result.rows) rows.push_back(row_json(row));
  for (const GateControl& control : result.controls) {
    controls.push_back({{"name", control.name},
                        {"baseline", optional_json(control.baseline)},
                        {"contender", optional_json(control.contender)},
                        {"shift", optional_json(control.shift)},
                        {"stable", control.stable},
                        {"reason", control.reason}});
  }
  return {{"schema", "tpjitter.gate/1"},
          {"verdict", verdict_name(result.verdict)},
          {"exit_code", result.exit_code},
          {"void", result.is_void},
          {"headline", result.headline},
          {"rows", rows},
          {"controls", controls},
          {"incomparable", result.incomparable},
          {"order", order_json(result.order)},
          {"allowed", result.allowed},
          {"notes", result.notes}};
}

std::vector<std::string> order_lines(const GateResult& result) {
  std::vector<std::string> lines, unproven;
  std::size_t looked_at = 0;
  for (const GateRow& row : result.rows) {
    if (row.kind != CheckKind::kChange || !row.change) continue;
    ++looked_at;
    const std::string proven = proven_text(row.order);
    const bool biased = row.order.bias > 0;
    if (proven.empty() && !biased) continue;
    (proven.empty() ? unproven : lines)
        .push_back(fmt::format("order: {}: {}{}", row_label(row),
                               proven.empty() ? "nothing proven" : proven,
                               biased ? fmt::format("; limit wider by {:.1f} us for {}",
                                                    row.order.bias / 1000, row.order.bias_source)
                                      : ""));
  }
  const bool none_proven = lines.empty();
  lines.insert(lines.end(), unproven.begin(), unproven.end());
  if (lines.size() > kMostOrderLines) {
    const std::size_t more = lines.size() - kMostOrderLines;
    lines.resize(kMostOrderLines);
    lines.push_back(fmt::format("order: {} more rows", more));
  }
  if (looked_at == 0) return lines;
  const Order& order = result.order;
  std::string first = "order: ";
  if (order.known) {
    first += fmt::format(
        "launches of the sides {}; the contender is second in {} of {} pairs of "
        "neighbours; ",
        order.interleaved ? "take turns" : "do not take turns", order.contender_second,
        order.pairs);
  }
  first += none_proven
               ? fmt::format("no effect of slot, place or drift is proven in {} rows", looked_at)
               : "effects proven at 1 % each:";
  lines.insert(lines.begin(), first);
  return lines;
}

std::string gate_text(const GateResult& result) {
  std::string text = wrap(printable(result.headline), 0, 2) + "\n";
  for (const std::string& line : result.incomparable) {
    text += wrap("- differs: " + printable(line), 0, 2) + "\n";
  }
  for (const std::string& line : result.allowed) {
    text += wrap("- differs, allowed: " + printable(line), 0, 2) + "\n";
  }
  std::vector<TableColumn> columns = {{"baseline", {}}, {"contender", {}}, {"change", {}},
                                      {"interval", {}}, {"limit", {}},     {"detects", {}},
                                      {"n", {}},        {"verdict", {}}};
  TableColumn names{"metric of case, us", {}};
  for (const GateRow& row : result.rows) {
    names.cells.push_back(printable((row.required ? "" : "(advisory) ") + row_label(row)));
    const std::string cells[] = {
        shown(row, row.baseline),
        shown(row, row.contender),
        relative(row),
        interval(row),
        shown(row, row.limit),
        shown(row, row.detectable),
        fmt::format("{}/{}", row.baseline_launches, row.contender_launches),
        row.waived ? "waived" : verdict_name(row.verdict)};
    for (std::size_t i = 0; i < columns.size(); ++i) columns[i].cells.push_back(cells[i]);
  }
  if (!result.rows.empty()) {
    text += "\n" + render_table({{"", {names}}, {"", columns}}, 0);
    text +=
        "interval: 95 % of the change, between launches; detects: smallest change that these "
        "launches\nwould show; n: launches of baseline/contender\n\n";
  }
  for (const GateRow& row : result.rows) {
    if (row.verdict == Verdict::kPass && !row.waived) continue;
    text += wrap(printable(fmt::format("- {}: {}: {}{}", verdict_name(row.verdict), row_label(row),
                                       row.reason, row.waived ? "; waived: " + *row.waived : "")),
                 0, 2) +
            "\n";
  }
  for (const GateControl& control : result.controls) {
    if (!control.stable || control.shift) {
      text += wrap(printable(fmt::format(
                       "- control {}: {}", control.name,
                       control.stable ? fmt::format("moved by {:.1f} %", *control.shift * 100)
                                      : control.reason)),
                   0, 2) +
              "\n";
    }
  }
  for (const std::string& line : order_lines(result)) {
    text += wrap("- " + printable(line), 0, 2) + "\n";
  }
  for (const std::string& note : result.notes) text += wrap("- " + printable(note), 0, 2) + "\n";
  return text;
}

}  // namespace tpjitter
