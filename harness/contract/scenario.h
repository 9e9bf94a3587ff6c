// Scenarios: a TOML file becomes a list of cases, each with every key resolved to one value.
// One field table (scenario_fields.cpp) gives parsing, --set, help, validation, case names, JSON
// and scenarios/README.md: a new key is one member here and one row there.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <variant>
#include <vector>

#include "harness/contract/run_info.h"

namespace tpjitter {

// ns added to each dispatcher call, or the name of a measured profile (dispatch_profile.h).
using OpOverhead = std::variant<std::int64_t, std::string>;

// One case. Every member is one row of the field table; help and ranges stand there.
struct CaseConfig {
  // [step]
  std::string mode = "decode";
  std::string path = "fused";
  std::string composition = "single";
  std::string execution = "graph";
  std::string read_done = "post_replay";
  std::int64_t draft_steps = 3;
  std::int64_t topk = 1;
  std::int64_t draft_tokens = 4;
  bool draft_swa = false;
  std::string draft_extend = "strided";
  std::string graph_layout = "merged";
  std::string loop = "coupled";
  std::int64_t run_ahead_depth = 2;
  std::string coupling = "own";
  std::string coupling_wait = "d2h_event";
  bool seq_lens_sync = false;
  OpOverhead op_overhead_ns = std::int64_t{0};
  std::string page_columns = "all";
  // [shape]
  bool swa = false;
  std::int64_t batch_size = 8;
  std::vector<std::int64_t> capture_batch_sizes;  // empty: {batch_size}
  std::int64_t context_tokens = 8192;
  std::int64_t max_context_tokens = 0;  // 0: context_tokens + 1024
  std::int64_t page_size = 64;
  std::int64_t hidden_size = 2880;
  std::int64_t layers = 36;
  std::int64_t draft_layers = 1;
  // [body]
  double layer_us = 10.0;
  std::int64_t nodes_per_layer = 4;
  std::string all_reduce = "one_shot_pull";
  std::string fills = "persistent";
  bool pdl = false;
  // [inject]
  std::string inject_where = "none";
  std::string inject_pattern = "fixed";
  std::int64_t inject_victim = 0;
  double inject_delay_us = 0;
  std::int64_t inject_every_steps = 1;
  std::int64_t inject_seed = 1;
  // [noise]
  std::string noise_kind = "none";
  std::int64_t noise_threads = 1;
  // [sampling]
  std::int64_t warmup_steps = 20;
  std::int64_t steps = 400;
  std::int64_t block_steps = 200;
  std::int64_t repetitions = 1;

  bool operator==(const CaseConfig&) const = default;
};

inline constexpr int kMaxWorldSize = 64;

struct Scenario {
  std::string name;  // file stem
  std::string file;  // as given
  std::string summary;
  std::string source;
  int world_size = 2;
  int launches = 1;
  std::string record_all_reduces = "first";
  std::vector<std::string> overrides;  // each --set as given
  struct Axis {
    std::string key;
    std::vector<std::string> labels;  // as they stand in case names
  };
  std::vector<Axis> axes;  // in field-table order
  struct Case {
    std::string name;  // axes' labels joined by '/', "fused/bs8"; without axes the path
    CaseConfig config;
  };
  std::vector<Case> cases;  // cross product, the last axis varies fastest
};

// Throws ConfigError, one line: "FILE:LINE:COLUMN: key `KEY`: PROBLEM; allowed: ...".
// `overrides` are "key=value" with a TOML value (a bare word is a string; a list makes an axis);
// an error in one names "--set KEY=VALUE" as the place.
Scenario load_scenario(const std::filesystem::path& file,
                       const std::vector<std::string>& overrides);

// Each key of a case, grouped by table, as run.json holds it; and back. A key that is absent gets
// its default and an unknown one is passed over, so that records of other versions stay readable;
// a wrong type or range throws RecordError naming the key.
Json case_to_json(const CaseConfig& config);
CaseConfig case_from_json(const Json& values);

// scenarios/README.md, from the field table and the *.toml files in `directory`.
std::string scenario_readme(const std::filesystem::path& directory);

}  // namespace tpjitter
