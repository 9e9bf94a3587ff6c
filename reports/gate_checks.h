// The parts of the gate's verdict: what the sides must agree in, rows of a rule, controls, the
// conclusion. Internal to the gate.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "reports/gate.h"

namespace tpjitter {

// gate_sides.cpp
// Throws ConfigError for keys of --allow that do not exist and for rules that match nothing.
void check_request(const LaunchSet* baseline, const LaunchSet& contender,
                   const GateOptions& options);
// What differs between the sides, allowed or not; and what makes the baseline a stale one.
void check_sides(const LaunchSet* baseline, const LaunchSet& contender, const GateOptions& options,
                 GateResult* result);

// What two halves of the launches differ by in one of a hundred comparisons, ns, if nothing changes;
// 0 with too few values.
double half_noise(const LaunchSet& set, const std::string& case_name, const std::string& metric,
                  const std::string& statistic);

// Has any case and launch a value of the metric?
bool has_values(const LaunchSet& set, const std::string& metric);

// Rows of one rule: for each matching case and phase a change (with a baseline), a budget and a
// ratio, as the rule says. Left undecided (p_value set) where they can be decided.
void add_rows(const ThresholdRule& rule, const LaunchSet* baseline, const LaunchSet& contender,
              bool built_in, const Order& order, std::vector<GateRow>* rows);

// A change between two sets of values, ns, one a unit; undecided as add_rows leaves it.
GateRow compare_values(const ThresholdRule& rule, const std::string& case_name,
                       std::vector<double> baseline, std::vector<double> contender);

// gate_values.cpp: one side against a fixed limit, without a baseline.
GateRow budget_row(const ThresholdRule& rule, const LaunchSet& set, const Selector& selector);
// nullopt: the case is on the other path itself.
std::optional<GateRow> ratio_row(const ThresholdRule& rule, const LaunchSet& set,
                                 const Selector& selector);

// What rows of all kinds share.
GateRow new_row(const ThresholdRule& rule, const Selector& selector, CheckKind kind);
void nothing_measured(const Series& series, const std::string& statistic, GateRow* row);

// gate_conclusion.cpp: what needs all rows: false discoveries, waivers, the verdict. `incomplete`: of
// the contender; `empty`: it has no rows at all.
void finish_gate(const GateOptions& options, const std::vector<std::string>& incomplete, bool empty,
                 GateResult* result);

// Verdict of a change from p_adjusted, interval and limit; and of a budget or ratio.
void decide_change(GateRow* row);
void decide_value(GateRow* row);

// Missing or unstable controls, and a proven shift between the sides.
std::vector<GateControl> check_controls(const LaunchSet* baseline, const LaunchSet& contender);
// A change smaller than the control's own shift is inconclusive.
void doubt_for_control(const GateControl& control, GateRow* row);

}  // namespace tpjitter
