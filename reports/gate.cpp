#include "reports/gate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "harness/contract/error.h"
#include "reports/gate_checks.h"

namespace tpjitter {
namespace {

// Required by default: what a step pays for, without what follows from them.
constexpr const char* kFirstMetrics[] = {"dispatch_ns",    "graph_launch_ns",
                                         "launch_skew_ns", "first_all_reduce_excess_wait_ns",
                                         "step_ns",        "all_reduce_transfer_ns"};

}  // namespace

const char* verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kImproved:
      return "improved";
    case Verdict::kPass:
      return "pass";
    case Verdict::kRegressed:
      return "regressed";
    case Verdict::kInconclusive:
      return "inconclusive";
    case Verdict::kIncomparable:
      return "incomparable";
    default:
      return "nothing_measured";
  }
}

const char* check_kind_name(CheckKind kind) {
  return kind == CheckKind::kChange ? "change" : kind == CheckKind::kBudget ? "budget" : "ratio";
}

std::string row_label(const GateRow& row) {
  return fmt::format("{} {} of {}{}", row.metric, row.statistic, row.case_name,
                     row.phase.empty() ? "" : ", phase " + row.phase);
}

std::vector<std::string> gate_metrics() {
  std::vector<std::string> names(std::begin(kFirstMetrics), std::end(kFirstMetrics));
  for (const Metric& metric : metrics()) {
    if (metric.case_level && std::find(names.begin(), names.end(), metric.key) == names.end()) {
      names.emplace_back(metric.key);
    }
  }
  return names;
}

std::string thresholds_with_noise(const LaunchSet& set) {
  const std::size_t n = set.launches.size();
  if (n < 2 * kMinLaunches) {
    throw ConfigError(
        fmt::format("gate --init: the run has {} launches, and the noise between launches needs at "
                    "least {}: make it with --launches {}",
                    n, 2 * kMinLaunches, 4 * kMinLaunches));
  }
  Thresholds thresholds = default_thresholds(gate_metrics(), set.backend);
  // A rule for what the run never has would make its own gate fail.
  std::erase_if(thresholds.rules,
                [&](const ThresholdRule& rule) { return !has_values(set, rule.metric); });
  for (ThresholdRule& rule : thresholds.rules) {
    for (const auto& [name, values] : set.case_values) {
      rule.noise_ns = std::max(rule.noise_ns, half_noise(set, name, rule.metric, rule.statistic));
    }
  }
  return thresholds_text(
      thresholds,
      fmt::format("Made by `tpjitter gate --init` from {} launches of {}, backend {}, {} ranks.\n"
                  "noise_ns: what two halves of these launches differ by in one of a hundred\n"
                  "comparisons, the largest over cases.",
                  n, set.scenario, set.backend, set.world_size));
}

namespace {

// Such a gate is green whatever the build does. Told by when a launch began: directories may be used
// again, and a baseline file names those of another day.
void note_shared_launches(const LaunchSet& baseline, const LaunchSet& contender,
                          GateResult* result) {
  std::size_t shared = 0;
  std::string example;
  for (const LaunchResult& launch : contender.launches) {
    const auto same = std::find_if(
        baseline.launches.begin(), baseline.launches.end(),
        [&](const LaunchResult& l) { return l.began_ns && l.began_ns == launch.began_ns; });
    if (same == baseline.launches.end()) continue;
    if (++shared == 1) example = fmt::format("launch {} of {}", launch.launch, launch.source);
  }
  if (shared == 0) return;
  result->notes.push_back(fmt::format(
      "{} of the contender's {} launches stand{} in the baseline too ({}): a run that is compared "
      "with itself shows no change",
      shared, contender.launches.size(), shared == 1 ? "s" : "", example));
}

}  // namespace

GateResult evaluate_gate(const LaunchSet* baseline, const LaunchSet& contender,
                         const GateOptions& options) {
  GateResult result;
  check_request(baseline, contender, options);
  check_sides(baseline, contender, options, &result);
  if (baseline != nullptr) note_shared_launches(*baseline, contender, &result);
  if (result.incomparable.empty()) {
    result.order = order_of_sides(baseline, contender, &result.notes);
    for (const ThresholdRule& rule : options.thresholds.rules) {
      add_rows(rule, baseline, contender, options.built_in, result.order, &result.rows);
    }
    result.controls = check_controls(baseline, contender);
    for (const GateControl& control : result.controls) {
      result.is_void = result.is_void || !control.stable;
      for (GateRow& row : result.rows) doubt_for_control(control, &row);
    }
  }
  finish_gate(options, contender.incomplete, contender.rows == 0, &result);
  return result;
}

}  // namespace tpjitter
