// run.json ("tpjitter.run/1"): what a run was, written by the launcher, read by every report.
// reports/RECORD.md explains each key; reports/run.schema.json validates it. The conversion stands
// in run_info_json.cpp, files and the strict parser in run_info.cpp.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace tpjitter {

using Json = nlohmann::ordered_json;

struct RunWarning {
  std::string code;         // stable, snake_case: "cgroup_quota"
  std::string text;         // one line: what it means and what to do
  std::optional<int> rank;  // absent: the whole run
};

struct RunCase {
  int index = 0;
  std::string name;                        // "fused/bs8"
  std::string path;                        // "aten", "fused", "fused_in_graph"
  Json values = Json::object();            // every scenario key, resolved: {"shape": {...}, ...}
  std::optional<std::string> skip_reason;  // set: listed, not run
  // Verification. null until the first launch has checked it.
  std::optional<bool> bit_equal;   // all paths equal the reference before timing
  std::int64_t steps_checked = 0;  // steps whose checksum was compared, all ranks
  std::int64_t checksum_failures = 0;
  // {"calls","kernel_launches","copies","syncs"} of a step's rebuilds; "phases": of each rebuild.
  Json operations = nullptr;
};

struct RunOrderEntry {
  int case_index = 0;
  int repetition = 0;
};

struct RunLaunch {
  int index = 0;
  std::vector<RunOrderEntry> order;  // as executed
  std::string status = "complete";   // or "incomplete"
};

// Samples of the two controls, taken before and after a launch's cases. ns.
struct RunControl {
  int launch = 0;
  int rank = 0;
  std::string when;        // "before" | "after"
  std::string all_reduce;  // kernel of the zero-skew samples: "one_shot_pull", "nccl", ...
  std::int64_t all_reduce_bytes = 0;
  std::vector<std::int64_t> empty_graph_launch_ns;    // host time of one launch
  std::vector<std::int64_t> zero_skew_all_reduce_ns;  // own to end, ranks arriving together
  std::vector<std::int64_t> zero_skew_wait_ns;        // own to last seen: the flight floor
};

struct RunRank {
  int rank = 0;
  std::string device;      // "NVIDIA H200" | "modelled device"
  std::string uuid;        // GPU UUID, empty on the host backend
  std::optional<int> cpu;  // core of the timed thread; absent: not pinned
  std::optional<int> numa_node;
  std::int64_t rows = 0;                // rows in rank<K>.phases.npy
  std::string status = "complete";      // "complete" | "died" | "hung" | "failed" | "stopped"
  std::optional<std::string> ended_at;  // "launch 0, case fused/bs8, step 120, stage dispatch"
};

struct RunInfo {
  std::string status = "incomplete";  // "complete" only when all launches ended well
  std::optional<std::string> status_reason;
  std::string backend;  // "host" | "cuda"
  int world_size = 0;
  std::string scenario_name;           // file stem
  std::string scenario_file;           // as given
  std::string summary, source;         // the scenario's own words
  std::vector<std::string> overrides;  // each --set, as given
  std::vector<std::string> command;    // argv
  std::uint64_t seed = 0;
  std::vector<RunCase> cases;
  std::vector<RunLaunch> launches;
  std::vector<RunRank> ranks;
  std::vector<RunControl> controls;
  // {"host_gpu_bound_ns", "gpu_gpu_bound_ns", "pairs": [...], "reason"}
  Json clock = Json::object();
  Json overhead = Json::object();     // {"stamp_ns", "row_ns", ...}
  Json model = nullptr;               // host backend: the modelled device's constants, ns
  Json environment = Json::object();  // cpu, kernel, governor, cgroup, gpu, driver, ...
  Json versions = Json::object();     // tpjitter, compiler, build type, cuda, nccl
  std::string git_revision;           // of the tpjitter build; "unknown" outside git
  std::vector<RunWarning> warnings;
};

inline constexpr const char* kRunSchema = "tpjitter.run/1";

Json run_info_to_json(const RunInfo& info);
// Throws RecordError naming `file` and the key. Unknown keys are ignored, absent ones keep their
// default; schema, status, backend, world_size and cases[].name must be there.
RunInfo run_info_from_json(const Json& document, const std::string& file = "run.json");

// Strict JSON: no NaN, Infinity, duplicate keys, trailing text; 64-bit integers exact, larger
// integers refused. Throws RecordError naming `file`, line and column.
Json parse_strict_json(const std::string& text, const std::string& file);

// Indented; arrays of plain values stay on one line. Ends in a newline. Throws Error if a number is
// not finite: JSON has no word for it.
std::string json_text(const Json& document);

// Written beside and renamed, so that a reader never sees half a file. Throws RunError.
void write_run_json(const std::filesystem::path& run_directory, const RunInfo& info);
RunInfo read_run_json(const std::filesystem::path& run_directory);  // throws RecordError

}  // namespace tpjitter
