#include "reports/html_sections.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <ostream>

#include "reports/html_charts.h"
#include "reports/html_figures.h"
#include "reports/html_writer.h"
#include "reports/summary_view.h"
#include "reports/verdict.h"

namespace tpjitter {
namespace {

using Runs = std::span<const AnalysedRun>;

void write_verdict(Runs runs, std::ostream& out) {
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const Verdict verdict = make_verdict(runs[i].summary, runs[i].details);
    write_paragraph((runs.size() > 1 ? run_label(runs, i) + ": " : "") + verdict.sentence, out,
                    "verdict");
    if (!verdict.certainty.empty()) write_paragraph("How sure: " + verdict.certainty + ".", out);
    if (!verdict.next.empty()) write_paragraph("What to try next: " + verdict.next + ".", out);
    std::string status = plain(runs[i].summary["status"]);
    if (!runs[i].summary["status_reason"].is_null()) {
      status += ", " + plain(runs[i].summary["status_reason"]);
    }
    write_paragraph(title_line(runs[i].summary) + ". Status: " + status + ".", out, "note");
    write_paragraph(device_note(runs[i].summary), out, "note");
  }
}

void write_warnings(Runs runs, std::ostream& out) {
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const Json& summary = runs[i].summary;
    const std::string of = runs.size() > 1 ? run_label(runs, i) + ": " : "";
    for (const Json& w : summary["warnings"]) {
      lines.push_back(fmt::format("{}[{}] {}", of, plain(w["code"]), warning_line(w)));
    }
    if (const std::string note = injected_note(summary); !note.empty()) {
      lines.push_back(of + "[injected] " + note);
    }
    for (const Json& skipped : summary["skipped_cases"]) {
      lines.push_back(
          fmt::format("{}skipped {}: {}", of, plain(skipped["name"]), plain(skipped["reason"])));
    }
  }
  if (lines.empty()) {
    write_paragraph("No: the run and its record gave no warning.", out);
  } else {
    write_list(lines, out, "warnings");
  }
}

TableGroup interval_group(const char* title, const char* key, Runs runs) {
  std::vector<const Json*> metrics_of;
  for_each_case(
      runs, [&](std::size_t, std::size_t, const Json& c) { metrics_of.push_back(&c["metrics"]); });
  TableGroup group = metric_group(title, metrics_of, key, {"p50", "p99"});
  const std::size_t m = metric_index(key);
  std::vector<std::optional<std::int64_t>> all;
  for (const Json* of : metrics_of) {
    for (const char* statistic : {"p50", "p99"}) all.push_back(metric_value(*of, key, statistic));
  }
  const DisplayUnit unit = choose_unit(all);  // that of the group
  TableColumn between{"p50 within", {}};
  for_each_case(runs, [&](std::size_t run, std::size_t number, const Json&) {
    const MedianInterval& interval = runs[run].details[number].intervals[m];
    between.cells.push_back(interval.low_ns
                                ? fmt::format("{} to {}", format_ns(interval.low_ns, unit),
                                              format_ns(interval.high_ns, unit))
                                : "-");
  });
  group.columns.insert(group.columns.begin() + 1, std::move(between));
  return group;
}

void write_comparison(Runs runs, std::ostream& out) {
  TableGroup names{"", {{"case", {}}}};
  TableGroup counts{"", {{"n", {}}}};
  for_each_case(runs, [&](std::size_t run, std::size_t, const Json& c) {
    names.columns[0].cells.push_back(case_label(runs, run, c));
    counts.columns[0].cells.push_back(plain(c["metrics"]["dispatch_ns"]["n"]));
  });
  if (names.columns[0].cells.empty()) {
    write_paragraph("No case was measured.", out);
    return;
  }
  out << html_table({names, counts, interval_group("dispatch", "dispatch_ns", runs),
                     interval_group("launch skew", "launch_skew_ns", runs),
                     interval_group("excess wait", "first_all_reduce_excess_wait_ns", runs),
                     interval_group("step", "step_ns", runs)},
                    "The largest over ranks in each replay, quantiles over replays");
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const std::string of = runs.size() > 1 ? run_label(runs, i) + ": " : "";
    const std::string note = interval_note(runs[i].details);
    write_paragraph(
        of +
            (!note.empty() ? "p50 within: " + note
             : runs[i].details.empty()
                 ? "no interval"
                 : interval_reason(
                       runs[i].details.front().intervals[metric_index("dispatch_ns")])) +
            ".",
        out, "note");
    std::vector<std::string> reasons = common_reason_lines(runs[i].summary);
    for (std::string& reason : reasons) reason = of + reason;
    write_list(reasons, out);
  }
  write_paragraph(
      "A dash: too few samples or not taken. First steps after warm-up and of each block are left "
      "out.",
      out, "note");
}

TableGroup statistics_group(const std::string& title, const Json& metrics_of) {
  TableGroup group{title, {}};
  for (const char* statistic :
       {"n", "p50", "p90", "p99", "p999", "min", "max", "mean", "negative"}) {
    group.columns.push_back({statistic, {}});
    for (const auto& [key, metric] : metrics_of.items()) {
      const Json& value = metric[statistic];
      const bool count =
          std::strcmp(statistic, "n") == 0 || std::strcmp(statistic, "negative") == 0;
      std::string cell = value.is_null() ? "-" : plain(value);
      if (!count && value.is_number()) {
        cell = fmt::format("{:.{}f}", value.get<double>() / 1000,
                           std::fabs(value.get<double>()) < 99'995 ? 2 : 1);
      }
      group.columns.back().cells.push_back(std::move(cell));
    }
  }
  return group;
}

void write_ranks(Runs runs, std::ostream& out) {
  for_each_case(runs, [&](std::size_t run, std::size_t number, const Json& c) {
    const std::string label = case_label(runs, run, c);
    out << "<details" << (number < 3 ? " open" : "") << "><summary>" << escape_html(label)
        << "</summary>\n";
    Json shown = c;
    shown["ranks"] = Json::array();
    const auto ranks = shown_ranks(c, kMaxTableRanks);
    for (const std::size_t rank : ranks) shown["ranks"].push_back(c["ranks"][rank]);
    out << html_table(rank_table(shown), label + ", by rank");
    if (ranks.size() < c["ranks"].size()) {
      write_paragraph(fmt::format("{} of {} ranks, those that lag most; the CSV and JSON have all.",
                                  ranks.size(), c["ranks"].size()),
                      out, "note");
    }
    out << html_table(phase_table(c), label + ", by phase");
    write_list(reason_lines(runs[run].summary, c), out);
    TableGroup names{"", {{"metric", {}}}};
    for (const auto& [key, metric] : c["metrics"].items()) names.columns[0].cells.push_back(key);
    out << html_table({names, statistics_group("us", c["metrics"])},
                      label + ", every metric, the largest over ranks");
    out << "</details>\n";
  });
}

void write_stages(Runs runs, std::ostream& out) {
  out << "<div class=\"chart short\" id=\"stage-chart\" hidden><canvas id=\"stage-canvas\" "
         "role=\"img\" aria-label=\"Shares of the lateness by stage; the table below has them\">"
         "</canvas></div>\n";
  TableGroup names{"", {{"case", {}}, {"class", {}}}};
  TableGroup shares{"share of the lateness", {}}, means{"mean us in a replay", {}};
  TableGroup skew{"p50 us", {{"exposed", {}}, {"hidden", {}}, {"lateness", {}}}};
  for_each_case(runs, [&](std::size_t run, std::size_t, const Json& c) {
    const Json& a = c["attribution"];
    names.columns[0].cells.push_back(case_label(runs, run, c));
    names.columns[1].cells.push_back(plain(a["class"]));
    std::size_t s = 0;
    for (const Json& stage : a["stages"]) {
      if (shares.columns.size() <= s) {
        shares.columns.push_back({plain(stage["stage"]), {}});
        means.columns.push_back({plain(stage["stage"]), {}});
      }
      shares.columns[s].cells.push_back(format_percent(number_or_none(stage["share"])));
      const auto mean = number_or_none(stage["mean_ns"]);
      means.columns[s].cells.push_back(mean ? fmt::format("{:.2f}", *mean / 1000) : "-");
      ++s;
    }
    const DisplayUnit us{"us", 1e3};
    skew.columns[0].cells.push_back(format_ns(integer_or_none(a["exposed_ns"]), us));
    skew.columns[1].cells.push_back(format_ns(integer_or_none(a["hidden_ns"]), us));
    skew.columns[2].cells.push_back(format_ns(integer_or_none(a["lateness_ns"]), us));
  });
  if (names.columns[0].cells.empty()) return;
  out << html_table({names, shares},
                    "The laggard's lateness against the median other rank, split over stages", 2)
      << html_table({{"", {names.columns[0]}}, means, skew},
                    "The same in time, with the skew that the waits exposed and hid");
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const Json& summary = runs[i].summary;
    if (summary["savings"].empty()) continue;
    if (runs.size() > 1) write_heading(run_label(runs, i), out);
    out << html_table(savings_table(summary), "What a path saves of the lateness, by stage");
    write_paragraph(savings_note(summary), out, "note");
  }
  for_each_case(runs, [&](std::size_t run, std::size_t, const Json& c) {
    write_heading(case_label(runs, run, c), out);
    write_paragraph(attribution_line(c) + ".", out);
    std::vector<std::string> lines;
    if (const std::string injected = injected_line(c); !injected.empty()) {
      lines.push_back("injected: " + injected);
    }
    for (const Json& m : c["attribution"]["missing_evidence"])
      lines.push_back("missing: " + plain(m));
    lines.push_back("next: " + plain(c["attribution"]["next_experiment"]));
    write_list(lines, out);
  });
}

void write_clock(Runs runs, std::ostream& out) {
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const Json& clock = runs[i].summary["clock"];
    if (runs.size() > 1) write_heading(run_label(runs, i), out);
    Json values = Json::object();
    for (const auto& [key, value] : clock.items()) {
      if (!value.is_array()) values[key] = value;
    }
    const std::string table = html_values(values, "Bounds, ns");
    out << table;
    if (table.empty()) write_paragraph("The record has no calibration.", out);
    write_list(clock_lines(runs[i].summary), out);
    for (const auto& [key, value] : clock.items()) {
      if (value.is_array() && !value.empty()) {
        out << html_records(value, fmt::format("Clock calibration, ns: {}", printable(key)));
      }
    }
  }
}

void write_noise(Runs runs, std::ostream& out) {
  bool any = false;
  for_each_case(runs, [&](std::size_t run, std::size_t, const Json& c) {
    if (c["outliers"].empty()) return;
    any = true;
    for (const OutlierTable& table : outlier_tables(c)) {
      out << html_table(table.groups, case_label(runs, run, c) + ": " + table.title);
    }
  });
  if (!any) {
    write_paragraph("No step stands out above its case's median.", out);
    return;
  }
  write_paragraph(
      "A step is launch.repetition.step. Switches (voluntary+involuntary) and page faults "
      "(minor+major) are those of the late rank's timed thread since the step before; they stand "
      "beside the time, whether they cost it is not measured.",
      out, "note");
}

void write_method(Runs runs, std::ostream& out) {
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const Json& summary = runs[i].summary;
    if (runs.size() > 1) write_heading(run_label(runs, i), out);
    if (const std::string command = command_line(summary); !command.empty()) {
      write_paragraph("The command that measures it again:", out);
      out << "<pre>" << escape_html(command) << "</pre>\n";
    }
    write_list(method_lines(summary), out, "code");
    out << html_table(control_table(summary), "What nothing costs: controls");
    write_list(control_reason_lines(summary), out);
    std::vector<std::string> floors;
    for (const Json& c : summary["cases"]) {
      floors.push_back(fmt::format("floor of {}: {}", plain(c["name"]), floor_line(summary, c)));
    }
    write_list(floors, out);
    out << html_records(summary["ranks"], "Ranks") << "<details><summary>Environment</summary>\n"
        << html_values(summary["environment"], "Environment") << "</details>\n";
  }
}

constexpr HtmlSection kSections[] = {
    {"verdict", "Verdict", "What does the run say, and how sure is it?", write_verdict},
    {"warnings", "Warnings", "Is there a reason to doubt the figures?", write_warnings},
    {"paths", "Comparison of the paths", "Which path costs least?", write_comparison},
    {"ranks", "Ranks and phases", "Which rank is late, in which phase, and how steady is it?",
     write_ranks},
    {"curves", "Distributions", "How often does it take how long?", write_curves_section},
    {"heat", "Excess wait over the run", "When do the ranks wait, and which of them?",
     write_heat_section},
    {"stages", "Attribution", "What makes the ranks wait?", write_stages},
    {"timeline", "Time line of a worst step", "What happened in it, on which rank?",
     write_timeline_section},
    {"clock", "Clocks", "How far can times of different clocks be compared?", write_clock},
    {"noise", "Host noise", "What did the host do when a step was an outlier?", write_noise},
    {"method", "Method", "How was it measured?", write_method},
};

}  // namespace

std::span<const HtmlSection> html_sections() { return kSections; }

}  // namespace tpjitter
