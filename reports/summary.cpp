#include "reports/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "harness/contract/error.h"
#include "reports/attribution.h"
#include "reports/floors.h"
#include "reports/metrics.h"
#include "reports/outliers.h"
#include "reports/parallel.h"
#include "reports/path_savings.h"
#include "reports/replays.h"
#include "reports/run_clocks.h"
#include "reports/summary_checks.h"

namespace tpjitter {
namespace {

template <class T>
Json nullable(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

struct NamedQuantile {
  const char* key;
  int permille;
  std::optional<std::int64_t> Distribution::*value;
};
constexpr NamedQuantile kQuantiles[] = {{"p50", kP50, &Distribution::p50},
                                        {"p90", kP90, &Distribution::p90},
                                        {"p99", kP99, &Distribution::p99},
                                        {"p999", kP999, &Distribution::p999}};

Json distribution_json(const char* unit, const Distribution& d, const std::string& reason) {
  Json reasons = Json::object();
  Json out = {{"unit", unit}, {"n", d.n}};
  for (const NamedQuantile& q : kQuantiles) {
    const auto& value = d.*q.value;
    out[q.key] = nullable(value);
    if (!value) reasons[q.key] = d.n == 0 ? reason : quantile_reason(d.n, q.permille);
  }
  out["min"] = nullable(d.min);
  out["max"] = nullable(d.max);
  out["mean"] = nullable(d.mean);
  if (d.n == 0) reasons["min"] = reasons["max"] = reasons["mean"] = reason;
  out["negative"] = d.negative;
  out["reasons"] = std::move(reasons);
  return out;
}

Json metrics_json(const std::array<MetricResult, kNumMetrics>& results, bool per_rank) {
  Json out = Json::object();
  for (std::size_t m = 0; m < kNumMetrics; ++m) {
    const Metric& metric = metrics()[m];
    if (!per_rank && !metric.case_level) continue;
    out[metric.key] = distribution_json(metric.unit, results[m].values, results[m].reason);
  }
  return out;
}

Json jitter_json(const RankMetrics& rank) {
  Json out = Json::object();
  for (std::size_t m = 0; m < kNumMetrics; ++m) {
    if (!rank.jitter[m]) continue;
    const Jitter& jitter = *rank.jitter[m];
    const Distribution& steps = jitter.step_difference;
    Json reasons = Json::object();
    if (!jitter.p99_minus_p50) reasons["p99_minus_p50"] = jitter.reason;
    if (!steps.p50) reasons["step_difference_p50"] = quantile_reason(steps.n, kP50);
    if (!steps.p99) reasons["step_difference_p99"] = quantile_reason(steps.n, kP99);
    out[metrics()[m].key] = Json{{"unit", metrics()[m].unit},
                                 {"p99_minus_p50", nullable(jitter.p99_minus_p50)},
                                 {"step_difference_n", steps.n},
                                 {"step_difference_p50", nullable(steps.p50)},
                                 {"step_difference_p99", nullable(steps.p99)},
                                 {"reasons", std::move(reasons)}};
  }
  return out;
}

Json attribution_json(const Attribution& a) {
  Json stages = Json::array();
  for (std::size_t s = 0; s < kNumStages; ++s) {
    stages.push_back({{"stage", stage_name(s)},
                      {"share", nullable(a.share[s])},
                      {"mean_ns", nullable(a.mean_ns[s])}});
  }
  return Json{
      {"class", a.verdict},
      {"stages", std::move(stages)},
      {"exposed_ns", nullable(a.exposed.p50)},
      {"exposed_p99_ns", nullable(a.exposed.p99)},
      {"hidden_ns", nullable(a.hidden.p50)},
      {"later_excess_ns", nullable(a.later_excess.p50)},
      {"flight_shift_ns", nullable(a.flight_shift.p50)},
      {"gpu_idle_ns", nullable(a.gpu_idle.p50)},
      {"gpu_idle_stage", a.gpu_idle_stage ? Json(stage_name(*a.gpu_idle_stage)) : Json(nullptr)},
      {"lateness_ns", nullable(a.lateness.p50)},
      {"arrival_gap_ns", distribution_json("ns", a.arrival_gap, a.arrival_reason)},
      {"arrival_residual_ns",
       distribution_json("ns", a.arrival_residual,
                         a.arrival_reason.empty() ? "no excess wait" : a.arrival_reason)},
      {"arrival_bound_ns", nullable(a.arrival_bound_ns)},
      {"replays", a.replays},
      {"hidden_negative", a.hidden.negative},
      {"missing_evidence", a.missing_evidence},
      {"next_experiment", a.next_experiment}};
}

Json injected_json(const std::optional<InjectedDelays>& injected) {
  if (!injected) return nullptr;
  return Json{{"where", injected->where.empty() ? Json(nullptr) : Json(injected->where)},
              {"victim", nullable(injected->victim)},
              {"delay_ns", injected->delay_ns},
              {"replays", injected->replays}};
}

Json case_json(const RunCase& c, const ReplayTable& table, const CaseMetrics& result,
               const Attribution& attribution, Json outliers) {
  Json phases = Json::object();
  for (int phase = 0; phase < kNumPhases; ++phase) {
    const auto& metrics_of_phase = result.phases[static_cast<std::size_t>(phase)];
    if (metrics_of_phase) {
      phases[phase_name(static_cast<Phase>(phase))] = metrics_json(*metrics_of_phase, false);
    }
  }
  Json ranks = Json::array();
  for (std::size_t rank = 0; rank < result.ranks.size(); ++rank) {
    ranks.push_back({{"rank", rank},
                     {"rows", result.ranks[rank].rows},
                     {"metrics", metrics_json(result.ranks[rank].metrics, true)},
                     {"jitter", jitter_json(result.ranks[rank])},
                     {"laggard_share", nullable(attribution.laggard_share[rank])}});
  }
  return Json{
      {"name", c.name},
      {"path", c.path},
      {"rebuilds", table.slots()},
      {"left_out", table.excluded},
      {"bit_equal", nullable(c.bit_equal)},
      {"steps_checked", c.steps_checked},
      {"checksum_failures", c.checksum_failures},
      {"operations", c.operations},
      {"metrics", metrics_json(result.metrics, false)},
      {"phases", std::move(phases)},
      {"ranks", std::move(ranks)},
      {"laggard_by", attribution.laggard_by.empty() ? Json(nullptr) : Json(attribution.laggard_by)},
      {"injected", injected_json(attribution.injected)},
      {"attribution", attribution_json(attribution)},
      {"outliers", std::move(outliers)}};
}

std::optional<std::int64_t> median_step(const CaseMetrics& result) {
  return result.metrics[metric_index("step_ns")].values.p50;
}

void append_floors(const Floors& floors, const RunCase& c, Json* out) {
  for (std::size_t launch = 0; launch < floors.flight.size(); ++launch) {
    out->push_back({{"case", c.name},
                    {"kind", "flight"},
                    {"all_reduce", floors.all_reduce},
                    {"all_reduce_bytes", nullable(floors.control_bytes)},
                    {"launch", launch},
                    {"rank", nullptr},
                    {"floor_ns", nullable(floors.flight[launch])},
                    {"reason", floors.flight[launch] ? Json(nullptr)
                                                     : Json("no zero-skew control of this kernel "
                                                            "in this launch")}});
  }
  for (std::size_t rank = 0; rank < floors.local.size(); ++rank) {
    out->push_back(
        {{"case", c.name},
         {"kind", "local"},
         {"all_reduce", floors.all_reduce},
         {"all_reduce_bytes", nullptr},
         {"launch", nullptr},
         {"rank", rank},
         {"floor_ns", nullable(floors.local[rank])},
         {"reason", floors.local[rank]
                        ? Json(nullptr)
                        : Json(fmt::format("{} rows did not wait, {} are needed",
                                           floors.local_rows[rank], kMinLocalFloorRows))}});
  }
}

Json controls_json(const RunInfo& info) {
  // Kernels and sizes are never pooled: a quantile over both would mean nothing.
  std::set<std::pair<std::string, std::int64_t>> kinds;
  std::vector<std::int64_t> empty;
  for (const RunControl& control : info.controls) {
    if (!control.zero_skew_all_reduce_ns.empty()) {
      kinds.emplace(control.all_reduce, control.all_reduce_bytes);
    }
    empty.insert(empty.end(), control.empty_graph_launch_ns.begin(),
                 control.empty_graph_launch_ns.end());
  }
  Json by_kind = Json::array();
  for (const auto& [kernel, bytes] : kinds) {
    std::vector<std::int64_t> total, wait;
    for (const RunControl& control : info.controls) {
      if (control.all_reduce != kernel || control.all_reduce_bytes != bytes) continue;
      total.insert(total.end(), control.zero_skew_all_reduce_ns.begin(),
                   control.zero_skew_all_reduce_ns.end());
      wait.insert(wait.end(), control.zero_skew_wait_ns.begin(), control.zero_skew_wait_ns.end());
    }
    by_kind.push_back(
        {{"all_reduce", kernel},
         {"all_reduce_bytes", bytes},
         {"zero_skew_all_reduce_ns",
          distribution_json("ns", describe(total), "no samples in run.json")},
         {"zero_skew_wait_ns", distribution_json("ns", describe(wait), "no samples in run.json")}});
  }
  const std::string reason =
      kinds.empty() ? "no samples in run.json" : "several kernels or sizes: see by_all_reduce";
  return Json{
      {"empty_graph_launch_ns", distribution_json("ns", describe(empty), "no samples in run.json")},
      {"zero_skew_all_reduce_ns", by_kind.size() == 1 ? by_kind[0]["zero_skew_all_reduce_ns"]
                                                      : distribution_json("ns", {}, reason)},
      {"by_all_reduce", by_kind}};
}

Json warnings_json(const std::vector<RunWarning>& warnings) {
  Json out = Json::array();
  for (const RunWarning& w : warnings) {
    out.push_back({{"code", w.code}, {"text", w.text}, {"rank", nullable(w.rank)}});
  }
  return out;
}

Json ranks_json(const Run& run) {
  Json out = Json::array();
  for (std::size_t rank = 0; rank < run.ranks.size(); ++rank) {
    const auto said = std::find_if(run.info.ranks.begin(), run.info.ranks.end(),
                                   [&](auto& r) { return r.rank == static_cast<int>(rank); });
    const RunRank r = said == run.info.ranks.end() ? RunRank{} : *said;
    out.push_back({{"rank", rank},
                   {"device", r.device},
                   {"uuid", r.uuid},
                   {"cpu", nullable(r.cpu)},
                   {"numa_node", nullable(r.numa_node)},
                   {"rows", run.ranks[rank].written},
                   {"status", run.ranks[rank].file == nullptr && r.status == "complete" ? "missing"
                                                                                        : r.status},
                   {"ended_at", nullable(r.ended_at)}});
  }
  return out;
}

struct AnalysedCase {
  Json document;
  Json floor = Json::array();
  std::vector<RunWarning> problems;
  CaseDetail detail;
  std::vector<LaunchLateness> lateness;
  bool empty = false;  // no rows
};

AnalysedCase analyse_case(const Run& run, const RunCase& c, const RunClocks& clocks, bool all_ranks,
                          bool with_detail) {
  AnalysedCase out;
  const ReplayTable table = checked_table(run, c, all_ranks, &out.problems);
  out.empty = table.slots() == 0;
  const Floors floors = compute_floors(run, c.index, table);
  const OwnExchanges own = own_exchanges(run, table, clocks);
  const CaseClocks comparable = case_clocks(clocks, own);
  OutlierFinder finder(run, table);
  std::optional<CaseDetailBuilder> detail;
  if (with_detail) detail.emplace(run, table);
  MetricsPass pass(run, table, floors, [&](const ColumnPiece& piece) {
    if (piece.rank) {
      finder.see_steps(*piece.rank, piece.begin, piece.columns[metric_index("step_ns")]);
    }
    if (detail) detail->see(piece);
  });
  // The attribution goes through the replays one after the other: it begins first.
  Attribution attribution;
  parallel_for(1 + pass.parts(), table.slots() * run.ranks.size(), [&](std::size_t part) {
    if (part > 0) {
      pass.run_part(part - 1);
      return;
    }
    attribution = attribute(
        run, c, table, floors, [&](const ReplayLateness& r) { finder.see(r); }, comparable);
  });
  const CaseMetrics metrics = pass.finish();
  if (detail) out.detail = detail->finish(metrics);
  out.document =
      case_json(c, table, metrics, attribution,
                outliers_json(finder.finish(attribution, median_step(metrics)), run, table));
  out.document["clock"] = own_exchanges_json(own);
  out.lateness = attribution.launches;
  append_floors(floors, c, &out.floor);
  return out;
}

}  // namespace

Summary summarize(const Run& run, std::vector<CaseDetail>* details) {
  const RunInfo& info = run.info;
  const bool all_ranks = every_rank_has_rows(run);
  const std::vector<const RunCase*> measured = measured_cases(info);
  Json skipped = Json::array();
  for (const RunCase& c : info.cases) {
    if (!c.skip_reason) continue;
    skipped.push_back({{"name", c.name}, {"path", c.path}, {"reason", *c.skip_reason}});
  }
  const RunClocks clocks(info);
  std::vector<AnalysedCase> analysed(measured.size());
  const auto analyse = [&](std::size_t i) {
    analysed[i] = analyse_case(run, *measured[i], clocks, all_ranks, details != nullptr);
  };
  const std::size_t at_once = parts_at_once(measured.size());
  parallel_for(at_once, run.rows, analyse);
  for (std::size_t i = at_once; i < measured.size(); ++i) analyse(i);
  std::vector<RunWarning> problems = run.problems;
  std::vector<std::string> empty;  // cases without rows
  Json cases = Json::array(), floor = Json::array();
  std::vector<CaseLateness> lateness;
  for (AnalysedCase& a : analysed) {
    const RunCase& c = *measured[cases.size()];
    if (a.empty) empty.push_back(c.name);
    lateness.push_back({&c, std::move(a.lateness)});
    problems.insert(problems.end(), a.problems.begin(), a.problems.end());
    for (Json& of_case : a.floor) floor.push_back(std::move(of_case));
    cases.push_back(std::move(a.document));
    if (details != nullptr) details->push_back(std::move(a.detail));
  }
  check_empty_cases(empty, &problems);
  const bool complete = is_complete(run, problems);
  std::optional<std::string> reason = info.status_reason;
  if (!complete && !reason) {
    reason = problems.empty() ? "the run did not end" : problems.front().text;
  }
  std::vector<RunWarning> warnings = info.warnings;
  warnings.insert(warnings.end(), run.notes.begin(), run.notes.end());
  warnings.insert(warnings.end(), problems.begin(), problems.end());

  Summary summary;
  summary.exit_code = exit_code_of(run, complete);
  summary.document = Json{{"schema", kSummarySchema},
                          {"status", complete ? "complete" : "incomplete"},
                          {"status_reason", complete ? Json(nullptr) : nullable(reason)},
                          {"backend", info.backend},
                          {"world_size", info.world_size},
                          {"rows", run.rows},
                          {"scenario",
                           {{"name", info.scenario_name},
                            {"file", info.scenario_file},
                            {"summary", info.summary},
                            {"source", info.source},
                            {"overrides", info.overrides}}},
                          {"command", info.command},
                          {"seed", info.seed},
                          {"launches", info.launches.size()},
                          {"cases", std::move(cases)},
                          {"savings", path_savings_json(lateness)},
                          {"skipped_cases", std::move(skipped)},
                          {"ranks", ranks_json(run)},
                          {"controls", controls_json(info)},
                          {"floor", std::move(floor)},
                          {"clock", clock_json(info, clocks)},
                          {"overhead", info.overhead},
                          {"model", info.model},
                          {"environment", info.environment},
                          {"versions", info.versions},
                          {"git_revision", info.git_revision},
                          {"warnings", warnings_json(warnings)}};
  return summary;
}

}  // namespace tpjitter
