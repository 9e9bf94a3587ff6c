// From a scenario to what a run does: cases with skip reasons, the randomised order of each launch,
// and the text that tells a rank what to run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "harness/backend.h"
#include "harness/contract/run_info.h"
#include "harness/contract/scenario.h"

namespace tpjitter {

struct PlannedCase {
  std::string name;
  CaseConfig config;
  std::string skip_reason;  // empty: runs
};

struct Plan {
  const BackendEntry* backend = nullptr;
  int world_size = 0;
  int launches = 0;
  std::uint64_t seed = 0;
  std::vector<PlannedCase> cases;
  std::vector<std::string> notes;  // keys that change nothing in some of the cases that run

  std::int64_t rows_per_launch() const;                // on one rank
  std::int64_t rows_per_block() const;                 // the largest block of any case
  std::vector<RunOrderEntry> order(int launch) const;  // shuffled by seed and launch
  double estimated_seconds() const;  // of one launch, all in; modelled, a rough guide
};

// Throws ConfigError (more ranks than the backend carries, no case left, a case that cannot be
// sized). `case_glob` keeps the cases whose name matches; empty keeps all.
Plan make_plan(const Scenario& scenario, const BackendEntry& backend, const std::string& case_glob);

// What a rank process is told.
struct RankPlan {
  std::string backend;
  int launch = 0;
  std::vector<CaseConfig> cases;  // by index; skipped ones are never ordered
  std::vector<RunOrderEntry> order;
  // By rank, none: anywhere. Of the GPU that the launcher gives the rank by UUID, read where that
  // was: a rank may number the GPUs otherwise.
  std::vector<std::optional<int>> numa_nodes;
  bool pin = true;  // pin the timed thread to a core
};
std::string rank_plan_to_text(const RankPlan& plan);
RankPlan rank_plan_from_text(std::string_view text);

}  // namespace tpjitter
