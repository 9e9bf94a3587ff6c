#include "reports/summary_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace tpjitter {
namespace {

std::string text_of(const Json& object, const char* key) {
  return object.is_object() && object.contains(key) ? plain(object[key]) : std::string();
}

std::vector<const Json*> case_metrics(const Json& summary) {
  std::vector<const Json*> out;
  for (const Json& c : summary["cases"]) out.push_back(&c["metrics"]);
  return out;
}

TableColumn count_column(const std::vector<const Json*>& metrics, const char* key) {
  TableColumn column{"n", {}};
  for (const Json* m : metrics) column.cells.push_back(plain((*m)[key]["n"]));
  return column;
}

TableColumn ns_column(const std::string& head,
                      const std::vector<std::optional<std::int64_t>>& values,
                      const DisplayUnit& unit) {
  TableColumn column{head, {}};
  for (const auto& value : values) column.cells.push_back(format_ns(value, unit));
  return column;
}

// {"a": 1, "b": {...}} as "a 1, b {...}"; empty for anything else. A load average needs one decimal.
std::string flat(const Json& object) {
  std::string out;
  if (!object.is_object()) return out;
  for (const auto& [key, value] : object.items()) {
    if (value.is_null() || value == "") continue;
    const bool load = key.starts_with("load_average") && value.is_number();
    out += fmt::format("{}{} {}", out.empty() ? "" : ", ", key,
                       load ? fmt::format("{:.1f}", value.get<double>()) : plain(value));
  }
  return out;
}

// The largest of each figure, over whatever levels the object has ("ranks": [...]).
void collect_largest(const Json& value, std::vector<std::pair<std::string, double>>* out) {
  for (const auto& [key, member] : value.items()) {
    if (member.is_structured()) collect_largest(member, out);
    if (!member.is_number() || !value.is_object() || !key.ends_with("_ns")) continue;
    const auto found =
        std::find_if(out->begin(), out->end(), [&](auto& o) { return o.first == key; });
    if (found == out->end()) {
      out->push_back({key, member.get<double>()});
    } else {
      found->second = std::max(found->second, member.get<double>());
    }
  }
}

// Recording's largest part of a case's step, p50; empty where the record does not say.
std::string recording_share(const Json& summary, double recording_ns, double row_ns) {
  double largest = 0;
  for (const Json& c : summary["cases"]) {
    const auto step = integer_or_none(c["metrics"]["step_ns"]["p50"]);
    if (!step || *step <= 0) continue;
    const double rows = std::max<double>(1, static_cast<double>(c["phases"].size()));
    largest = std::max(largest, (recording_ns + (rows - 1) * row_ns) / static_cast<double>(*step));
  }
  return largest > 0 ? fmt::format(", {:.2g} % of a step", 100 * largest) : std::string();
}

std::string overhead_line(const Json& summary) {
  const Json& overhead = summary["overhead"];
  std::vector<std::pair<std::string, double>> largest;
  if (overhead.is_structured()) collect_largest(overhead, &largest);
  std::string out;
  double row_ns = 0, recording_ns = 0;
  for (const auto& [key, value] : largest) {
    const std::string name = key == "stamp_ns"       ? "a host stamp"
                             : key == "row_ns"       ? "a phase row"
                             : key == "recording_ns" ? "recording a step"
                                                     : key.substr(0, key.size() - 3);
    out += fmt::format("{}{} {:.0f} ns", out.empty() ? "" : ", ", name, value);
    if (key == "row_ns") row_ns = value;
    if (key == "recording_ns") recording_ns = value;
  }
  if (recording_ns > 0) out += recording_share(summary, recording_ns, row_ns);
  return out.empty() ? out : out + " (largest over ranks)";
}

std::string clock_line(const Json& clock) {
  const auto bound = number_or_none(clock["gpu_gpu_bound_ns"]);
  if (bound && *bound > 0) return fmt::format("GPU to GPU within {:.2f} us", *bound / 1000);
  return clock["reason"].is_string() ? plain(clock["reason"]) : "";
}

}  // namespace

std::optional<std::int64_t> integer_or_none(const Json& value) {
  return value.is_number_integer() ? std::optional(value.get<std::int64_t>()) : std::nullopt;
}

std::optional<double> number_or_none(const Json& value) {
  return value.is_number() ? std::optional(value.get<double>()) : std::nullopt;
}

std::optional<std::int64_t> metric_value(const Json& metrics, const char* key,
                                         const char* statistic) {
  return metrics.contains(key) ? integer_or_none(metrics[key][statistic]) : std::nullopt;
}

std::string plain(const Json& value) {
  if (value.is_string()) return printable(value.get<std::string>());
  if (value.is_number_float()) return fmt::format("{:.4g}", value.get<double>());
  return printable(value.dump(-1, ' ', false, Json::error_handler_t::replace));
}

TableGroup metric_group(const std::string& title, const std::vector<const Json*>& metrics,
                        const char* key, const std::vector<const char*>& statistics) {
  std::vector<std::optional<std::int64_t>> all;
  for (const Json* m : metrics) {
    for (const char* statistic : statistics) all.push_back(metric_value(*m, key, statistic));
  }
  const DisplayUnit unit = choose_unit(all);
  TableGroup group{fmt::format("{} {}", title, unit.name), {}};
  for (std::size_t s = 0; s < statistics.size(); ++s) {
    std::vector<std::optional<std::int64_t>> values;
    for (std::size_t row = 0; row < metrics.size(); ++row) {
      values.push_back(all[row * statistics.size() + s]);
    }
    group.columns.push_back(ns_column(statistics[s], values, unit));
  }
  return group;
}

std::vector<TableGroup> comparison_table(const Json& summary) {
  const std::vector<const Json*> metrics = case_metrics(summary);
  TableGroup names{"", {{"case", {}}}};
  for (const Json& c : summary["cases"]) names.columns[0].cells.push_back(plain(c["name"]));
  return {names,
          metric_group("dispatch", metrics, "dispatch_ns", {"p50", "p99"}),
          metric_group("launch", metrics, "graph_launch_ns", {"p50"}),
          metric_group("launch skew", metrics, "launch_skew_ns", {"p50", "p99"}),
          metric_group("excess wait", metrics, "first_all_reduce_excess_wait_ns", {"p50", "p99"}),
          metric_group("step", metrics, "step_ns", {"p50"}),
          {"", {count_column(metrics, "dispatch_ns")}}};
}

std::vector<TableGroup> rank_table(const Json& summary_case) {
  std::vector<const Json*> metrics;
  TableGroup ranks{"", {{"rank", {}}}};
  TableColumn laggard{"laggard", {}};
  std::vector<std::optional<std::int64_t>> jitter, steps;
  for (const Json& rank : summary_case["ranks"]) {
    metrics.push_back(&rank["metrics"]);
    ranks.columns[0].cells.push_back(plain(rank["rank"]));
    laggard.cells.push_back(format_percent(number_or_none(rank["laggard_share"])));
    const Json& dispatch = rank["jitter"]["dispatch_ns"];
    jitter.push_back(integer_or_none(dispatch["p99_minus_p50"]));
    steps.push_back(integer_or_none(dispatch["step_difference_p50"]));
  }
  std::vector<std::optional<std::int64_t>> both = jitter;
  both.insert(both.end(), steps.begin(), steps.end());
  const DisplayUnit unit = choose_unit(both);
  return {ranks,
          metric_group("dispatch", metrics, "dispatch_ns", {"p50", "p99"}),
          metric_group("launch", metrics, "graph_launch_ns", {"p50"}),
          metric_group("offset", metrics, "launch_offset_ns", {"p50", "p99"}),
          metric_group("wait", metrics, "first_all_reduce_wait_ns", {"p50"}),
          metric_group("excess", metrics, "first_all_reduce_excess_wait_ns", {"p50", "p99"}),
          {fmt::format("jitter {}", unit.name),
           {ns_column("p99-p50", jitter, unit), ns_column("step p50", steps, unit)}},
          {"", {laggard}}};
}

std::vector<TableGroup> phase_table(const Json& summary_case) {
  std::vector<const Json*> metrics;
  TableGroup names{"", {{"phase", {}}}};
  for (const auto& [phase, of_phase] : summary_case["phases"].items()) {
    names.columns[0].cells.push_back(phase);
    metrics.push_back(&of_phase);
  }
  return {names,
          metric_group("inputs", metrics, "inputs_ns", {"p50"}),
          metric_group("dispatch", metrics, "dispatch_ns", {"p50", "p99"}),
          metric_group("launch", metrics, "graph_launch_ns", {"p50"}),
          metric_group("launch skew", metrics, "launch_skew_ns", {"p50", "p99"}),
          metric_group("excess wait", metrics, "first_all_reduce_excess_wait_ns", {"p50"}),
          {"", {count_column(metrics, "dispatch_ns")}}};
}

std::vector<TableGroup> control_table(const Json& summary) {
  const Json& controls = summary["controls"];
  std::vector<const Json*> rows = {&controls};
  TableGroup names{"", {{"control", {"empty graph launch"}}}};
  std::vector<Json> wrapped;  // each sample set under the key that the column asks for
  wrapped.push_back({{"value", controls["empty_graph_launch_ns"]}});
  for (const Json& kind : controls["by_all_reduce"]) {
    const std::string suffix =
        fmt::format(" {} {} B", plain(kind["all_reduce"]), plain(kind["all_reduce_bytes"]));
    names.columns[0].cells.push_back("zero-skew all-reduce" + suffix);
    wrapped.push_back({{"value", kind["zero_skew_all_reduce_ns"]}});
    names.columns[0].cells.push_back("zero-skew wait" + suffix);
    wrapped.push_back({{"value", kind["zero_skew_wait_ns"]}});
  }
  rows.clear();
  for (const Json& w : wrapped) rows.push_back(&w);
  return {names,
          metric_group("host or GPU time", rows, "value", {"p50", "p90", "p99", "max"}),
          {"", {count_column(rows, "value")}}};
}

std::string title_line(const Json& summary) {
  const auto world = summary["world_size"].get<std::int64_t>();
  const auto launches = summary["launches"].get<std::uint64_t>();
  std::string devices;
  for (const Json& rank : summary["ranks"]) {
    const std::string device = plain(rank["device"]);
    if (!device.empty() && devices.find(device) == std::string::npos) {
      devices += (devices.empty() ? "" : ", ") + device;
    }
  }
  return fmt::format("{}: {} backend{}, {} rank{}, {} launch{}, {} rows",
                     plain(summary["scenario"]["name"]), plain(summary["backend"]),
                     devices.empty() ? "" : " (" + devices + ")", world, world == 1 ? "" : "s",
                     launches, launches == 1 ? "" : "es", plain(summary["rows"]));
}

std::string device_note(const Json& summary) {
  return summary["backend"] == "host"
             ? "Waits, transfer and arrival are those of a modelled device; host times are real."
             : "";
}

std::string warning_line(const Json& warning) {
  const auto rank = integer_or_none(warning["rank"]);
  const std::string text = plain(warning["text"]);
  const bool named = !rank || text.find(fmt::format("rank {}", *rank)) != std::string::npos ||
                     text.find(fmt::format("rank{}.", *rank)) != std::string::npos;
  return named ? text : fmt::format("rank {}: {}", *rank, text);
}

std::string attribution_line(const Json& summary_case) {
  const Json& a = summary_case["attribution"];
  std::string line = plain(a["class"]);
  if (const auto exposed = integer_or_none(a["exposed_ns"])) {
    const auto p99 = integer_or_none(a["exposed_p99_ns"]);
    line += fmt::format("; exposed skew {}{}, hidden {}", format_ns(exposed),
                        p99 ? fmt::format(" (p99 {})", format_ns(p99)) : "",
                        format_ns(integer_or_none(a["hidden_ns"])));
  }
  std::string most;
  double share = 0;
  for (const Json& rank : summary_case["ranks"]) {
    const auto value = number_or_none(rank["laggard_share"]);
    if (value && *value > share) {
      share = *value;
      most = plain(rank["rank"]);
    }
  }
  if (!most.empty()) {
    line += fmt::format("; rank {} lags in {} of replays (by {})", most, format_percent(share),
                        plain(summary_case["laggard_by"]));
  }
  std::string stages;
  for (const Json& stage : a["stages"]) {
    const auto part = number_or_none(stage["share"]);
    if (!part || std::fabs(*part) < 0.005) continue;
    stages += fmt::format("{}{} {}", stages.empty() ? "" : ", ", plain(stage["stage"]),
                          format_percent(part));
  }
  if (!stages.empty()) line += "; lateness by stage: " + stages;
  if (const auto idle = integer_or_none(a["gpu_idle_ns"])) {
    line += fmt::format("; GPU idle between steps {}", format_ns(idle));
    if (!a["gpu_idle_stage"].is_null()) line += " (" + plain(a["gpu_idle_stage"]) + ")";
  }
  return line;
}

std::string injected_line(const Json& summary_case) {
  const Json& injected = summary_case["injected"];
  if (injected.is_null()) return "";
  const bool one_victim = !injected["victim"].is_null();
  std::string line =
      fmt::format("{} of {} replays carry an injected delay of {} on {} ({})",
                  plain(injected["replays"]), plain(summary_case["attribution"]["replays"]),
                  format_ns(integer_or_none(injected["delay_ns"])),
                  one_victim ? "rank " + plain(injected["victim"]) : "one rank or another",
                  injected["where"].is_null() ? "inject.where unknown"
                                              : "inject.where " + plain(injected["where"]));
  if (!one_victim) return line;
  // Only where the victim lags at least as often as any other rank.
  double most = 0;
  for (const Json& rank : summary_case["ranks"]) {
    most = std::max(most, number_or_none(rank["laggard_share"]).value_or(0));
  }
  const auto victim = injected["victim"].get<std::size_t>();
  const auto own = number_or_none(summary_case["ranks"][victim]["laggard_share"]);
  if (own && *own > 0 && *own >= most) line += "; no rank is last more often";
  return line;
}

std::string injected_note(const Json& summary) {
  std::size_t injected = 0;
  std::string only;
  for (const Json& c : summary["cases"]) {
    if (c["injected"].is_null()) continue;
    ++injected;
    only = fmt::format("{}: {}", plain(c["name"]), injected_line(c));
  }
  if (injected < 2) return only;
  return fmt::format("{} of {} cases delay a rank on purpose; each says how, below", injected,
                     summary["cases"].size());
}

std::string floor_line(const Json& summary, const Json& summary_case) {
  if (summary["world_size"] == 1) return "none, one rank waits for nobody";
  const bool waits = summary_case["metrics"]["first_all_reduce_wait_ns"]["n"] != 0;
  std::string flight, local, without;
  for (const Json& floor : summary["floor"]) {
    if (floor["case"] != summary_case["name"]) continue;
    const auto value = integer_or_none(floor["floor_ns"]);
    if (floor["kind"] == "flight") {
      flight += (flight.empty() ? "" : ", ") +
                (value ? format_ns(value) : "none (" + plain(floor["reason"]) + ")");
    } else if (value) {
      local += fmt::format("{}rank{}{}{}{}", local.empty() ? "" : ", ", kNoBreak,
                           plain(floor["rank"]), kNoBreak, format_ns(value));
    } else {
      without +=
          fmt::format("{}rank{}{}", without.empty() ? "" : ", ", kNoBreak, plain(floor["rank"]));
    }
  }
  constexpr const char* kWhy = "fewer than 10 replays found the flag already there";
  std::string line = fmt::format("flight by launch: {}", flight.empty() ? "none" : flight);
  if (!local.empty()) line += "; local: " + local;
  if (!waits) return line + "; no local floor: no waits were recorded";
  if (!without.empty()) {
    line += local.empty() ? fmt::format("; no local floor: {}", kWhy)
                          : fmt::format("; no local floor of {}: {}", without, kWhy);
  }
  return line;
}

std::string command_line(const Json& summary) {
  std::string line;
  for (const Json& json : summary["command"]) {
    const std::string word = plain(json);
    if (!line.empty()) line += ' ';
    const bool quote = word.empty() || word.find_first_not_of(
                                           "abcdefghijklmnopqrstuvwxyz"
                                           "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                           "0123456789_./:=,+-@%") != std::string::npos;
    if (!quote) {
      line += word;
      continue;
    }
    line += '\'';
    for (const char c : word) line += c == '\'' ? std::string("'\\''") : std::string(1, c);
    line += '\'';
  }
  return line;
}

std::vector<std::string> method_lines(const Json& summary) {
  std::vector<std::string> lines;
  const auto add = [&](const char* name, const std::string& text) {
    if (!text.empty()) lines.push_back(fmt::format("{}: {}", name, text));
  };
  const Json& scenario = summary["scenario"];
  std::string overrides;
  for (const Json& o : scenario["overrides"])
    overrides += (overrides.empty() ? "" : ", ") + plain(o);
  add("scenario", text_of(scenario, "summary"));
  add("source", text_of(scenario, "source"));
  add("overrides", overrides);
  add("seed", plain(summary["seed"]));
  add("modelled device", flat(summary["model"]));
  add("clocks", clock_line(summary["clock"]));
  add("own overhead", overhead_line(summary));
  add("environment", flat(summary["environment"]));
  add("versions", flat(summary["versions"]));
  add("revision", plain(summary["git_revision"]));
  return lines;
}

}  // namespace tpjitter
