#include "reports/google_benchmark.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>

#include "harness/contract/error.h"
#include "reports/gate_checks.h"

namespace tpjitter {
namespace {

constexpr const char* kMetrics[] = {"real_time", "cpu_time"};
// The library's own, and what our bench_* programs add.
constexpr const char* kContextKeys[] = {
    "num_cpus", "library_build_type", "cpu_scaling_enabled", "gpu", "nccl", "ranks"};

std::string read_text(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  if (!stream) throw RecordError(fmt::format("{}: cannot be read", path.string()), kExitUsage);
  return text.str();
}

double unit_ns(const std::string& unit, const std::string& where) {
  if (unit == "ns") return 1;
  if (unit == "us") return 1e3;
  if (unit == "ms") return 1e6;
  if (unit == "s") return 1e9;
  throw RecordError(
      fmt::format("{}: time_unit \"{}\" is not known; allowed: ns, us, ms, s", where, unit),
      kExitUsage);
}

std::string text_of(const Json& entry, const char* key, const std::string& where) {
  if (!entry.contains(key) || !entry[key].is_string()) {
    throw RecordError(fmt::format("{}: key `{}` is missing or no string", where, key), kExitUsage);
  }
  return entry[key].get<std::string>();
}

double number_of(const Json& entry, const char* key, const std::string& where) {
  if (!entry.contains(key) || !entry[key].is_number()) {
    throw RecordError(fmt::format("{}: key `{}` is missing or no number", where, key), kExitUsage);
  }
  return entry[key].get<double>();
}

using Repetitions = std::map<std::string, std::map<std::string, std::vector<double>>>;

void read_entry(const Json& entry, const std::string& where, Repetitions* values,
                BenchmarkSide* side) {
  if (!entry.is_object()) throw RecordError(where + ": is not an object", kExitUsage);
  const std::string run_type = entry.contains("run_type") ? text_of(entry, "run_type", where) : "";
  if (run_type == "aggregate") return;  // of the repetitions that are read themselves
  const std::string name = text_of(entry, entry.contains("run_name") ? "run_name" : "name", where);
  const auto is_set = [&](const char* key) {
    return entry.contains(key) && entry[key] != Json(false);
  };
  if (is_set("error_occurred") || is_set("skipped")) {
    const bool told = entry.contains("error_message") && entry["error_message"].is_string();
    side->errors[name] = told ? entry["error_message"].get<std::string>() : "it failed";
    return;
  }
  const double unit = unit_ns(text_of(entry, "time_unit", where), where);
  for (const char* metric : kMetrics) {
    const double ns = number_of(entry, metric, where) * unit;
    if (!(ns > 0)) {
      side->errors[name] = fmt::format("{} is {}", metric, ns);
      return;
    }
    (*values)[name][metric].push_back(ns);
  }
}

void read_document(const std::string& text, const std::string& path, Repetitions* values,
                   BenchmarkSide* side) {
  Json document;
  try {
    document = parse_strict_json(text, path);
  } catch (const RecordError& problem) {
    throw RecordError(problem.what(), kExitUsage);
  }
  if (!document.is_object() || !document.contains("benchmarks") ||
      !document["benchmarks"].is_array()) {
    throw RecordError(fmt::format("{}: has no list `benchmarks`", path), kExitUsage);
  }
  if (document.contains("context") && document["context"].is_object()) {
    for (const char* key : kContextKeys) {
      if (!document["context"].contains(key)) continue;
      const Json& value = document["context"][key];
      const auto [at, added] = side->context.try_emplace(key, value);
      if (!added && at->second != value) {
        throw ConfigError(
            fmt::format("{}: context.{} differs from the other files of its side", path, key));
      }
    }
  }
  const Json& list = document["benchmarks"];
  for (std::size_t i = 0; i < list.size(); ++i) {
    read_entry(list[i], fmt::format("{}: benchmarks[{}]", path, i), values, side);
  }
}

}  // namespace

bool is_benchmark_file(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return false;
  // Before strict parsing, so that a damaged file is still diagnosed as what it is.
  std::ifstream stream(path, std::ios::binary);
  std::string head(1 << 16, '\0');
  stream.read(head.data(), static_cast<std::streamsize>(head.size()));
  head.resize(static_cast<std::size_t>(stream.gcount()));
  return head.find("\"benchmarks\"") != std::string::npos &&
         head.find("\"context\"") != std::string::npos;
}

BenchmarkSide read_benchmarks(const std::vector<std::filesystem::path>& files) {
  std::vector<BenchmarkText> texts;
  for (const std::filesystem::path& file : files) texts.push_back({file.string(), read_text(file)});
  return read_benchmark_texts(texts);
}

BenchmarkSide read_benchmark_texts(const std::vector<BenchmarkText>& files) {
  BenchmarkSide side;
  for (const BenchmarkText& file : files) {
    Repetitions values;
    read_document(file.text, file.name, &values, &side);
    side.sources.push_back(file.name);
    for (const auto& [name, by_metric] : values) {
      for (const auto& [metric, repetitions] : by_metric) {
        std::vector<double>& units = side.values[name][metric];
        if (files.size() == 1) {
          units = repetitions;
        } else {
          units.push_back(mean_and_variance(repetitions).mean);
        }
      }
    }
  }
  if (files.size() == 1) {
    side.notes.push_back(
        fmt::format("{}: repetitions of one process: the spread between launches is not in the "
                    "intervals; give one file a launch",
                    files.front().name));
  }
  return side;
}

std::vector<std::string> benchmark_metrics() { return {std::begin(kMetrics), std::end(kMetrics)}; }

Thresholds default_benchmark_thresholds() {
  Thresholds thresholds;
  for (const char* metric : kMetrics) {
    ThresholdRule rule;
    rule.metric = metric;
    rule.statistic = "mean";
    rule.absolute_floor_ns = 0;
    rule.required = thresholds.rules.empty();
    rule.place = "built in";
    thresholds.rules.push_back(rule);
  }
  return thresholds;
}

GateResult evaluate_benchmarks(const BenchmarkSide& baseline, const BenchmarkSide& contender,
                               const GateOptions& options) {
  GateResult result;
  result.notes = baseline.notes;
  result.notes.insert(result.notes.end(), contender.notes.begin(), contender.notes.end());
  const auto differs = [&](const std::string& key, const std::string& line) {
    const bool may =
        std::find(options.allow.begin(), options.allow.end(), key) != options.allow.end();
    (may ? result.allowed : result.incomparable).push_back(line);
  };
  for (const std::string key : kContextKeys) {
    const auto a = baseline.context.find(key), b = contender.context.find(key);
    const Json ours = a == baseline.context.end() ? Json() : a->second;
    const Json theirs = b == contender.context.end() ? Json() : b->second;
    if (ours == theirs) continue;
    differs("context." + key,
            fmt::format("context.{}: {} against {}", key, ours.dump(), theirs.dump()));
  }
  for (const auto& [name, error] : baseline.errors) {
    differs("cases", fmt::format("benchmark {} failed in the baseline: {}", name, error));
  }
  const auto only_in = [&](const BenchmarkSide& a, const BenchmarkSide& b, const char* side) {
    for (const auto& [name, values] : a.values) {
      if (b.values.count(name) > 0 || b.errors.count(name) > 0) continue;
      differs("cases", fmt::format("benchmark {} is only in the {}", name, side));
    }
  };
  only_in(baseline, contender, "baseline");
  only_in(contender, baseline, "contender");
  for (const ThresholdRule& rule : options.thresholds.rules) {
    if (rule.max_ns || rule.ratio_to_path) {
      throw ConfigError(rule.place + ": max_ns and ratio_to_path are not for benchmark files");
    }
    if (!rule.phase.empty()) {
      throw ConfigError(rule.place + ": key `phase`: benchmark files have no phases");
    }
    const std::size_t before = result.rows.size();
    for (const auto& [name, by_metric] : contender.values) {
      const auto base = baseline.values.find(name);
      if (base == baseline.values.end() || contender.errors.count(name) > 0 ||
          !glob_matches(rule.cases, name)) {
        continue;
      }
      result.rows.push_back(
          compare_values(rule, name, base->second.at(rule.metric), by_metric.at(rule.metric)));
    }
    for (const auto& [name, error] : contender.errors) {
      if (!glob_matches(rule.cases, name)) continue;
      result.rows.push_back(compare_values(rule, name, {}, {}));
      result.rows.back().reason = "the benchmark failed: " + error;
    }
    if (result.rows.size() == before && result.incomparable.empty()) {
      throw ConfigError(
          fmt::format("{}: \"{}\" matches no benchmark of the contender", rule.place, rule.cases));
    }
  }
  finish_gate(options, {}, false, &result);
  return result;
}

}  // namespace tpjitter
