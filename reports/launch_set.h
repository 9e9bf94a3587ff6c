// What a gate compares: for each process launch the distribution of each metric of each case
// (maximum over ranks in each replay), and the controls around them. The launch is the sampling
// unit; blocks of steps are kept to tell a drift inside it. Made from run directories, or read from
// a compact baseline file (baseline.h) that holds the same.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "harness/contract/run_info.h"
#include "reports/metrics.h"
#include "reports/quantiles.h"

namespace tpjitter {

// The statistics a rule may ask for, of the values of one launch.
inline constexpr std::array<const char*, 6> kStatistics = {"p50",  "p90", "p99",
                                                           "p999", "max", "mean"};
bool is_statistic(const std::string& name);
// nullopt: too few values in that launch.
std::optional<double> statistic_of(const Distribution& values, const std::string& name);

struct LaunchCase {
  std::array<Distribution, kNumMetrics> metrics;  // of the case-level maxima
  // The same by phase, of a case that mixes phases; metrics of a whole step are not in it.
  std::map<std::string, std::array<Distribution, kNumMetrics>> phases;
  // [metric][block]: p50 of each block of steps, in time order
  std::array<std::vector<std::int64_t>, kNumMetrics> block_p50;
  std::vector<int> positions;  // in the launch's order of (case, repetition), from 0
};

struct LaunchControl {
  // p50, ns, largest over ranks; nullopt: not taken.
  std::optional<double> empty_graph_launch_before, empty_graph_launch_after;
  std::optional<double> zero_skew_before, zero_skew_after;
};

struct LaunchResult {
  std::string source;  // run directory or baseline file, as given
  int launch = 0;
  std::string git_revision;              // of the program that measured it
  std::optional<std::int64_t> began_ns;  // CLOCK_REALTIME of the launch's first row
  std::map<std::string, LaunchCase> cases;
  LaunchControl control;
};

// Several runs of one scenario on one machine, merged.
struct LaunchSet {
  std::string scenario, backend;
  int world_size = 0;
  std::map<std::string, Json> case_values;  // by case name: every scenario key, resolved
  Json environment = Json::object();        // what comparability asks for
  Json versions = Json::object();
  std::string git_revision;                    // of the first run
  std::optional<std::int64_t> clock_bound_ns;  // between GPUs, the largest; nullopt: not aligned
  std::vector<LaunchResult> launches;
  std::vector<std::string> incomplete;  // one line each: what is missing, and from which source
  std::uint64_t rows = 0;
};

// Is `key` one that `allow` may hold: a scenario key, "environment.X", "versions.X", "cases", ...?
bool may_be_allowed(const std::string& key);

// Throws RecordError for a directory that is no run or is damaged beyond reading.
LaunchSet read_launches(const std::filesystem::path& run_directory);
// Adds `more`. Throws ConfigError naming both where they are not of the same scenario, backend,
// machine and cases, or hold the same launch.
void merge(LaunchSet* into, const LaunchSet& more);

// First difference of what must agree, as "KEY: A against B" lines; `allow` holds keys that may
// differ: "shape.layers", "environment.cpu_model", "versions.nccl", "scenario", "world_size".
std::vector<std::string> differences(const LaunchSet& base, const LaunchSet& contender,
                                     const std::vector<std::string>& allow,
                                     std::vector<std::string>* allowed);

}  // namespace tpjitter
