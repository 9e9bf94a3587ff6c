#include "reports/html_charts.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "reports/device_time.h"
#include "reports/stamps.h"
#include "reports/summary_view.h"

namespace tpjitter {
namespace {

constexpr const char* kCurveMetrics[] = {"dispatch_ns",
                                         "graph_launch_ns",
                                         "launch_skew_ns",
                                         "launch_offset_ns",
                                         "first_all_reduce_wait_ns",
                                         "first_all_reduce_excess_wait_ns",
                                         "coupling_wait_ns",
                                         "step_ns"};
constexpr std::size_t kPointBudget = 60'000;  // points of all curves: about 1 MB
constexpr std::size_t kMinPoints = 12;

Json curve_json(const std::vector<CumulativePoint>& points, std::size_t most, const Json* metric) {
  Json out = {{"points", Json::array()}};
  const std::size_t n = points.size(), shown = std::min(n, std::max(most, kMinPoints));
  for (std::size_t i = 0; i < shown; ++i) {
    const CumulativePoint& p = points[shown == 1 ? n - 1 : i * (n - 1) / (shown - 1)];
    out["points"].push_back(Json::array({p.value_ns, p.count}));
  }
  out["n"] = n == 0 ? 0 : points.back().count;
  for (const char* statistic : {"p50", "p90", "p99", "p999", "max"}) {
    out[statistic] = metric == nullptr ? Json(nullptr) : (*metric)[statistic];
  }
  return out;
}

const Json* metric_of(const Json& metrics, const char* key) {
  return metrics.contains(key) ? &metrics[key] : nullptr;
}

Json curves_json(const Json& c, const CaseDetail& detail, std::size_t most_points) {
  Json out = Json::object();
  const std::vector<std::size_t> ranks = shown_ranks(c, kMaxDrawnRanks);
  for (const char* key : kCurveMetrics) {
    const std::size_t m = metric_index(key);
    Json one = {
        {"all", curve_json(detail.over_ranks[m], most_points, metric_of(c["metrics"], key))},
        {"ranks", Json::array()}};
    for (const std::size_t rank : ranks) {
      Json curve = curve_json(detail.by_rank[m][rank], most_points,
                              metric_of(c["ranks"][rank]["metrics"], key));
      curve["rank"] = rank;
      one["ranks"].push_back(std::move(curve));
    }
    out[key] = std::move(one);
  }
  return out;
}

// Times of a row, relative to `base`; what was not taken is null. The order is that of the script.
Json row_json(const PhaseRow& row, std::int64_t base, std::optional<std::int64_t> offset) {
  Json out = Json::array();
  for (const std::int64_t stamp :
       {row.coupling_begin_ns, row.accept_seen_ns, row.inputs_begin_ns, row.inputs_end_ns,
        row.dispatch_begin_ns, row.dispatch_end_ns, row.launch_begin_ns, row.launch_end_ns}) {
    out.push_back(stamp == 0 ? Json(nullptr) : Json(difference_ns(stamp, base)));
  }
  const bool wait = wait_ns(row).has_value();
  for (const std::int64_t stamp :
       {row.gpu_begin_ns, row.gpu_end_ns, wait ? row.first_all_reduce_own_ns : 0,
        wait ? row.first_all_reduce_last_seen_ns : 0, wait ? row.first_all_reduce_end_ns : 0}) {
    out.push_back(stamp == 0 || !offset ? Json(nullptr)
                                        : Json(difference_ns(sum_ns(stamp, *offset), base)));
  }
  out.push_back(row.injected_ns);
  return out;
}

std::int64_t base_of(const WorstStep& step) {
  std::int64_t base = INT64_MAX;
  for (const PhaseRow& row : step.rows.front()) {
    if (row.sequence != 0 && row.accept_seen_ns != 0) base = std::min(base, row.accept_seen_ns);
  }
  return base == INT64_MAX ? 0 : base;
}

Json step_json(const Run& run, const RunClocks& clocks, const WorstStep& step,
               const std::vector<std::size_t>& ranks) {
  DeviceTime time(clocks);
  const std::int64_t base = base_of(step);
  Json rebuilds = Json::array();
  for (const std::vector<PhaseRow>& rows : step.rows) {
    Json of_ranks = Json::array();
    std::int32_t phase = 0;
    for (const std::size_t rank : ranks) {
      const PhaseRow& row = rows[rank];
      if (row.sequence == 0) {
        of_ranks.push_back(nullptr);
        continue;
      }
      phase = row.phase;
      of_ranks.push_back(row_json(row, base, time.offset_ns(rank, row)));
    }
    rebuilds.push_back({{"phase", phase_name(static_cast<Phase>(phase))}, {"rows", of_ranks}});
  }
  const bool host = run.info.backend == "host";
  const char* unaligned =
      "The GPU lanes of a rank are not aligned to its host: they are placed so that the first "
      "graph "
      "begins with its launch, and drawn dashed.";
  const std::string clock =
      !time.aligned() ? unaligned
      : host
          ? "The device is modelled and runs on the host clock: no uncertainty between the lanes."
          : fmt::format(
                "GPU clocks are aligned to the host within {:.2f} us, drawn at each graph's begin.",
                static_cast<double>(time.bound_ns()) / 1000);
  return Json{{"id", Json::array({step.id.launch, step.id.repetition, step.id.step})},
              {"cost", step.cost_ns},
              {"aligned", time.aligned()},
              {"bound_ns", time.bound_ns()},
              {"clock", clock},
              {"ranks", ranks},
              {"rebuilds", rebuilds}};
}

}  // namespace

std::span<const char* const> curve_metrics() { return kCurveMetrics; }

std::vector<std::size_t> shown_ranks(const Json& summary_case, std::size_t most) {
  const Json& ranks = summary_case["ranks"];
  std::vector<std::size_t> order(ranks.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (order.size() <= most) return order;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return number_or_none(ranks[a]["laggard_share"]).value_or(0) >
           number_or_none(ranks[b]["laggard_share"]).value_or(0);
  });
  order.resize(most);
  std::sort(order.begin(), order.end());
  return order;
}

std::string case_label(std::span<const AnalysedRun> runs, std::size_t run, const Json& c) {
  return runs.size() > 1 ? run_label(runs, run) + ": " + plain(c["name"]) : plain(c["name"]);
}

std::string page_data(std::span<const AnalysedRun> runs) {
  std::size_t curves = 1;
  for (const AnalysedRun& run : runs) {
    for (const Json& c : run.summary["cases"]) {
      curves += std::size(kCurveMetrics) * (std::min(c["ranks"].size(), kMaxDrawnRanks) + 1);
    }
  }
  const std::size_t most_points = std::min(kPointBudget / curves, kMaxCumulativePoints);
  Json data = {{"runs", Json::array()}};
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const RunClocks clocks(runs[i].run.info);
    Json cases = Json::array();
    for (std::size_t number = 0; number < runs[i].details.size(); ++number) {
      const Json& c = runs[i].summary["cases"][number];
      const CaseDetail& detail = runs[i].details[number];
      Json steps = Json::array();
      for (const WorstStep& step : detail.steps) {
        steps.push_back(step_json(runs[i].run, clocks, step, shown_ranks(c, kMaxDrawnRanks)));
      }
      cases.push_back({{"name", plain(c["name"])},
                       {"path", plain(c["path"])},
                       {"curves", curves_json(c, detail, most_points)},
                       {"stages", c["attribution"]["stages"]},
                       {"steps", std::move(steps)}});
    }
    data["runs"].push_back({{"label", run_label(runs, i)}, {"cases", std::move(cases)}});
  }
  // Nothing in it may end the element that it stands in.
  const std::string text = data.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    if (c == '<') {
      out += "\\u003c";
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace tpjitter
