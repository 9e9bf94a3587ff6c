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

void check_sides(const LaunchSet* baseline, const LaunchSet& contender, const GateOptions& options,
                 GateResult* result) {
  for (const std::string& key : options.allow) {
    if (may_be_allowed(key)) continue;
    throw ConfigError(
        fmt::format("--allow {}: no such key; allowed: a scenario key such as "
                    "step.op_overhead_ns, environment.cpu_model, versions.nccl, "
                    "scenario, backend, world_size, cases",
                    key));
  }
  if (baseline == nullptr) return;
  result->incomparable = differences(*baseline, contender, options.allow, &result->allowed);
  const bool cases_may_differ =
      std::find(options.allow.begin(), options.allow.end(), "cases") != options.allow.end();
  const auto only_in = [&](const LaunchSet& a, const LaunchSet& b, const char* side) {
    for (const auto& [name, values] : a.case_values) {
      if (b.case_values.count(name) > 0) continue;
      const std::string line = fmt::format("case {} is only in the {}", name, side);
      (cases_may_differ ? result->allowed : result->incomparable).push_back(line);
    }
  };
  only_in(*baseline, contender, "baseline");
  only_in(contender, *baseline, "contender");
  for (const std::string& line : baseline->incomplete) {
    result->incomparable.push_back("baseline " + line);
  }
}

// Applies what needs all rows at once: false discoveries among the required changes.
void decide_changes(std::vector<GateRow>* rows) {
  std::vector<double> p_values;
  for (const GateRow& row : *rows) {
    if (row.kind == CheckKind::kChange && row.required && row.p_value) {
      p_values.push_back(*row.p_value);
    }
  }
  const std::vector<double> adjusted = benjamini_hochberg(p_values);
  std::size_t next = 0;
  for (GateRow& row : *rows) {
    if (row.kind != CheckKind::kChange || !row.p_value) continue;
    row.p_adjusted = row.required ? adjusted[next++] : *row.p_value;
    decide_change(&row);
  }
}

void apply_waivers(const GateOptions& options, GateResult* result) {
  for (const ThresholdWaiver& waiver : options.thresholds.waivers) {
    bool used = false;
    const bool expired = waiver.expires < options.today;
    for (GateRow& row : result->rows) {
      if (row.verdict != Verdict::kRegressed || row.metric != waiver.metric ||
          !glob_matches(waiver.cases, row.case_name)) {
        continue;
      }
      used = true;
      if (!expired) row.waived = waiver.reason;
    }
    if (expired) {
      result->notes.push_back(fmt::format("{}: the waiver of {} for {} expired on {}{}",
                                          waiver.place, waiver.metric, waiver.cases, waiver.expires,
                                          used ? "; it would have been used" : ""));
    } else if (!used) {
      result->notes.push_back(fmt::format("{}: the waiver of {} for {} waived nothing",
                                          waiver.place, waiver.metric, waiver.cases));
    }
  }
}

std::size_t count(const GateResult& result, Verdict verdict) {
  return static_cast<std::size_t>(std::count_if(
      result.rows.begin(), result.rows.end(),
      [&](const GateRow& row) { return row.required && !row.waived && row.verdict == verdict; }));
}

void finish(GateResult* result, Verdict verdict, int exit_code, std::string headline) {
  result->verdict = verdict;
  result->exit_code = exit_code;
  result->headline = std::move(headline);
}

// "dispatch_ns of aten/bs8" of the first required row with this verdict.
std::string first_of(const GateResult& result, Verdict verdict) {
  for (const GateRow& row : result.rows) {
    if (row.required && !row.waived && row.verdict == verdict) {
      return fmt::format("{} {} of {}: {}", row.metric, row.statistic, row.case_name, row.reason);
    }
  }
  return {};
}

// Precedence: incomparable, incomplete, nothing measured, void, regressed, inconclusive, pass.
void conclude(const std::vector<std::string>& incomplete, GateResult* result) {
  if (!result->incomparable.empty()) {
    return finish(result, Verdict::kIncomparable, kExitIncomparable,
                  fmt::format("incomparable: {}", result->incomparable.front()));
  }
  if (!incomplete.empty()) {
    return finish(result, Verdict::kInconclusive, kExitRunFailed,
                  fmt::format("the contender is incomplete: {}", incomplete.front()));
  }
  if (count(*result, Verdict::kIncomparable) > 0) {
    return finish(result, Verdict::kIncomparable, kExitIncomparable,
                  "incomparable: " + first_of(*result, Verdict::kIncomparable));
  }
  const bool any = std::any_of(result->rows.begin(), result->rows.end(),
                               [](const GateRow& row) { return row.required; });
  if (!any || count(*result, Verdict::kNothingMeasured) > 0) {
    return finish(result, Verdict::kNothingMeasured, kExitNothingMeasured,
                  any ? "nothing measured: " + first_of(*result, Verdict::kNothingMeasured)
                      : "nothing measured: no required rule found a value");
  }
  if (result->is_void) {
    for (const GateControl& control : result->controls) {
      if (control.stable) continue;
      return finish(result, Verdict::kInconclusive, kExitInconclusive,
                    fmt::format("void: {}: {}", control.name, control.reason));
    }
  }
  if (const std::size_t n = count(*result, Verdict::kRegressed); n > 0) {
    return finish(result, Verdict::kRegressed, kExitRegressed,
                  fmt::format("regressed: {}{}", first_of(*result, Verdict::kRegressed),
                              n > 1 ? fmt::format(" (and {} more)", n - 1) : ""));
  }
  if (const std::size_t n = count(*result, Verdict::kInconclusive); n > 0) {
    return finish(result, Verdict::kInconclusive, kExitInconclusive,
                  fmt::format("inconclusive: {}{}", first_of(*result, Verdict::kInconclusive),
                              n > 1 ? fmt::format(" (and {} more)", n - 1) : ""));
  }
  const auto waived = std::count_if(result->rows.begin(), result->rows.end(),
                                    [](const GateRow& row) { return row.waived.has_value(); });
  if (waived > 0) {
    return finish(result, Verdict::kPass, kExitPass,
                  fmt::format("pass, but {} regressed and waived", waived));
  }
  const std::size_t better = count(*result, Verdict::kImproved);
  finish(result, better > 0 ? Verdict::kImproved : Verdict::kPass, kExitPass,
         better > 0 ? fmt::format("pass; improved: {}", first_of(*result, Verdict::kImproved))
                    : "pass: no required metric got worse by more than its limit");
}

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

void finish_gate(const GateOptions& options, const std::vector<std::string>& incomplete,
                 GateResult* result) {
  decide_changes(&result->rows);
  apply_waivers(options, result);
  conclude(incomplete, result);
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

GateResult evaluate_gate(const LaunchSet* baseline, const LaunchSet& contender,
                         const GateOptions& options) {
  GateResult result;
  check_sides(baseline, contender, options, &result);
  if (result.incomparable.empty()) {
    const Order order = order_of_sides(baseline, contender, &result.notes);
    for (const ThresholdRule& rule : options.thresholds.rules) {
      const std::size_t before = result.rows.size();
      add_rows(rule, baseline, contender, options.built_in, order, &result.rows);
      if (result.rows.size() == before && !options.built_in) {
        throw ConfigError(fmt::format("{}: key `cases`: \"{}\" matches no case of the contender",
                                      rule.place, rule.cases));
      }
    }
    result.controls = check_controls(baseline, contender);
    for (const GateControl& control : result.controls) {
      result.is_void = result.is_void || !control.stable;
      for (GateRow& row : result.rows) doubt_for_control(control, &row);
    }
  }
  finish_gate(options, contender.incomplete, &result);
  return result;
}

}  // namespace tpjitter
