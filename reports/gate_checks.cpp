#include "reports/gate_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/math/distributions/students_t.hpp>
#include <cmath>

#include "harness/contract/error.h"

namespace tpjitter {
namespace {

constexpr double kTrendAlpha = 0.01;
std::size_t metric_index(const std::string& key) {
  for (std::size_t m = 0; m < kNumMetrics; ++m) {
    if (metrics()[m].key == key) return m;
  }
  throw ConfigError(fmt::format("metric {} is not known", key));
}

struct Series {
  std::vector<double> values;
  std::vector<double> times_s;  // as long as values, or empty
  std::size_t launches = 0;     // of the side, with or without a value
  std::uint64_t samples = 0;    // largest n of a launch
};

Series series_of(const LaunchSet& set, const std::string& case_name, std::size_t metric,
                 const std::string& statistic) {
  Series series;
  bool timed = true;
  series.launches = set.launches.size();
  for (const LaunchResult& launch : set.launches) {
    const auto found = launch.cases.find(case_name);
    if (found == launch.cases.end()) continue;
    const Distribution& values = found->second.metrics[metric];
    series.samples = std::max(series.samples, values.n);
    const std::optional<double> value = statistic_of(values, statistic);
    if (!value) continue;
    series.values.push_back(*value);
    timed = timed && launch.began_ns.has_value();
    series.times_s.push_back(static_cast<double>(launch.began_ns.value_or(0)) * 1e-9);
  }
  if (!timed) series.times_s.clear();
  return series;
}

// In time order, when the times are known.
std::vector<double> in_time_order(const Series& series) {
  if (series.times_s.empty()) return series.values;
  std::vector<std::size_t> order(series.values.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return series.times_s[a] < series.times_s[b]; });
  std::vector<double> values;
  for (const std::size_t i : order) values.push_back(series.values[i]);
  return values;
}

double shown_us(double ns) { return ns / 1000; }

std::string too_few(std::size_t base, std::size_t contender) {
  return fmt::format("{} against {} launches; at least {} a side are needed", base, contender,
                     kMinLaunches);
}

// Drift of a series over `seconds`, ns; 0 unless a trend is proven. Not past the time that the
// series itself spans: nobody knows how it went on.
double drift_over(const Series& series, double seconds) {
  if (series.times_s.empty() || trend_p_value(in_time_order(series)) >= kTrendAlpha) return 0;
  const auto [first, last] = std::minmax_element(series.times_s.begin(), series.times_s.end());
  return std::abs(theil_sen_slope(series.times_s, series.values)) *
         std::min(seconds, *last - *first);
}

void set_limit(const ThresholdRule& rule, double base, double floor_ns, double drift,
               GateRow* row) {
  const double relative = rule.relative_limit * std::abs(base);
  row->limit = relative;
  row->limit_source = "relative_limit";
  if (floor_ns > *row->limit) {
    row->limit = floor_ns;
    row->limit_source = "absolute_floor_ns";
  }
  if (rule.noise_ns > *row->limit) {
    row->limit = rule.noise_ns;
    row->limit_source = "noise_ns";
  }
  row->drift = drift;
}

// What speaks against a verdict from these two series, or empty.
std::string doubt(const Series& base, const Series& contender, double effect, double limit) {
  for (const auto& [series, side] :
       {std::pair{&base, "baseline"}, std::pair{&contender, "contender"}}) {
    const auto gap = bistable_gap(series->values, limit);
    if (gap && std::abs(effect) < 2 * *gap) {
      return fmt::format("the {}'s launches have two states, {:.1f} us apart", side,
                         shown_us(*gap));
    }
    const std::vector<double> ordered = in_time_order(*series);
    if (trend_p_value(ordered) < kTrendAlpha) {
      const double drift = std::abs(ordered.back() - ordered.front());
      if (drift > limit && std::abs(effect) < 2 * drift) {
        return fmt::format("the {} drifts by {:.1f} us over its launches", side, shown_us(drift));
      }
    }
  }
  return {};
}

GateRow new_row(const ThresholdRule& rule, const std::string& case_name, CheckKind kind) {
  GateRow row;
  row.case_name = case_name;
  row.metric = rule.metric;
  row.statistic = rule.statistic;
  row.kind = kind;
  row.place = rule.place;
  row.required = rule.required;
  row.lower_is_better = rule.lower_is_better;
  return row;
}

// Launches without the value are never left out: the others would then speak for all.
bool is_whole(const Series& series) {
  return !series.values.empty() && series.values.size() == series.launches;
}

void nothing_measured(const Series& series, const ThresholdRule& rule, GateRow* row) {
  row->verdict = Verdict::kNothingMeasured;
  if (!series.values.empty()) {
    row->reason = fmt::format("{} of {} launches have no value",
                              series.launches - series.values.size(), series.launches);
    return;
  }
  row->reason = series.samples == 0 ? "no launch has a value"
                                    : fmt::format("{} needs more values than the {} of a launch",
                                                  rule.statistic, series.samples);
}

GateRow change_row(const ThresholdRule& rule, const std::string& case_name, const Series& base,
                   const Series& contender, double floor_ns, const Order& order) {
  GateRow row = new_row(rule, case_name, CheckKind::kChange);
  row.baseline_launches = base.values.size();
  row.contender_launches = contender.values.size();
  if (!is_whole(base) || !is_whole(contender)) {
    nothing_measured(is_whole(base) ? contender : base, rule, &row);
    return row;
  }
  row.baseline = mean_and_variance(base.values).mean;
  row.contender = mean_and_variance(contender.values).mean;
  row.change = *row.contender - *row.baseline;
  const double drift = order.known && !order.interleaved
                           ? std::max(drift_over(base, order.midpoint_distance_s),
                                      drift_over(contender, order.midpoint_distance_s))
                           : 0;
  set_limit(rule, *row.baseline, floor_ns, drift, &row);
  const auto result = welch(base.values, contender.values);
  if (result) {
    row.low = result->low;
    row.high = result->high;
    row.detectable = detectable_effect(*result);
    // To tell the change seen from the limit.
    const double worse = rule.lower_is_better ? *row.change : -*row.change;
    row.launches_needed =
        launches_needed(base.values, contender.values, std::abs(*row.limit - worse));
  }
  if (std::min(base.values.size(), contender.values.size()) < kMinLaunches) {
    row.reason = too_few(base.values.size(), contender.values.size());
    if (row.launches_needed) {
      row.reason += fmt::format("; by the spread seen, {} would do", *row.launches_needed);
    }
    return row;
  }
  if (!result) {
    row.reason = "the values are too large to compare";
    return row;
  }
  row.reason = doubt(base, contender, *row.change, *row.limit);
  if (row.reason.empty()) row.p_value = rule.lower_is_better ? result->p_greater : result->p_less;
  return row;
}

// Budget or ratio: one series against a fixed limit.
void decide_value(const std::vector<double>& values, bool lower_is_better, GateRow* row) {
  const MeanAndVariance m = mean_and_variance(values);
  row->contender = m.mean;
  row->contender_launches = m.n;
  if (m.n < kMinLaunches) {
    row->reason = fmt::format("{} launches; at least {} are needed", m.n, kMinLaunches);
    return;
  }
  const boost::math::students_t t(static_cast<double>(m.n - 1));
  const double half =
      quantile(t, 0.5 + kGateConfidence / 2) * std::sqrt(m.variance / static_cast<double>(m.n));
  row->low = m.mean - half;
  row->high = m.mean + half;
  const bool above = *row->low > *row->limit, below = *row->high < *row->limit;
  const bool worse = lower_is_better ? above : below;
  const bool better = lower_is_better ? *row->high <= *row->limit : *row->low >= *row->limit;
  row->verdict = worse ? Verdict::kRegressed : better ? Verdict::kPass : Verdict::kInconclusive;
  row->reason = worse    ? "the whole interval is beyond the limit"
                : better ? "the whole interval keeps the limit"
                         : "the interval holds the limit; more launches would tell";
}

// The case that differs from `name` in its path only.
std::optional<std::string> case_on_path(const LaunchSet& set, const std::string& name,
                                        const std::string& path) {
  Json wanted = set.case_values.at(name);
  wanted["step"]["path"] = path;
  for (const auto& [other, values] : set.case_values) {
    if (values == wanted) return other;
  }
  return std::nullopt;
}

void add_ratio_row(const ThresholdRule& rule, const LaunchSet& set, const std::string& case_name,
                   std::vector<GateRow>* rows) {
  if (set.case_values.at(case_name).at("step").at("path") == *rule.ratio_to_path) return;
  GateRow row = new_row(rule, case_name, CheckKind::kRatio);
  row.limit = *rule.max_ratio;
  row.limit_source = "max_ratio to " + *rule.ratio_to_path;
  const auto other = case_on_path(set, case_name, *rule.ratio_to_path);
  std::vector<double> ratios;
  const std::size_t metric = metric_index(rule.metric);
  for (const LaunchResult& launch : set.launches) {
    const auto mine = launch.cases.find(case_name);
    const auto theirs = other ? launch.cases.find(*other) : launch.cases.end();
    if (mine == launch.cases.end() || theirs == launch.cases.end()) continue;
    const auto a = statistic_of(mine->second.metrics[metric], rule.statistic);
    const auto b = statistic_of(theirs->second.metrics[metric], rule.statistic);
    if (a && b && *b > 0) ratios.push_back(*a / *b);
  }
  if (ratios.empty() || ratios.size() < set.launches.size()) {
    row.verdict = Verdict::kNothingMeasured;
    row.reason = other ? fmt::format("{} of {} launches have no two values above 0",
                                     set.launches.size() - ratios.size(), set.launches.size())
                       : fmt::format("the run has no such case on path {}", *rule.ratio_to_path);
  } else {
    decide_value(ratios, rule.lower_is_better, &row);
  }
  rows->push_back(row);
}

}  // namespace

Order order_of_sides(const LaunchSet* baseline, const LaunchSet& contender,
                     std::vector<std::string>* notes) {
  Order order;
  if (baseline == nullptr || baseline->launches.empty() || contender.launches.empty()) return order;
  std::vector<double> base, other;
  for (const LaunchResult& launch : baseline->launches) {
    if (!launch.began_ns) return order;
    base.push_back(static_cast<double>(*launch.began_ns) * 1e-9);
  }
  for (const LaunchResult& launch : contender.launches) {
    if (!launch.began_ns) return order;
    other.push_back(static_cast<double>(*launch.began_ns) * 1e-9);
  }
  order.known = true;
  const auto [base_first, base_last] = std::minmax_element(base.begin(), base.end());
  const auto [other_first, other_last] = std::minmax_element(other.begin(), other.end());
  order.midpoint_distance_s =
      std::abs(mean_and_variance(other).mean - mean_and_variance(base).mean);
  // An overlap of the two ends is no turn-taking.
  const double span = std::max(*base_last, *other_last) - std::min(*base_first, *other_first);
  order.interleaved = *base_first < *other_last && *other_first < *base_last &&
                      order.midpoint_distance_s <= span / 4;
  if (!order.interleaved) {
    notes->push_back(
        fmt::format("launches of the two sides do not interleave in time ({:.0f} s apart): what "
                    "changed meanwhile is in the change; better run them in turn",
                    order.midpoint_distance_s));
  }
  return order;
}

double half_noise(const LaunchSet& set, const std::string& case_name, const std::string& metric,
                  const std::string& statistic) {
  const Series series = series_of(set, case_name, metric_index(metric), statistic);
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
  const bool absolute = rule.max_ns.has_value() || rule.ratio_to_path.has_value();
  if (baseline == nullptr && !absolute) {
    throw ConfigError(fmt::format(
        "{}: the rule for {} compares with a baseline: pass --baseline, or give it max_ns or "
        "ratio_to_path",
        rule.place, rule.metric));
  }
  const std::size_t metric = metric_index(rule.metric);
  for (const auto& [name, values] : contender.case_values) {
    if (!glob_matches(rule.cases, name)) continue;
    const Series series = series_of(contender, name, metric, rule.statistic);
    if (baseline != nullptr && !absolute && baseline->case_values.count(name) > 0) {
      const Series base = series_of(*baseline, name, metric, rule.statistic);
      rows->push_back(
          change_row(rule, name, base, series,
                     rule.absolute_floor_ns.value_or(default_floor_ns(contender.backend)), order));
      // What this kind of run never has (a skew with one rank) is no failure of a built-in rule.
      if (built_in && base.samples == 0 && series.samples == 0) rows->back().required = false;
    }
    if (rule.max_ns) {
      GateRow row = new_row(rule, name, CheckKind::kBudget);
      row.limit = *rule.max_ns;
      row.limit_source = "max_ns";
      if (!is_whole(series)) {
        nothing_measured(series, rule, &row);
      } else {
        decide_value(series.values, rule.lower_is_better, &row);
      }
      rows->push_back(row);
    }
    if (rule.ratio_to_path) add_ratio_row(rule, contender, name, rows);
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
  GateRow row =
      change_row(rule, case_name, series_from(std::move(baseline)),
                 series_from(std::move(contender)), rule.absolute_floor_ns.value_or(0), Order{});
  row.statistic = "mean";
  return row;
}

void decide_change(GateRow* row) {
  const double worse = row->lower_is_better ? *row->change : -*row->change;
  const double worst = row->lower_is_better ? *row->high : -*row->low;
  const double best = row->lower_is_better ? *row->low : -*row->high;
  if (worse > *row->limit && worse <= *row->limit + row->drift) {
    row->verdict = Verdict::kInconclusive;
    row->reason = fmt::format(
        "{:+.1f} us is beyond the limit of {:.1f} us, but the launches drift by {:.1f} us",
        shown_us(*row->change), shown_us(*row->limit), shown_us(row->drift));
  } else if (worse > *row->limit && *row->p_adjusted < kGateAlpha) {
    row->verdict = Verdict::kRegressed;
    row->reason = fmt::format("{:+.1f} us is beyond the limit of {:.1f} us ({})",
                              shown_us(*row->change), shown_us(*row->limit), row->limit_source);
  } else if (-worse > *row->limit && -worst > 0) {
    row->verdict = Verdict::kImproved;
    row->reason = fmt::format("{:+.1f} us", shown_us(*row->change));
  } else if (worst <= *row->limit) {
    row->verdict = Verdict::kPass;
    row->reason = "the whole interval keeps the limit";
  } else {
    row->verdict = Verdict::kInconclusive;
    row->reason =
        fmt::format("the change may be {:+.1f} to {:+.1f} us and the limit is {:.1f} us; ",
                    shown_us(best), shown_us(worst), shown_us(*row->limit));
    row->reason += row->launches_needed
                       ? fmt::format("{} launches a side would do", *row->launches_needed)
                       : "no number of launches up to 1000 would do";
  }
}

}  // namespace tpjitter
