// Rows of a rule: a metric of a case, baseline against contender, one value a launch.
#include "reports/gate_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/math/distributions/students_t.hpp>
#include <cmath>

#include "harness/contract/error.h"

namespace tpjitter {
namespace {

std::string too_few(std::size_t base, std::size_t contender) {
  return fmt::format("{} against {} launches; at least {} a side are needed", base, contender,
                     kMinLaunches);
}

// Read on one GPU's clock, but only aligned clocks can show whose lateness a wait is.
bool is_cross_gpu(const std::string& metric) {
  return metric == "first_all_reduce_wait_ns" || metric == "first_all_reduce_excess_wait_ns";
}

std::optional<std::int64_t> clock_bound(const LaunchSet& base, const LaunchSet& contender,
                                        const std::string& metric) {
  if (!is_cross_gpu(metric)) return std::nullopt;
  return std::max(base.clock_bound_ns, contender.clock_bound_ns);
}

void set_limit(const ThresholdRule& rule, double base, double floor_ns,
               std::optional<std::int64_t> clock_bound_ns, GateRow* row) {
  row->limit = rule.relative_limit * std::abs(base);
  row->limit_source = "relative_limit";
  const auto at_least = [row](double ns, const char* source) {
    if (ns <= *row->limit) return;
    row->limit = ns;
    row->limit_source = source;
  };
  at_least(floor_ns, "absolute_floor_ns");
  at_least(rule.noise_ns, "noise_ns");
  if (clock_bound_ns) at_least(static_cast<double>(*clock_bound_ns), "clock_bound_ns");
}

struct Limits {
  double floor_ns = 0;
  std::optional<std::int64_t> clock_bound_ns;
};

GateRow change_row(const ThresholdRule& rule, const Selector& selector, const Series& base,
                   const Series& contender, const Limits& limits, const Order& order) {
  GateRow row = new_row(rule, selector, CheckKind::kChange);
  row.baseline_launches = base.values.size();
  row.contender_launches = contender.values.size();
  if (!base.is_whole() || !contender.is_whole()) {
    nothing_measured(base.is_whole() ? contender : base, rule.statistic, &row);
    return row;
  }
  row.baseline = mean_and_variance(base.values).mean;
  row.contender = mean_and_variance(contender.values).mean;
  row.change = *row.contender - *row.baseline;
  set_limit(rule, *row.baseline, limits.floor_ns, limits.clock_bound_ns, &row);
  const auto result = welch(base.values, contender.values);
  if (result) {
    row.low = result->low;
    row.high = result->high;
    row.order = order_effects(base, contender, order);
    row.detectable = detectable_effect(with_drift(*result, row.order));
    // To tell the change seen from the limit. How much of a drift between the sides more launches
    // would show depends on when they run: no number is promised then.
    const double worse = rule.lower_is_better ? *row.change : -*row.change;
    if (!row.order.sides) {
      row.launches_needed =
          launches_needed(base.values, contender.values, std::abs(*row.limit - worse));
    }
  }
  if (std::min(base.values.size(), contender.values.size()) < kMinLaunches) {
    row.reason = too_few(base.values.size(), contender.values.size());
    if (row.launches_needed) {
      row.reason += fmt::format("; by the spread seen, {} would do", *row.launches_needed);
    } else if (row.order.sides) {
      row.reason += "; run the sides in turn";
    }
    return row;
  }
  if (!result) {
    row.reason = "the values are too large to compare";
    return row;
  }
  row.reason = doubt(base, contender, *row.change, *row.limit);
  if (row.reason.empty()) row.p_value = p_of_worse(*result, row.order, rule.lower_is_better);
  return row;
}

// Of either side: a phase that the contender lost is not passed over.
std::vector<std::string> phases_of_sides(const LaunchSet* baseline, const LaunchSet& contender,
                                         const std::string& case_name) {
  std::vector<std::string> ours = phases_of(contender, case_name), all;
  if (baseline == nullptr) return ours;
  const std::vector<std::string> theirs = phases_of(*baseline, case_name);
  std::set_union(ours.begin(), ours.end(), theirs.begin(), theirs.end(), std::back_inserter(all));
  return all;
}

// Phases of a case that a rule looks at, one row each; "" is all together.
std::vector<std::string> phases_for(const ThresholdRule& rule, const LaunchSet* baseline,
                                    const LaunchSet& contender, const std::string& case_name) {
  const std::vector<std::string> mixed = phases_of_sides(baseline, contender, case_name);
  if (rule.phase.empty()) return {""};
  if (rule.phase == "*") return mixed.empty() ? std::vector<std::string>{""} : mixed;
  if (std::find(mixed.begin(), mixed.end(), rule.phase) != mixed.end()) return {rule.phase};
  return {};
}

void add_change_rows(const ThresholdRule& rule, const LaunchSet& baseline,
                     const LaunchSet& contender, bool built_in, const Order& order,
                     const std::string& case_name, std::vector<GateRow>* rows) {
  const Limits limits{rule.absolute_floor_ns.value_or(default_floor_ns(contender.backend)),
                      clock_bound(baseline, contender, rule.metric)};
  const auto add = [&](const std::string& phase, bool required) {
    const Selector selector{case_name, rule.metric, rule.statistic, phase};
    const Series base = series_of(baseline, selector), series = series_of(contender, selector);
    rows->push_back(change_row(rule, selector, base, series, limits, order));
    if (!phase.empty() && base.samples == 0 && phases_of(baseline, case_name).empty()) {
      rows->back().reason =
          "the baseline keeps no phases of this case apart; a baseline file without them is too "
          "old: make it anew";
    }
    // What this kind of run never has (a skew with one rank) is no failure of a built-in rule.
    const bool never = built_in && base.samples == 0 && series.samples == 0;
    rows->back().required = required && !never;
  };
  for (const std::string& phase : phases_for(rule, &baseline, contender, case_name)) {
    add(phase, rule.required);
  }
  // Together, a change of one phase is thinned by the others: without a file they are listed too.
  if (!built_in || !rule.required) return;
  for (const std::string& phase : phases_of_sides(&baseline, contender, case_name)) {
    const Selector selector{case_name, rule.metric, rule.statistic, phase};
    if (series_of(contender, selector).samples + series_of(baseline, selector).samples > 0) {
      add(phase, false);
    }
  }
}

}  // namespace

GateRow new_row(const ThresholdRule& rule, const Selector& selector, CheckKind kind) {
  GateRow row;
  row.case_name = selector.case_name;
  row.metric = selector.metric;
  row.statistic = selector.statistic;
  row.phase = selector.phase;
  row.kind = kind;
  row.place = rule.place;
  row.required = rule.required;
  row.lower_is_better = rule.lower_is_better;
  return row;
}

void nothing_measured(const Series& series, const std::string& statistic, GateRow* row) {
  row->verdict = Verdict::kNothingMeasured;
  if (!series.values.empty()) {
    row->reason = fmt::format("{} of {} launches have no value",
                              series.launches - series.values.size(), series.launches);
    return;
  }
  row->reason = series.samples == 0 ? "no launch has a value"
                                    : fmt::format("{} needs more values than the {} of a launch",
                                                  statistic, series.samples);
}

double half_noise(const LaunchSet& set, const std::string& case_name, const std::string& metric,
                  const std::string& statistic) {
  const Series series = series_of(set, {case_name, metric, statistic, ""});
  const MeanAndVariance m = mean_and_variance(series.values);
  if (m.n < 2 * kMinLaunches) return 0;
  const boost::math::students_t t(static_cast<double>(m.n - 1));
  // The difference of the means of two halves has variance 4 s^2 / n.
  return std::ceil(quantile(t, 0.995) * 2 * std::sqrt(m.variance / static_cast<double>(m.n)));
}

bool has_values(const LaunchSet& set, const std::string& metric) {
  const std::size_t m = metric_index(metric);
  for (const LaunchResult& launch : set.launches) {
    for (const auto& [name, values] : launch.cases) {
      if (values.metrics[m].n > 0) return true;
    }
  }
  return false;
}

void add_rows(const ThresholdRule& rule, const LaunchSet* baseline, const LaunchSet& contender,
              bool built_in, const Order& order, std::vector<GateRow>* rows) {
  for (const auto& [name, values] : contender.case_values) {
    if (!glob_matches(rule.cases, name)) continue;
    if (!rule.max_ns && !rule.ratio_to_path) {
      if (baseline == nullptr || baseline->case_values.count(name) == 0) continue;
      add_change_rows(rule, *baseline, contender, built_in, order, name, rows);
      continue;
    }
    for (const std::string& phase : phases_for(rule, baseline, contender, name)) {
      const Selector selector{name, rule.metric, rule.statistic, phase};
      if (rule.max_ns) rows->push_back(budget_row(rule, contender, selector));
      if (!rule.ratio_to_path) continue;
      if (auto row = ratio_row(rule, contender, selector)) rows->push_back(std::move(*row));
    }
  }
}

GateRow compare_values(const ThresholdRule& rule, const std::string& case_name,
                       std::vector<double> baseline, std::vector<double> contender) {
  const auto series_from = [](std::vector<double> values) {
    Series series;
    series.launches = values.size();
    series.samples = values.size();
    series.values = std::move(values);
    return series;
  };
  Limits limits;
  limits.floor_ns = rule.absolute_floor_ns.value_or(0);
  return change_row(rule, {case_name, rule.metric, "mean", ""}, series_from(std::move(baseline)),
                    series_from(std::move(contender)), limits, Order{});
}

void decide_change(GateRow* row) {
  const auto us = [](double ns) { return ns / 1000; };
  const double worse = row->lower_is_better ? *row->change : -*row->change;
  const double worst = row->lower_is_better ? *row->high : -*row->low;
  const double best = row->lower_is_better ? *row->low : -*row->high;
  // What makes the contender look better than it is.
  const OrderBias& hides = row->lower_is_better ? row->order.lowers : row->order.raises;
  if (worse > *row->limit && worse <= *row->limit + row->order.bias) {
    row->verdict = Verdict::kInconclusive;
    row->reason = fmt::format(
        "{:+.1f} us is beyond the limit of {:.1f} us, but the {} can make {:.1f} us of it",
        us(*row->change), us(*row->limit), row->order.bias_source, us(row->order.bias));
  } else if (worse > *row->limit && *row->p_adjusted < kGateAlpha) {
    row->verdict = Verdict::kRegressed;
    row->reason = fmt::format("{:+.1f} us is beyond the limit of {:.1f} us ({})", us(*row->change),
                              us(*row->limit), row->limit_source);
  } else if (-worse > *row->limit + row->order.bias && -worst > 0) {
    row->verdict = Verdict::kImproved;
    row->reason = fmt::format("{:+.1f} us", us(*row->change));
  } else if (worst <= *row->limit && worst + hides.ns > *row->limit) {
    row->verdict = Verdict::kInconclusive;
    row->reason = fmt::format(
        "the change may be up to {:+.1f} us and the limit is {:.1f} us, but the {} can hide "
        "{:.1f} us more",
        us(worst), us(*row->limit), hides.source, us(hides.ns));
  } else if (worst <= *row->limit) {
    row->verdict = Verdict::kPass;
    row->reason = "the whole interval keeps the limit";
  } else if (worse > *row->limit && row->order.sides) {
    row->verdict = Verdict::kInconclusive;
    row->reason = fmt::format(
        "{:+.1f} us is beyond the limit of {:.1f} us, but the sides ran one after the other and a "
        "drift may have made it; run them in turn",
        us(*row->change), us(*row->limit));
  } else {
    row->verdict = Verdict::kInconclusive;
    row->reason =
        fmt::format("the change may be {:+.1f} to {:+.1f} us and the limit is {:.1f} us; ",
                    us(best), us(worst), us(*row->limit));
    row->reason += row->launches_needed
                       ? fmt::format("{} launches a side would do", *row->launches_needed)
                   : row->order.sides ? "run the sides in turn"
                                      : "no number of launches up to 1000 would do";
  }
}

}  // namespace tpjitter
