// Google Benchmark's JSON as a side of the gate: each benchmark is a case, each repetition a unit.
// Repetitions run in one process, so that the spread between launches is not in them unless several
// files are given, one a launch: then the means of the files are the units.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "reports/gate.h"

namespace tpjitter {

struct BenchmarkSide {
  // [name][metric]: ns, in the order of the repetitions; metrics "real_time" and "cpu_time"
  std::map<std::string, std::map<std::string, std::vector<double>>> values;
  std::map<std::string, std::string> errors;  // by name: what the benchmark said
  std::map<std::string, Json> context;        // what must agree
  std::vector<std::string> notes;
  std::vector<std::string> sources;
};

// Is the file JSON with a "benchmarks" list? False for directories and files that are not readable.
bool is_benchmark_file(const std::filesystem::path& path);

// Throws RecordError (exit 2) naming file and key; NaN and Infinity are named with their place.
BenchmarkSide read_benchmarks(const std::vector<std::filesystem::path>& files);
struct BenchmarkText {
  std::string name, text;  // of a file
};
BenchmarkSide read_benchmark_texts(const std::vector<BenchmarkText>& files);

std::vector<std::string> benchmark_metrics();
// 10 % of real_time, required; cpu_time is advisory.
Thresholds default_benchmark_thresholds();

GateResult evaluate_benchmarks(const BenchmarkSide& baseline, const BenchmarkSide& contender,
                               const GateOptions& options);

}  // namespace tpjitter
