#include "reports/launch_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <span>

#include "harness/contract/error.h"
#include "harness/contract/scenario.h"
#include "harness/contract/scenario_fields.h"
#include "reports/run_clocks.h"
#include "reports/run_reader.h"
#include "reports/summary_checks.h"

namespace tpjitter {
namespace {

constexpr const char* kEnvironmentKeys[] = {"machine",    "cpu_model", "cpus_online", "numa_nodes",
                                            "smt_active", "governor",  "kernel",      "gpus"};
// Not the version of tpjitter itself: another build is what a gate is for.
constexpr const char* kVersionKeys[] = {"build_type",  "sanitize", "cuda_runtime",
                                        "cuda_driver", "nccl",     "nvidia_driver"};

// Of a GPU what decides speed; UUIDs and readings of the moment may differ.
Json comparable_environment(const Json& environment) {
  Json kept = Json::object();
  for (const char* key : kEnvironmentKeys) {
    if (!environment.contains(key)) continue;
    if (std::string_view(key) != "gpus") {
      kept[key] = environment[key];
      continue;
    }
    kept[key] = Json::array();
    if (!environment[key].is_array()) continue;
    for (const Json& gpu : environment[key]) {
      Json facts = Json::object();
      for (const char* fact :
           {"name", "sms", "memory_bytes", "max_sm_clock_mhz", "power_limit_mw"}) {
        if (gpu.is_object() && gpu.contains(fact)) facts[fact] = gpu[fact];
      }
      kept[key].push_back(facts);
    }
  }
  return kept;
}

Json comparable_versions(const Json& versions) {
  Json kept = Json::object();
  for (const char* key : kVersionKeys) {
    if (versions.contains(key)) kept[key] = versions[key];
  }
  return kept;
}

// {"step": {"path": ...}} as "step.path".
std::map<std::string, Json> flattened(const Json& values) {
  std::map<std::string, Json> flat;
  for (const auto& [table, keys] : values.items()) {
    if (!keys.is_object()) {
      flat[table] = keys;
      continue;
    }
    for (const auto& [key, value] : keys.items()) flat[table + "." + key] = value;
  }
  return flat;
}

// A row of the slot on any rank.
const PhaseRow& row_of(const Run& run, const ReplayTable& table, std::size_t slot) {
  for (std::size_t rank = 0; rank < run.ranks.size(); ++rank) {
    const std::uint32_t number = table.row_of_slot[rank][slot];
    if (number != kNoRow) return run.ranks[rank].rows[number];
  }
  throw RecordError("a replay without a row on any rank", kExitRunFailed);  // match_replays forbids
}

// Slots are in order of (launch, repetition, step): a launch is one range of them.
struct SlotRange {
  std::size_t begin, end;
};

std::map<int, SlotRange> ranges_by_launch(const Run& run, const ReplayTable& table) {
  std::map<int, SlotRange> ranges;
  for (std::size_t slot = 0; slot < table.slots(); ++slot) {
    const int launch = row_of(run, table, slot).launch;
    const auto [at, added] = ranges.try_emplace(launch, SlotRange{slot, slot + 1});
    if (!added) at->second.end = slot + 1;
  }
  return ranges;
}

std::vector<std::int64_t> block_medians(const Run& run, const ReplayTable& table, SlotRange range,
                                        std::span<const std::int64_t> column) {
  std::vector<std::int64_t> medians, values;
  const auto close = [&] {
    if (const auto p50 = nearest_rank(values, kP50)) medians.push_back(*p50);
    values.clear();
  };
  for (std::size_t slot = range.begin; slot < range.end; ++slot) {
    const PhaseRow& row = row_of(run, table, slot);
    if (table.has(slot, ReplayTable::kFirstOfStep) && (row.flags & kFlagFirstOfBlock) != 0) close();
    if (column[slot] != kAbsent) values.push_back(column[slot]);
  }
  close();
  return medians;
}

bool mixes_phases(const ReplayTable& table) {
  return std::any_of(table.phase.begin(), table.phase.end(),
                     [&](std::uint8_t phase) { return phase != table.phase.front(); });
}

// The values of one launch by phase.
void add_phases(const ReplayTable& table, SlotRange range, std::size_t m,
                std::span<const std::int64_t> column, LaunchCase* result) {
  std::array<std::vector<std::int64_t>, kNumPhases> values;
  for (std::size_t slot = range.begin; slot < range.end; ++slot) {
    if (column[slot] != kAbsent) values[table.phase[slot]].push_back(column[slot]);
  }
  for (std::size_t phase = 0; phase < values.size(); ++phase) {
    if (values[phase].empty()) continue;
    result->phases[phase_name(static_cast<Phase>(phase))][m] = describe(values[phase]);
  }
}

void add_case(const Run& run, const RunCase& run_case, std::map<int, LaunchResult>* launches) {
  const ReplayTable table = match_replays(run, run_case.index);
  const Floors floors = compute_floors(run, run_case.index, table);
  const auto ranges = ranges_by_launch(run, table);
  const bool mixed = mixes_phases(table);
  visit_columns(run, table, floors, [&](std::optional<std::size_t> rank, const auto& columns) {
    if (rank) return;
    for (const auto& [launch, range] : ranges) {
      LaunchCase& result = (*launches)[launch].cases[run_case.name];
      for (std::size_t m = 0; m < kNumMetrics; ++m) {
        if (!metrics()[m].case_level) continue;
        std::vector<std::int64_t> values;
        for (std::size_t slot = range.begin; slot < range.end; ++slot) {
          if (columns[m][slot] != kAbsent) values.push_back(columns[m][slot]);
        }
        result.metrics[m] = describe(values);
        result.block_p50[m] = block_medians(run, table, range, columns[m]);
        if (mixed && metrics()[m].scope != MetricScope::kStep) {
          add_phases(table, range, m, columns[m], &result);
        }
      }
    }
  });
}

void keep_largest(std::optional<double>* kept, std::vector<std::int64_t> samples) {
  if (const auto p50 = nearest_rank(samples, kP50)) {
    *kept = std::max(kept->value_or(0.0), static_cast<double>(*p50));
  }
}

void add_controls(const RunInfo& info, std::map<int, LaunchResult>* launches) {
  std::map<std::pair<int, bool>, std::set<int>> empty_ranks, skew_ranks;
  for (const RunControl& control : info.controls) {
    const auto at = launches->find(control.launch);
    if (at == launches->end()) continue;
    const std::pair<int, bool> key{control.launch, control.when == "before"};
    if (!control.empty_graph_launch_ns.empty()) empty_ranks[key].insert(control.rank);
    if (!control.zero_skew_all_reduce_ns.empty()) skew_ranks[key].insert(control.rank);
    LaunchControl& kept = at->second.control;
    const bool before = control.when == "before";
    keep_largest(before ? &kept.empty_graph_launch_before : &kept.empty_graph_launch_after,
                 control.empty_graph_launch_ns);
    keep_largest(before ? &kept.zero_skew_before : &kept.zero_skew_after,
                 control.zero_skew_all_reduce_ns);
  }
  // A rank without a control is a missing control, whatever the others have.
  const std::size_t ranks = static_cast<std::size_t>(info.world_size);
  for (auto& [index, launch] : *launches) {
    LaunchControl& kept = launch.control;
    if (empty_ranks[{index, true}].size() < ranks) kept.empty_graph_launch_before.reset();
    if (empty_ranks[{index, false}].size() < ranks) kept.empty_graph_launch_after.reset();
    if (skew_ranks[{index, true}].size() < ranks) kept.zero_skew_before.reset();
    if (skew_ranks[{index, false}].size() < ranks) kept.zero_skew_after.reset();
  }
}

// CLOCK_REALTIME minus CLOCK_MONOTONIC_RAW, from the first pair in the record.
std::optional<std::int64_t> realtime_offset(const Json& clock) {
  if (!clock.contains("pairs") || !clock["pairs"].is_array()) return std::nullopt;
  for (const Json& pair : clock["pairs"]) {
    if (pair.is_object() && pair.contains("realtime_ns") && pair.contains("monotonic_raw_ns") &&
        pair["realtime_ns"].is_number_integer() && pair["monotonic_raw_ns"].is_number_integer()) {
      return pair["realtime_ns"].get<std::int64_t>() - pair["monotonic_raw_ns"].get<std::int64_t>();
    }
  }
  return std::nullopt;
}

void add_times(const Run& run, std::map<int, LaunchResult>* launches) {
  const std::optional<std::int64_t> offset = realtime_offset(run.info.clock);
  if (!offset) return;
  for (const RankRows& rank : run.ranks) {
    for (const PhaseRow& row : rank.rows) {
      const auto at = launches->find(row.launch);
      if (row.sequence == 0 || at == launches->end() || row.inputs_begin_ns == 0) continue;
      const std::int64_t began = row.inputs_begin_ns + *offset;
      at->second.began_ns = std::min(at->second.began_ns.value_or(began), began);
    }
  }
}

std::string shown(const Json& value) {
  const std::string text = value.dump();
  return text.size() <= 80 ? text : text.substr(0, 77) + "...";
}

}  // namespace

bool is_statistic(const std::string& name) {
  return std::find(kStatistics.begin(), kStatistics.end(), name) != kStatistics.end();
}

std::optional<double> statistic_of(const Distribution& values, const std::string& name) {
  const auto number = [](const std::optional<std::int64_t>& value) -> std::optional<double> {
    if (!value) return std::nullopt;
    return static_cast<double>(*value);
  };
  if (name == "p50") return number(values.p50);
  if (name == "p90") return number(values.p90);
  if (name == "p99") return number(values.p99);
  if (name == "p999") return number(values.p999);
  if (name == "max") return number(values.max);
  return values.mean;
}

bool may_be_allowed(const std::string& key) {
  for (const char* known : {"scenario", "backend", "world_size", "cases"}) {
    if (key == known) return true;
  }
  for (const char* known : kEnvironmentKeys) {
    if (key == std::string("environment.") + known) return true;
  }
  for (const char* known : kVersionKeys) {
    if (key == std::string("versions.") + known) return true;
  }
  const ScenarioField* field = find_scenario_field(key);
  return field != nullptr && field_in_case(*field);
}

LaunchSet read_launches(const std::filesystem::path& run_directory) {
  const Run run = read_run(run_directory);
  LaunchSet set;
  set.scenario = run.info.scenario_name;
  set.backend = run.info.backend;
  set.world_size = run.info.world_size;
  set.environment = comparable_environment(run.info.environment);
  set.versions = comparable_versions(run.info.versions);
  set.git_revision = run.info.git_revision;
  set.clock_bound_ns = RunClocks(run.info).gpu_gpu_bound_ns();
  set.rows = run.rows;
  const std::string source = run_directory.string();
  if (run.info.status != "complete") {
    set.incomplete.push_back(fmt::format("{}: status {}: {}", source, run.info.status,
                                         run.info.status_reason.value_or("no reason given")));
  }
  std::vector<RunWarning> problems = run.problems;
  for (const RunCase& run_case : run.info.cases) check_metadata(run_case, &problems);
  for (const RunWarning& problem : problems) {
    set.incomplete.push_back(fmt::format("{}: {}", source, problem.text));
  }

  std::map<int, LaunchResult> launches;
  for (const RunCase& run_case : run.info.cases) {
    if (run_case.skip_reason) continue;
    // Through the field table, so that a key which an older record does not have gets its default.
    set.case_values[run_case.name] = case_to_json(case_from_json(run_case.values));
    add_case(run, run_case, &launches);
  }
  add_controls(run.info, &launches);
  add_times(run, &launches);
  for (const RunLaunch& launch : run.info.launches) {
    const auto at = launches.find(launch.index);
    if (at == launches.end()) continue;
    for (std::size_t i = 0; i < launch.order.size(); ++i) {
      const int index = launch.order[i].case_index;
      if (index < 0 || index >= static_cast<int>(run.info.cases.size())) continue;
      const auto found = at->second.cases.find(run.info.cases[index].name);
      if (found != at->second.cases.end()) found->second.positions.push_back(static_cast<int>(i));
    }
  }
  for (auto& [index, launch] : launches) {
    launch.source = source;
    launch.launch = index;
    launch.git_revision = set.git_revision;
    set.launches.push_back(std::move(launch));
  }
  return set;
}

void merge(LaunchSet* into, const LaunchSet& more) {
  const auto source = [](const LaunchSet& set) {
    return set.launches.empty() ? std::string("an empty run") : set.launches.front().source;
  };
  const auto same = [](const LaunchResult& a, const LaunchResult& b) {
    return (a.source == b.source && a.launch == b.launch) ||
           (a.began_ns && b.began_ns && *a.began_ns == *b.began_ns);
  };
  for (const LaunchResult& a : into->launches) {
    for (const LaunchResult& b : more.launches) {
      if (!same(a, b)) continue;
      throw ConfigError(fmt::format("{} and {} hold the same launch {}: a launch counts once",
                                    a.source, b.source, b.launch));
    }
  }
  std::vector<std::string> different = differences(*into, more, {}, nullptr);
  for (const auto& [name, values] : into->case_values) {
    if (more.case_values.count(name) == 0) different.push_back("only one has case " + name);
  }
  for (const auto& [name, values] : more.case_values) {
    if (into->case_values.count(name) == 0) different.push_back("only one has case " + name);
  }
  if (!different.empty()) {
    throw ConfigError(fmt::format("{} and {} cannot be merged into one side: {}", source(*into),
                                  source(more), different.front()));
  }
  into->launches.insert(into->launches.end(), more.launches.begin(), more.launches.end());
  into->incomplete.insert(into->incomplete.end(), more.incomplete.begin(), more.incomplete.end());
  into->rows += more.rows;
  if (more.clock_bound_ns) {
    into->clock_bound_ns = std::max(into->clock_bound_ns.value_or(0), *more.clock_bound_ns);
  }
}

std::vector<std::string> differences(const LaunchSet& base, const LaunchSet& contender,
                                     const std::vector<std::string>& allow,
                                     std::vector<std::string>* allowed) {
  std::vector<std::string> found;
  const auto compare = [&](const std::string& key, const Json& a, const Json& b) {
    if (a == b) return;
    const std::string line = fmt::format("{}: {} against {}", key, shown(a), shown(b));
    const bool may = std::find(allow.begin(), allow.end(), key) != allow.end();
    if (may && allowed != nullptr) allowed->push_back(line);
    if (!may) found.push_back(line);
  };
  compare("scenario", base.scenario, contender.scenario);
  compare("backend", base.backend, contender.backend);
  compare("world_size", base.world_size, contender.world_size);
  for (const char* key : kEnvironmentKeys) {
    compare(std::string("environment.") + key, base.environment.value(key, Json()),
            contender.environment.value(key, Json()));
  }
  for (const char* key : kVersionKeys) {
    compare(std::string("versions.") + key, base.versions.value(key, Json()),
            contender.versions.value(key, Json()));
  }
  std::set<std::string> seen;  // a key that differs in every case is one line
  for (const auto& [name, values] : base.case_values) {
    const auto other = contender.case_values.find(name);
    if (other == contender.case_values.end()) continue;  // a missing case is the verdict's business
    const auto a = flattened(values), b = flattened(other->second);
    for (const auto& [key, value] : a) {
      const auto theirs = b.find(key);
      const Json& their_value = theirs == b.end() ? Json() : theirs->second;
      if (value == their_value || !seen.insert(key).second) continue;
      compare(key, value, their_value);
    }
  }
  return found;
}

}  // namespace tpjitter
