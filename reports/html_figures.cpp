#include "reports/html_figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <ostream>
#include <utility>

#include "reports/html_charts.h"
#include "reports/html_writer.h"
#include "reports/summary_view.h"

namespace tpjitter {
namespace {

using Runs = std::span<const AnalysedRun>;

// Eight steps of the square root, so that small waits can still be told apart.
int heat_level(double mean_ns, double most_ns) {
  if (mean_ns <= 0 || most_ns <= 0) return 0;
  return std::clamp(static_cast<int>(std::sqrt(mean_ns / most_ns) * 8), 0, 7);
}

std::string steps_text(const HeatBlock& block) {
  const StepId &a = block.first, &b = block.last;
  if (a.launch == b.launch && a.repetition == b.repetition) {
    return fmt::format("launch {} repetition {} steps {} to {}", a.launch, a.repetition, a.step,
                       b.step);
  }
  return fmt::format("launch {} repetition {} step {} to launch {} repetition {} step {}", a.launch,
                     a.repetition, a.step, b.launch, b.repetition, b.step);
}

void write_heat(const std::string& label, const Json& c, const CaseDetail& detail,
                std::size_t index, std::ostream& out) {
  if (!detail.heat_metric || detail.blocks.empty()) {
    write_paragraph(label + ": no waits were recorded.", out);
    return;
  }
  const bool excess =
      std::strcmp(metrics()[*detail.heat_metric].key, "first_all_reduce_excess_wait_ns") == 0;
  double most = 0;
  for (const HeatBlock& block : detail.blocks) {
    for (const HeatCell& cell : block.ranks) most = std::max(most, cell.mean_ns);
  }
  const std::string what = excess ? "mean excess wait" : "mean wait (no floor)";
  out << "<div class=\"scroll\"><table class=\"heat\">\n<caption>"
      << escape_html(fmt::format("{}: {} in us, rank by block of steps", label, what))
      << "</caption>\n<thead><tr><th scope=\"col\" class=\"name\">rank</th>";
  for (const HeatBlock& block : detail.blocks) {
    out << fmt::format("<th scope=\"col\">{}.{}.{}</th>", block.first.launch,
                       block.first.repetition, block.first.step);
  }
  out << "</tr></thead>\n<tbody>\n";
  for (const std::size_t rank : shown_ranks(c, kMaxTableRanks)) {
    out << fmt::format("<tr><th scope=\"row\" class=\"name\">{}</th>", rank);
    for (const HeatBlock& block : detail.blocks) {
      const HeatCell& cell = block.ranks[rank];
      if (cell.n == 0 || block.worst.empty()) {
        out << "<td class=\"none\">-</td>";
        continue;
      }
      std::string steps;
      for (const std::size_t step : block.worst) steps += fmt::format(" {}", step);
      const double shown = std::round(cell.mean_ns / 10) / 100;
      out << fmt::format(
          "<td><button type=\"button\" class=\"h{}\" data-case=\"{}\" data-steps=\"{}\" "
          "aria-label=\"{}\">{:.2f}</button></td>",
          heat_level(cell.mean_ns, most), index, steps.substr(1),
          escape_html(fmt::format("{}, rank {}, {}: {} {:.2f} us, largest {}, {} replays", label,
                                  rank, steps_text(block), what, shown, format_ns(cell.max_ns),
                                  cell.n)),
          shown == 0 ? 0.0 : shown);
    }
    out << "</tr>\n";
  }
  out << "</tbody>\n</table></div>\n";
}

}  // namespace

void write_curves_section(std::span<const AnalysedRun> runs, std::ostream& out) {
  out << "<div class=\"controls\">\n<label>metric <select id=\"curve-metric\">\n";
  for (const char* key : curve_metrics()) {
    out << fmt::format("<option value=\"{}\"{}>{}</option>\n", key,
                       std::strcmp(key, "dispatch_ns") == 0 ? " selected" : "", key);
  }
  out << "</select></label>\n<label>curves <select id=\"curve-of\">\n"
      << "<option value=\"paths\">every path, the largest over ranks</option>\n";
  std::size_t index = 0;
  for_each_case(runs, [&](std::size_t run, std::size_t, const Json& c) {
    out << fmt::format("<option value=\"{}\">ranks of {}</option>\n", index++,
                       escape_html(case_label(runs, run, c)));
  });
  out << "</select></label>\n</div>\n"
      << "<div class=\"chart\" id=\"curve-chart\" hidden><canvas id=\"curve-canvas\" role=\"img\" "
         "aria-label=\"Cumulative distributions; the table below has their quantiles\"></canvas>"
         "</div>\n"
      << "<p id=\"curve-empty\" class=\"note\" hidden>No samples of this metric.</p>\n";
  out << "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Quantiles of the "
         "curves\">\n"
         "<table class=\"sortable\" id=\"curve-table\">\n<caption>Quantiles of the curves shown, us"
         "</caption>\n<thead><tr><th scope=\"col\" class=\"name\">curve</th>";
  for (const char* head : {"n", "p50", "p90", "p99", "p999", "max"}) {
    out << "<th scope=\"col\">" << head << "</th>";
  }
  out << "</tr></thead>\n<tbody></tbody>\n</table>\n</div>\n";
  write_paragraph(
      "A curve's points are exact, at most 200 of them, joined by steps; values of 0 and below "
      "stand "
      "at the left edge.",
      out, "note");
}

void write_heat_section(std::span<const AnalysedRun> runs, std::ostream& out) {
  write_paragraph(
      "Columns are blocks of steps in the order of the run, headed launch.repetition.first step. A "
      "cell opens the worst steps of its block in the time line below; arrow keys move.",
      out, "note");
  std::size_t index = 0;
  for_each_case(runs, [&](std::size_t run, std::size_t number, const Json& c) {
    write_heat(case_label(runs, run, c), c, runs[run].details[number], index++, out);
  });
}

namespace {

// What makes a step the worst: once, if it is the same for every case.
void write_ranking(Runs runs, std::ostream& out) {
  std::vector<std::pair<std::string, std::size_t>> ranked;  // case, metric
  for_each_case(runs, [&](std::size_t run, std::size_t number, const Json& c) {
    const auto& metric = runs[run].details[number].worst_metric;
    if (metric) ranked.push_back({case_label(runs, run, c), *metric});
  });
  const bool same = std::all_of(ranked.begin(), ranked.end(), [&](const auto& each) {
    return each.second == ranked.front().second;
  });
  for (const auto& [label, metric] : ranked) {
    write_paragraph(fmt::format("{} are ranked by {}, the largest over ranks.",
                                same ? "Steps" : label + ": steps", metrics()[metric].key),
                    out, "note");
    if (same) return;
  }
}

}  // namespace

void write_timeline_section(std::span<const AnalysedRun> runs, std::ostream& out) {
  bool steps = false;
  for (const AnalysedRun& run : runs) {
    for (const CaseDetail& detail : run.details) steps = steps || !detail.steps.empty();
  }
  if (!steps) {
    write_paragraph("No step has a figure that could make it the worst.", out);
    return;
  }
  out << "<div class=\"controls\"><label>step <select id=\"line-select\"></select></label><label>"
         "<input type=\"checkbox\" id=\"line-whole\"> whole step</label></div>\n"
         "<p class=\"note\" id=\"line-from\"></p>\n<div id=\"line-block\"></div>\n"
         "<h3 id=\"line-title\" tabindex=\"-1\"></h3>\n<p>";
  for (const auto& [css, name] : {std::pair("wait", "wait for accept"),
                                  {"inputs", "inputs"},
                                  {"dispatch", "dispatch"},
                                  {"launch", "graph launch"},
                                  {"graph", "graph on the GPU"},
                                  {"spin", "wait for peers"},
                                  {"transfer", "transfer"}}) {
    out << fmt::format(
        "<span class=\"key\"><svg viewBox=\"0 0 18 12\" aria-hidden=\"true\"><rect width=\"18\" "
        "height=\"12\" class=\"s-{}\"/></svg>{}</span>",
        css, name);
  }
  out << "</p>\n<div id=\"line\"></div>\n<p class=\"note\" id=\"line-clock\"></p>\n"
         "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Figures of the time "
         "line\"><table id=\"line-table\" class=\"sortable\"><caption>The step in us; accept and "
         "entry from the earliest rank's accept</caption><thead><tr><th scope=\"col\" "
         "class=\"name\">phase</th>";
  for (const char* head :
       {"rank", "accept", "wait for accept", "inputs", "dispatch", "graph launch", "graph",
        "wait for peers", "transfer", "launch entry", "injected"}) {
    out << "<th scope=\"col\">" << head << "</th>";
  }
  out << "</tr></thead><tbody></tbody></table></div>\n";
  write_ranking(runs, out);
}

}  // namespace tpjitter
