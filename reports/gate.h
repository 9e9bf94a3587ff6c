// The verdict: does the contender break a threshold? Per rule and case a change against the
// baseline with its interval, a budget without one, or a ratio between two paths of one run; then
// one exit code. The hard part is to doubt honestly: too few launches, a control that moved or is
// missing, series with two states or a drift give "inconclusive", never a colour by accident.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "harness/contract/thresholds.h"
#include "reports/gate_order.h"
#include "reports/gate_statistics.h"
#include "reports/launch_set.h"

namespace tpjitter {

enum class Verdict { kImproved, kPass, kRegressed, kInconclusive, kIncomparable, kNothingMeasured };
const char* verdict_name(Verdict verdict);  // "improved", ...

enum class CheckKind { kChange, kBudget, kRatio };
const char* check_kind_name(CheckKind kind);

struct GateRow {
  std::string case_name, metric, statistic;
  std::string phase;  // empty: all together
  CheckKind kind = CheckKind::kChange;
  std::string place;  // of the rule
  bool required = true;
  bool lower_is_better = true;
  // ns; for kRatio the ratio itself. Means over launches.
  std::optional<double> baseline, contender;
  std::size_t baseline_launches = 0, contender_launches = 0;
  std::optional<double> change;      // contender - baseline
  std::optional<double> low, high;   // interval of the change; of the value for budget and ratio
  std::optional<double> limit;       // what the change must exceed; of the value for budget, ratio
  std::string limit_source;          // "relative_limit", "absolute_floor_ns", "noise_ns", ...
  OrderEffects order;                // of a change; its bias widens the limit
  std::optional<double> detectable;  // smallest effect these launches would show
  std::optional<int> launches_needed;  // a side, for the limit
  // One-sided: of a change for the worse; of a value beyond its budget or ratio.
  std::optional<double> p_value, p_adjusted;
  Verdict verdict = Verdict::kInconclusive;
  std::string reason;
  std::optional<std::string> waived;  // reason of the waiver
};

// "dispatch_ns p50 of aten/bs8", with the phase if there is one.
std::string row_label(const GateRow& row);

struct GateControl {
  std::string name;                           // "empty_graph_launch_ns", "zero_skew_all_reduce_ns"
  std::optional<double> baseline, contender;  // ns, mean over launches
  std::optional<double> shift;                // relative, if the launches prove one
  bool stable = true;
  std::string reason;
};

struct GateOptions {
  Thresholds thresholds;
  bool built_in = true;            // thresholds are default_thresholds()
  std::vector<std::string> allow;  // keys that may differ
  std::string today;               // YYYY-MM-DD, for waivers
};

struct GateResult {
  Verdict verdict = Verdict::kPass;
  int exit_code = 0;
  bool is_void = false;  // the controls do not allow a verdict
  std::string headline;  // one line
  std::vector<GateRow> rows;
  std::vector<GateControl> controls;
  Order order;
  std::vector<std::string> incomparable;  // what differs and may not
  std::vector<std::string> allowed;       // what differs and was allowed
  std::vector<std::string> notes;         // order, drift, waivers, incomplete runs
};

// `baseline` null: budgets and ratios only; a rule without either is then a ConfigError.
// Throws ConfigError for rules whose cases, phase or other path match nothing.
GateResult evaluate_gate(const LaunchSet* baseline, const LaunchSet& contender,
                         const GateOptions& options);

// Keys of the metrics that rules may name, the ones required by default first.
std::vector<std::string> gate_metrics();

// The text of a thresholds file: the defaults with the noise of these launches, noise_ns being what
// two halves of them differ by in one of a hundred comparisons, the largest over cases. Throws
// ConfigError for fewer than 2 * kMinLaunches launches.
std::string thresholds_with_noise(const LaunchSet& set);

Json gate_json(const GateResult& result);  // "tpjitter.gate/1"
std::string gate_text(const GateResult& result);
// What is known about the order of launches and cases, and what it does: a line each.
std::vector<std::string> order_lines(const GateResult& result);

}  // namespace tpjitter
