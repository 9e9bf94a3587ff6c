// The table of compositions: which attention backends rebuild the metadata of a step, and which
// runner makes up a speculative step. Add one: a file beside this one, a row in composition.cpp and
// its name in the scenario field table.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "harness/compositions/metadata_backend.h"
#include "harness/contract/metadata_paths.h"
#include "harness/contract/scenario.h"
#include "harness/step_plan.h"
#include "kernels/attention_tables.h"

namespace tpjitter {

struct Composition {
  const char* name;
  const char* summary;
  const char* source;  // what it reproduces
  bool decode;         // has mode "decode"
  bool speculative;    // has mode "speculative"
  std::unique_ptr<MetadataBackend> (*make)(const StepPlan& plan, LeafSource& leaves);
  StepPlan (*plan)(const CaseConfig& config);  // of a speculative step
  // Why a case means nothing with it, and why one that means something is not built or adds nothing;
  // empty: neither. Null: never.
  std::string (*problem)(const CaseConfig& config);
  std::string (*gap)(const CaseConfig& config);
};

std::span<const Composition> compositions();
const Composition& find_composition(const std::string& name);  // throws ConfigError

// Why the case means nothing with its composition: it is refused. Empty: it has a meaning.
std::string composition_problem(const CaseConfig& config);
// Why the case is skipped on every backend. Empty: it runs.
std::string composition_gap(const CaseConfig& config);
// The only one with step.topk above 1.
inline constexpr const char* kTreeComposition = "tree";
// Whether the case's composition has that path.
bool path_exists(CaseConfig config, const MetadataPath& path);

std::unique_ptr<MetadataBackend> make_composition(const CaseConfig& config, const StepPlan& plan,
                                                  LeafSource& leaves);
// That, or a copy with a fault in it.
using MakeComposition = std::function<std::unique_ptr<MetadataBackend>(
    const CaseConfig& config, const StepPlan& plan, LeafSource& leaves)>;

// All rows of a phase at a captured batch size that holds `live_rows` requests.
BatchView batch_view(int phase, std::int32_t batch_size, std::int32_t live_rows);
// What the forwards of graph `g` read, in the order of their layers.
std::vector<LayerRun> graph_layers(const MetadataBackend& backend, const StepPlan& plan, int g,
                                   std::int32_t batch_size, std::int32_t live_rows);
// The same where only the order matters, without a device's leaves. Runs by graph.
std::vector<std::vector<LayerRun>> layers_by_graph(const CaseConfig& config, const StepPlan& plan,
                                                   std::int32_t batch_size, std::int32_t live_rows);

// What each layer of these runs reads, in order.
std::vector<kernels::LayerKind> layer_kinds(const StepPlan& plan,
                                            const std::vector<LayerRun>& runs);

// Rows of the table, each in a file of its name.
Composition single_composition();
Composition pattern_b_composition();
Composition hybrid_composition();
Composition hybrid_linear_composition();
Composition two_batch_composition();
Composition tree_composition();
Composition multi_layer_composition();
Composition multi_layer_one_graph_composition();
Composition frozen_kv_composition();

}  // namespace tpjitter
