// The parts of the gate's verdict: series over launches, controls, order and drift, one row each.
// Internal to gate.cpp.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "reports/gate.h"

namespace tpjitter {

// How the launches of both sides lie in time.
struct Order {
  bool known = false;
  bool interleaved = false;
  double midpoint_distance_s = 0;  // between the sides' mean times
};
Order order_of_sides(const LaunchSet* baseline, const LaunchSet& contender,
                     std::vector<std::string>* notes);

// What two halves of the launches differ by in one of a hundred comparisons, ns, if nothing changes;
// 0 with too few values.
double half_noise(const LaunchSet& set, const std::string& case_name, const std::string& metric,
                  const std::string& statistic);

// Has any case and launch a value of the metric?
bool has_values(const LaunchSet& set, const std::string& metric);

// Rows of one rule: for each matching case a change (with a baseline), a budget and a ratio, as the
// rule says. Changes are left undecided (p_value set) where they can be decided.
void add_rows(const ThresholdRule& rule, const LaunchSet* baseline, const LaunchSet& contender,
              bool built_in, const Order& order, std::vector<GateRow>* rows);

// A change between two sets of values, ns, one a unit; undecided as add_rows leaves it.
GateRow compare_values(const ThresholdRule& rule, const std::string& case_name,
                       std::vector<double> baseline, std::vector<double> contender);

// What needs all rows: false discoveries, waivers, the verdict. `incomplete`: of the contender.
void finish_gate(const GateOptions& options, const std::vector<std::string>& incomplete,
                 GateResult* result);

// Verdict of a change from p_adjusted, interval and limit.
void decide_change(GateRow* row);

// Missing or unstable controls, and a proven shift between the sides.
std::vector<GateControl> check_controls(const LaunchSet* baseline, const LaunchSet& contender);
// A change smaller than the control's own shift is inconclusive.
void doubt_for_control(const GateControl& control, GateRow* row);

}  // namespace tpjitter
