#include "harness/plan.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <fstream>
#include <random>

#include "harness/compositions/composition.h"
#include "harness/contract/dispatch_profile.h"
#include "harness/contract/error.h"
#include "harness/contract/key_effects.h"
#include "harness/serving_state.h"
#include "harness/step_plan.h"

namespace tpjitter {
namespace {

std::int64_t steps_of(const CaseConfig& config) { return config.steps * config.repetitions; }

// Combinations of keys that mean nothing are refused, never silently changed.
void check_meaning(const Scenario& scenario, const Scenario::Case& c) {
  const CaseConfig& k = c.config;
  const auto refuse = [&](const char* key, const std::string& why) {
    throw ConfigError(fmt::format("{}: case {}: key `{}`: {}", scenario.file, c.name, key, why));
  };
  const MetadataPath& path = metadata_path(k.path);
  if (k.mode == "speculative" && path.host_lengths && !k.seq_lens_sync) {
    refuse(
        "step.seq_lens_sync",
        k.path +
            " in speculative mode takes lengths from the host and needs the sync; set it to true");
  }
  if (const auto* profile = std::get_if<std::string>(&k.op_overhead_ns)) {
    built_in_dispatch_profile(*profile);  // throws where this build has none
  }
  if (k.mode == "decode" && path.no_decode != nullptr) {
    refuse("step.path", fmt::format("{} {}", path.name, path.no_decode));
  }
  const std::string problem = composition_problem(k);
  if (!problem.empty()) refuse("step.composition", problem);
  const ServingShape shape = ServingShape::of(k);
  if (!path.padded_rows && shape.batch_size != shape.live_batch) {
    refuse("shape.capture_batch_sizes",
           fmt::format("{} is for batches without padded rows, and {} requests would be "
                       "padded to {}; capture {} too",
                       path.name, shape.live_batch, shape.batch_size, shape.live_batch));
  }
  if (k.read_done == "pre_replay" && reads_in_forward(k)) {
    refuse("step.read_done",
           fmt::format("{} reads req_to_token inside the replay; with the event before it the "
                       "scheduler would rewrite what is still to be read; use in_replay or "
                       "post_replay",
                       path.in_graph ? k.path : k.composition));
  }
}

// Host memory of one rank for a case, bytes: two copies of the batch and the tables of the phases.
std::int64_t host_bytes(const CaseConfig& config) {
  const ServingShape s = ServingShape::of(config);
  const std::int64_t batch_state =
      s.pool_rows * s.max_context * 4 + (s.needs_mapping ? s.num_slots * 8 : 0);
  const StepPlan plan = step_plan(config);
  std::int64_t tables = 0;
  std::vector<TableRows> seen;
  for (const auto& runs : layers_by_graph(config, plan, s.batch_size, s.live_batch)) {
    for (const LayerRun& run : runs) {
      std::vector<TableRows> read = run.halves;
      read.push_back(run.tables);
      for (const TableRows& rows : read) {
        if (std::find(seen.begin(), seen.end(), rows) != seen.end()) continue;
        seen.push_back(rows);
        const bool tokens = rows.leaf.kind == LeafKind::kKvIndices;
        tables += std::int64_t{s.max_batch} * (tokens ? s.max_context : s.max_seq_pages) * 4;
      }
    }
  }
  if (s.topk > 1) tables += s.custom_mask_bytes();
  // Expected, computed, the timed loop's and one more during the check of paths; twice with SWA.
  return 2 * batch_state + 4 * tables * (s.needs_mapping ? 2 : 1);
}

// Bytes that can still be had; 0 when unknown.
std::int64_t available_bytes() {
  std::ifstream file("/proc/meminfo");
  for (std::string word; file >> word;) {
    std::int64_t kib = 0;
    if (word == "MemAvailable:" && file >> kib) return kib * 1024;
  }
  return 0;
}

// Refused before the kernel has to choose whom to kill. On a GPU machine the host's memory is not
// the limit, and virtual machines may show less than they can grow to.
void check_memory(const Scenario& scenario, const Scenario::Case& c) {
  const std::int64_t needed = host_bytes(c.config) * scenario.world_size;
  const std::int64_t available = available_bytes();
  if (available == 0 || needed < available) return;
  throw ConfigError(fmt::format(
      "{}: case {}: {} ranks need about {} GiB on the host backend, {} GiB are free; lower "
      "shape.batch_size, shape.context_tokens or world_size",
      scenario.file, c.name, scenario.world_size, (needed >> 30) + 1, available >> 30));
}

}  // namespace

int phases_per_step(const CaseConfig& config) {
  return static_cast<int>(step_plan(config).phases.size());
}

std::int64_t Plan::rows_per_launch() const {
  std::int64_t rows = 0;
  for (const PlannedCase& c : cases) {
    if (c.skip_reason.empty()) rows += steps_of(c.config) * phases_per_step(c.config);
  }
  return rows;
}

std::int64_t Plan::rows_per_block() const {
  std::int64_t rows = 1;
  for (const PlannedCase& c : cases) {
    rows = std::max(rows, c.config.block_steps * phases_per_step(c.config));
  }
  return rows;
}

std::vector<RunOrderEntry> Plan::order(int launch) const {
  std::vector<RunOrderEntry> entries;
  for (int i = 0; i < static_cast<int>(cases.size()); ++i) {
    if (!cases[i].skip_reason.empty()) continue;
    for (int r = 0; r < cases[i].config.repetitions; ++r) entries.push_back({i, r});
  }
  std::mt19937_64 random(seed * 1'000'003 + static_cast<std::uint64_t>(launch));
  for (std::size_t i = entries.size(); i > 1; --i) {  // own shuffle: the same on every library
    std::swap(entries[i - 1], entries[random() % i]);
  }
  return entries;
}

double Plan::estimated_seconds() const {
  double seconds = 1.0;  // processes, controls
  for (const PlannedCase& c : cases) {
    if (!c.skip_reason.empty()) continue;
    const CaseConfig& k = c.config;
    // Two all-reduces and the attention stand-in take about 9 us a layer on an H200 and in the
    // model.
    const double step_us = static_cast<double>(k.layers) * (k.layer_us + 9.0) + 100.0;
    seconds += static_cast<double>(k.repetitions) *
               (0.2 + step_us * 1e-6 * static_cast<double>(k.steps + k.warmup_steps));
  }
  return seconds;
}

Plan make_plan(const Scenario& scenario, const BackendEntry& backend,
               const std::string& case_glob) {
  Plan plan;
  plan.backend = &backend;
  plan.world_size = scenario.world_size;
  plan.launches = scenario.launches;
  std::string reason;
  const int capacity = backend.capacity(&reason);
  if (capacity == 0) {
    throw ConfigError(fmt::format("backend `{}` cannot be used here: {}; use --backend host",
                                  backend.name, reason));
  }
  if (scenario.world_size > capacity) {
    throw ConfigError(fmt::format(
        "{}: {} ranks, but backend `{}` has room for {} ({}); use --world-size {}, or --backend "
        "host to model the device",
        scenario.file, scenario.world_size, backend.name, capacity, reason, capacity));
  }
  for (const Scenario::Case& c : scenario.cases) {
    if (!case_glob.empty() && fnmatch(case_glob.c_str(), c.name.c_str(), 0) != 0) continue;
    ServingShape::of(c.config);  // throws when the case cannot be sized
    check_meaning(scenario, c);
    if (backend.name == std::string("host")) check_memory(scenario, c);
    std::string skip_reason = composition_gap(c.config);
    if (skip_reason.empty()) skip_reason = backend.skip_reason(c.config, scenario.world_size);
    plan.cases.push_back({c.name, c.config, std::move(skip_reason)});
    plan.seed = static_cast<std::uint64_t>(c.config.inject_seed);
  }
  if (plan.cases.empty()) {
    throw ConfigError(fmt::format("--case {}: matches no case of {}; `tpjitter plan {}` lists them",
                                  case_glob, scenario.file, scenario.file));
  }
  if (std::all_of(plan.cases.begin(), plan.cases.end(),
                  [](const PlannedCase& c) { return !c.skip_reason.empty(); })) {
    throw ConfigError(fmt::format("{}: no case can run on backend `{}`: {}", scenario.file,
                                  backend.name, plan.cases.front().skip_reason));
  }
  std::vector<Scenario::Case> runs;
  for (const PlannedCase& c : plan.cases) {
    if (c.skip_reason.empty()) runs.push_back({c.name, c.config});
  }
  plan.notes = effect_notes(scenario, runs);
  return plan;
}

std::string rank_plan_to_text(const RankPlan& plan) {
  Json document = {{"backend", plan.backend}, {"launch", plan.launch}, {"pin", plan.pin}};
  for (const CaseConfig& config : plan.cases) document["cases"].push_back(case_to_json(config));
  for (const RunOrderEntry& e : plan.order) {
    document["order"].push_back({e.case_index, e.repetition});
  }
  for (const auto& node : plan.numa_nodes) {
    document["numa_nodes"].push_back(node ? Json(*node) : Json(nullptr));
  }
  return document.dump();
}

RankPlan rank_plan_from_text(std::string_view text) {
  const Json document = Json::parse(text);
  RankPlan plan;
  plan.backend = document.at("backend");
  plan.launch = document.at("launch");
  plan.pin = document.at("pin");
  for (const Json& values : document.at("cases")) plan.cases.push_back(case_from_json(values));
  for (const Json& e : document.at("order")) plan.order.push_back({e.at(0), e.at(1)});
  for (const Json& node : document.at("numa_nodes")) {
    plan.numa_nodes.push_back(node.is_null() ? std::nullopt : std::optional(node.get<int>()));
  }
  return plan;
}

}  // namespace tpjitter
