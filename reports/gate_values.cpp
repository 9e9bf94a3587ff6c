// Budgets and ratios: the values of one side against a fixed limit, without a baseline. The same
// doubt and the same false discoveries as for changes apply.
#include <fmt/format.h>

#include "reports/gate_checks.h"

namespace tpjitter {
namespace {

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

// Leaves the row undecided, with p_value, where there is no doubt.
void judge(const Series& series, bool lower_is_better, GateRow* row) {
  const MeanAndVariance m = mean_and_variance(series.values);
  row->contender = m.mean;
  row->contender_launches = m.n;
  const auto result = against_value(series.values, *row->limit);
  if (result) {
    row->low = *row->limit + result->low;
    row->high = *row->limit + result->high;
    row->detectable = detectable_effect(*result);
    row->launches_needed = launches_needed(series.values, std::abs(result->effect));
  }
  if (m.n < kMinLaunches) {
    row->reason = fmt::format("{} launches; at least {} are needed", m.n, kMinLaunches);
    return;
  }
  if (!result) {
    row->reason = "the values are too large to compare";
    return;
  }
  row->reason = doubt_of_value(series, *row->limit);
  if (row->reason.empty()) row->p_value = lower_is_better ? result->p_greater : result->p_less;
}

}  // namespace

GateRow budget_row(const ThresholdRule& rule, const LaunchSet& set, const Selector& selector) {
  GateRow row = new_row(rule, selector, CheckKind::kBudget);
  row.limit = *rule.max_ns;
  row.limit_source = "max_ns";
  const Series series = series_of(set, selector);
  if (series.is_whole()) {
    judge(series, rule.lower_is_better, &row);
  } else {
    nothing_measured(series, rule.statistic, &row);
  }
  return row;
}

std::optional<GateRow> ratio_row(const ThresholdRule& rule, const LaunchSet& set,
                                 const Selector& selector) {
  const Json& path = set.case_values.at(selector.case_name).at("step").at("path");
  if (path == *rule.ratio_to_path) return std::nullopt;
  GateRow row = new_row(rule, selector, CheckKind::kRatio);
  row.limit = *rule.max_ratio;
  row.limit_source = "max_ratio to " + *rule.ratio_to_path;
  const auto other = case_on_path(set, selector.case_name, *rule.ratio_to_path);
  if (!other) {
    row.verdict = Verdict::kNothingMeasured;
    row.reason = fmt::format("the run has no such case on path {}", *rule.ratio_to_path);
    return row;
  }
  Selector of_other = selector;
  of_other.case_name = *other;
  Series series = series_of(set, selector);
  const Series theirs = series_of(set, of_other);
  bool whole = series.is_whole() && theirs.is_whole();
  for (std::size_t i = 0; whole && i < series.values.size(); ++i) {  // launch by launch
    whole = theirs.values[i] > 0;
    if (whole) series.values[i] /= theirs.values[i];
  }
  if (!whole) {
    row.verdict = Verdict::kNothingMeasured;
    row.reason = "not every launch has a value of both, above 0 of the other path";
    return row;
  }
  judge(series, rule.lower_is_better, &row);
  return row;
}

void decide_value(GateRow* row) {
  const bool better = row->lower_is_better ? *row->high <= *row->limit : *row->low >= *row->limit;
  if (*row->p_adjusted < kGateAlpha) {
    row->verdict = Verdict::kRegressed;
    row->reason = "the whole interval is beyond the limit";
  } else if (better) {
    row->verdict = Verdict::kPass;
    row->reason = "the whole interval keeps the limit";
  } else {
    row->verdict = Verdict::kInconclusive;
    row->reason = "it cannot be told from the limit; ";
    row->reason += row->launches_needed ? fmt::format("{} launches would do", *row->launches_needed)
                                        : "no number of launches up to 1000 would do";
  }
}

}  // namespace tpjitter
