// Thresholds of a gate ("tpjitter.thresholds/1"), TOML: which statistic of which metric may change
// by how much, and what is waived until when. Without a file: default_thresholds().
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace tpjitter {

struct ThresholdRule {
  std::string metric;                        // "dispatch_ns"
  std::string statistic = "p50";             // p50, p90, p99, p999, max, mean
  std::string cases = "*";                   // glob over case names
  std::string phase;                         // one phase, "*" each apart; empty: all together
  bool lower_is_better = true;               // direction = "lower_is_better" | "higher_is_better"
  double relative_limit = 0.10;              // of the baseline
  std::optional<double> absolute_floor_ns;   // absent: default_floor_ns(), benchmarks 0
  double noise_ns = 0;                       // A/A noise, as `gate --init` measured it
  std::optional<double> max_ns;              // budget without a baseline
  std::optional<std::string> ratio_to_path;  // of this run: the same case on that path...
  std::optional<double> max_ratio;           // ... times this is the most
  bool required = true;                      // false: shown, decides nothing
  std::string place;                         // "thresholds.toml:12:1", or "built in"
};

struct ThresholdWaiver {
  std::string metric;
  std::string cases = "*";
  std::string reason;
  std::string expires;  // YYYY-MM-DD, the last day it holds
  std::string place;
};

struct Thresholds {
  std::string file;  // empty: built in
  std::vector<ThresholdRule> rules;
  std::vector<ThresholdWaiver> waivers;
};

// A change of less is never a regression: 2 us, on the host backend 20 us.
double default_floor_ns(const std::string& backend);

inline constexpr const char* kThresholdsSchema = "tpjitter.thresholds/1";

// p50 of every metric of `metrics`, 10 %, floor 2 us, on the host backend 20 us; the first six are
// required, the rest advisory.
Thresholds default_thresholds(const std::vector<std::string>& metrics, const std::string& backend);

// Throws ConfigError, one line "FILE:LINE:COLUMN: ...": syntax, schema, unknown keys, wrong types,
// limits that are negative or not finite, a date that is none, metrics that are not in `metrics`.
Thresholds load_thresholds(const std::filesystem::path& file,
                           const std::vector<std::string>& metrics);
Thresholds parse_thresholds(const std::string& text, const std::string& source,
                            const std::vector<std::string>& metrics);

// The file that load_thresholds reads back.
std::string thresholds_text(const Thresholds& thresholds, const std::string& comment);

// fnmatch, with '/' as any other character.
bool glob_matches(const std::string& glob, const std::string& name);

}  // namespace tpjitter
