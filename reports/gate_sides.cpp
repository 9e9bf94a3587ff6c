// What is looked at before any value: does the request fit the contender, do the sides agree, is the
// baseline still one to compare with.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "harness/contract/error.h"
#include "reports/gate_checks.h"

namespace tpjitter {
namespace {

constexpr std::int64_t kStaleDays = 14;

std::set<std::string> paths_of(const LaunchSet& set) {
  std::set<std::string> paths;
  for (const auto& [name, values] : set.case_values) {
    const auto step = values.find("step");
    if (step == values.end() || !step->is_object() || !step->contains("path")) continue;
    if ((*step)["path"].is_string()) paths.insert((*step)["path"].get<std::string>());
  }
  return paths;
}

void check_rule(const ThresholdRule& rule, const LaunchSet* baseline, const LaunchSet& contender,
                bool built_in) {
  if (baseline == nullptr && built_in) {
    throw ConfigError(
        "gate: the built-in rules compare with a baseline: pass --baseline RUN (or a file of "
        "`tpjitter baseline make`), or --thresholds with budgets and ratios");
  }
  if (baseline == nullptr && !rule.max_ns && !rule.ratio_to_path) {
    throw ConfigError(fmt::format(
        "{}: the rule for {} compares with a baseline: pass --baseline, or give it max_ns or "
        "ratio_to_path",
        rule.place, rule.metric));
  }
  if (built_in) return;
  bool any_case = false, any_phase = rule.phase.empty() || rule.phase == "*";
  for (const auto& [name, values] : contender.case_values) {
    if (!glob_matches(rule.cases, name)) continue;
    any_case = true;
    for (const LaunchSet* set : {&contender, baseline}) {
      if (set == nullptr) continue;
      const auto phases = phases_of(*set, name);
      any_phase = any_phase || std::find(phases.begin(), phases.end(), rule.phase) != phases.end();
    }
  }
  if (!any_case) {
    throw ConfigError(fmt::format("{}: key `cases`: \"{}\" matches no case of the contender",
                                  rule.place, rule.cases));
  }
  if (rule.ratio_to_path) {
    const std::set<std::string> paths = paths_of(contender);
    if (paths.count(*rule.ratio_to_path) == 0) {
      throw ConfigError(
          fmt::format("{}: key `ratio_to_path`: no case of the contender is on path \"{}\"; it "
                      "has: {}",
                      rule.place, *rule.ratio_to_path, fmt::join(paths, ", ")));
    }
  }
  if (rule.phase.empty() || contender.rows == 0) return;  // rows alone tell the phases
  if (metrics()[metric_index(rule.metric)].scope == MetricScope::kStep) {
    throw ConfigError(
        fmt::format("{}: key `phase`: {} is of a whole step", rule.place, rule.metric));
  }
  if (!any_phase) {
    throw ConfigError(
        fmt::format("{}: key `phase`: no case mixes \"{}\" with other phases; "
                    "without the key a rule takes what a case has",
                    rule.place, rule.phase));
  }
}

std::set<std::string> revisions_of(const LaunchSet& set) {
  std::set<std::string> revisions;
  for (const LaunchResult& launch : set.launches) {
    if (!launch.git_revision.empty()) revisions.insert(launch.git_revision);
  }
  return revisions;
}

struct Span {
  std::int64_t first = INT64_MAX, last = INT64_MIN;
  bool known() const { return first <= last; }
};

Span span_of(const LaunchSet& set) {
  Span span;
  for (const LaunchResult& launch : set.launches) {
    if (!launch.began_ns) return {};
    span.first = std::min(span.first, *launch.began_ns);
    span.last = std::max(span.last, *launch.began_ns);
  }
  return span;
}

// Whole days from `from` to `to`. In seconds: times of a damaged file cannot overflow.
std::int64_t days_between(std::int64_t from_ns, std::int64_t to_ns) {
  constexpr std::int64_t kSecondNs = 1'000'000'000, kDayS = 86'400;
  return (to_ns / kSecondNs - from_ns / kSecondNs) / kDayS;
}

// By the records alone: no clock of today is read.
void note_staleness(const LaunchSet& baseline, const LaunchSet& contender, GateResult* result) {
  const auto note = [&](std::string text) { result->notes.push_back(std::move(text)); };
  const Span base = span_of(baseline), other = span_of(contender);
  if (base.known() && other.known()) {
    const std::int64_t days = days_between(base.last, other.first);
    const std::int64_t days_before = days_between(other.last, base.first);
    if (days >= kStaleDays) {
      note(
          fmt::format("stale: the baseline is {} days older than the contender: what the machine "
                      "did meanwhile is in every change; measure it anew",
                      days));
    } else if (days_before >= 1) {
      note(fmt::format("stale: the contender is {} days older than the baseline", days_before));
    }
    if (const std::int64_t span = days_between(base.first, base.last); span >= kStaleDays) {
      note(fmt::format("stale: the baseline's launches span {} days", span));
    }
  }
  for (const auto& [set, side] :
       {std::pair{&baseline, "baseline"}, std::pair{&contender, "contender"}}) {
    const std::set<std::string> revisions = revisions_of(*set);
    if (revisions.size() > 1) {
      note(fmt::format("stale: the {} mixes revisions {}", side, fmt::join(revisions, ", ")));
    }
  }
  for (const std::string& revision : revisions_of(baseline)) {
    if (revision.find("-dirty") == std::string::npos) continue;
    note(
        fmt::format("the baseline's revision {} has changes that nobody committed: it cannot be "
                    "made again",
                    revision));
  }
  for (const std::string& line : result->allowed) {
    if (line.rfind("environment.", 0) == 0 || line.rfind("versions.", 0) == 0) {
      note(
          "stale: the baseline is of another machine, driver or library, which was allowed: its "
          "effect is in every change; measure it anew");
      break;
    }
  }
}

}  // namespace

void check_request(const LaunchSet* baseline, const LaunchSet& contender,
                   const GateOptions& options) {
  for (const std::string& key : options.allow) {
    if (may_be_allowed(key)) continue;
    throw ConfigError(
        fmt::format("--allow {}: no such key; allowed: a scenario key such as "
                    "step.op_overhead_ns, environment.cpu_model, versions.nccl, "
                    "scenario, backend, world_size, cases",
                    key));
  }
  for (const ThresholdRule& rule : options.thresholds.rules) {
    check_rule(rule, baseline, contender, options.built_in);
  }
}

void check_sides(const LaunchSet* baseline, const LaunchSet& contender, const GateOptions& options,
                 GateResult* result) {
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
  note_staleness(*baseline, contender, result);
}

}  // namespace tpjitter
