// The controls of a gate: an empty graph launch and an all-reduce without skew, before and after each
// launch's cases. They can only take a verdict away.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "reports/gate_checks.h"

namespace tpjitter {
namespace {

// A control that differs by more than this between the two ends of a launch did not stay the same.
constexpr double kControlRelative = 0.5;
constexpr double kControlFloorNs = 2'000, kControlFloorHostNs = 20'000;

void add_control(const char* name, const LaunchSet& set, bool is_base,
                 std::optional<double> LaunchControl::*before,
                 std::optional<double> LaunchControl::*after, std::vector<double>* values,
                 GateControl* control) {
  control->name = name;
  const double floor = set.backend == "host" ? kControlFloorHostNs : kControlFloorNs;
  const char* side = is_base ? "baseline" : "contender";
  std::size_t moved = 0;
  for (const LaunchResult& launch : set.launches) {
    const auto first = launch.control.*before, last = launch.control.*after;
    if (!first || !last) {
      control->stable = false;
      control->reason =
          fmt::format("{} launch {} of {} has none", side, launch.launch, launch.source);
      return;
    }
    values->push_back((*first + *last) / 2);
    if (std::abs(*last - *first) > std::max(kControlRelative * *first, floor)) ++moved;
  }
  (is_base ? control->baseline : control->contender) = mean_and_variance(*values).mean;
  if (3 * moved > set.launches.size()) {
    control->stable = false;
    control->reason = fmt::format("in {} of {} {} launches it changed from begin to end", moved,
                                  set.launches.size(), side);
  }
}

}  // namespace

std::vector<GateControl> check_controls(const LaunchSet* baseline, const LaunchSet& contender) {
  std::vector<GateControl> controls;
  const auto add = [&](const char* name, std::optional<double> LaunchControl::*before,
                       std::optional<double> LaunchControl::*after) {
    GateControl control;
    std::vector<double> base, other;
    if (baseline != nullptr) add_control(name, *baseline, true, before, after, &base, &control);
    if (control.stable) add_control(name, contender, false, before, after, &other, &control);
    if (control.stable && baseline != nullptr) {
      const auto result = welch(base, other);
      if (result && *control.baseline > 0 &&
          std::min(result->p_greater, result->p_less) < kGateAlpha / 2) {
        control.shift = std::abs(result->effect) / *control.baseline;
      }
    }
    controls.push_back(control);
  };
  add("empty_graph_launch_ns", &LaunchControl::empty_graph_launch_before,
      &LaunchControl::empty_graph_launch_after);
  if (contender.world_size > 1) {
    add("zero_skew_all_reduce_ns", &LaunchControl::zero_skew_before,
        &LaunchControl::zero_skew_after);
  }
  return controls;
}

void doubt_for_control(const GateControl& control, GateRow* row) {
  if (!control.shift || row->kind != CheckKind::kChange || !row->p_value) return;
  const double moved = *control.shift * std::abs(*row->baseline);
  // Less than the limit could neither hide nor make a regression.
  if (moved <= *row->limit || std::abs(*row->change) > moved) return;
  row->p_value.reset();
  row->verdict = Verdict::kInconclusive;
  row->reason = fmt::format("{} moved by {:.0f} % itself, which could hide or make this change",
                            control.name, *control.shift * 100);
}

}  // namespace tpjitter
