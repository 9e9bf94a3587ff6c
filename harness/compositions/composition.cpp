#include "harness/compositions/composition.h"

#include <algorithm>

#include "harness/contract/error.h"
#include "harness/torch/torch_path.h"

namespace tpjitter {
namespace {

// Leaves without tables: they only say who reads them.
class NamedLeaf final : public MetadataBackend {
 public:
  explicit NamedLeaf(const LeafId& id) : id_(id) {}
  void capture(const BatchView&) override {}
  void out_graph(const BatchView&) override {}
  void in_graph(const BatchView&) override {}
  void append_layers(const BatchView& view, int layers,
                     std::vector<LayerRun>& runs) const override {
    runs.push_back({{id_, view}, {}, layers});
  }

 private:
  LeafId id_;
};

class NamedLeaves final : public LeafSource {
 public:
  std::unique_ptr<MetadataBackend> make(const LeafId& id) override {
    return std::make_unique<NamedLeaf>(id);
  }
};

}  // namespace

std::span<const Composition> compositions() {
  static const Composition kCompositions[] = {
      single_composition(),      pattern_b_composition(),
      hybrid_composition(),      hybrid_linear_composition(),
      two_batch_composition(),   tree_composition(),
      multi_layer_composition(), multi_layer_one_graph_composition(),
      frozen_kv_composition(),
  };
  return kCompositions;
}

const Composition& find_composition(const std::string& name) {
  for (const Composition& composition : compositions()) {
    if (composition.name == name) return composition;
  }
  throw ConfigError("step.composition: \"" + name + "\" is not known");
}

std::string composition_problem(const CaseConfig& config) {
  const Composition& composition = find_composition(config.composition);
  const bool speculative = config.mode == "speculative";
  if (speculative ? !composition.speculative : !composition.decode) {
    return config.composition + " has no step.mode = \"" + config.mode + "\"";
  }
  const bool tree = config.composition == std::string(kTreeComposition);
  if (config.topk > 1 && !tree) {
    return config.composition + " drafts one branch: step.topk = " + std::to_string(config.topk) +
           " needs step.mode = \"speculative\" and step.composition = \"" + kTreeComposition + "\"";
  }
  const std::string problem = composition.problem == nullptr ? "" : composition.problem(config);
  return problem.empty() ? problem : config.composition + " " + problem;
}

std::string composition_gap(const CaseConfig& config) {
  const MetadataPath& path = metadata_path(config.path);
  if (path.needs_torch && !kHasTorchPath) {
    return "step.path = \"" + config.path + "\" is not in this build: " + kHowToGetTorchPath;
  }
  if (path.single_only != nullptr && config.composition != "single") {
    return "step.path = \"" + config.path +
           "\" is built for composition single: " + path.single_only;
  }
  const Composition& composition = find_composition(config.composition);
  const std::string gap = composition.gap == nullptr ? "" : composition.gap(config);
  return gap.empty() ? gap : config.composition + " " + gap;
}

bool path_exists(CaseConfig config, const MetadataPath& path) {
  config.path = path.name;
  if (path.no_decode != nullptr && config.mode == "decode") return false;
  return composition_gap(config).empty();
}

std::unique_ptr<MetadataBackend> make_composition(const CaseConfig& config, const StepPlan& plan,
                                                  LeafSource& leaves) {
  return find_composition(config.composition).make(plan, leaves);
}

BatchView batch_view(int phase, std::int32_t batch_size, std::int32_t live_rows) {
  return {phase, 0, batch_size, std::max(0, batch_size - live_rows)};
}

std::vector<LayerRun> graph_layers(const MetadataBackend& backend, const StepPlan& plan, int g,
                                   std::int32_t batch_size, std::int32_t live_rows) {
  std::vector<LayerRun> runs;
  for (int phase = plan.first_phase(g); phase < plan.last_phase(g); ++phase) {
    const BatchView view = batch_view(phase, batch_size, live_rows);
    for (int forward = 0; forward < plan.phases[phase].forwards; ++forward) {
      backend.append_layers(view, plan.phases[phase].layers, runs);
    }
  }
  return runs;
}

std::vector<std::vector<LayerRun>> layers_by_graph(const CaseConfig& config, const StepPlan& plan,
                                                   std::int32_t batch_size,
                                                   std::int32_t live_rows) {
  NamedLeaves leaves;
  const std::unique_ptr<MetadataBackend> backend = make_composition(config, plan, leaves);
  std::vector<std::vector<LayerRun>> graphs;
  for (int g = 0; g < plan.graphs; ++g) {
    graphs.push_back(graph_layers(*backend, plan, g, batch_size, live_rows));
  }
  return graphs;
}

std::vector<kernels::LayerKind> layer_kinds(const StepPlan& plan,
                                            const std::vector<LayerRun>& runs) {
  std::vector<kernels::LayerKind> kinds;
  for (const LayerRun& run : runs) {
    kernels::TableKind kind = kernels::TableKind::kPaged;
    if (run.tables.leaf.kind == LeafKind::kKvIndices) kind = kernels::TableKind::kKvIndices;
    if (run.tables.leaf.kind == LeafKind::kLinearState) kind = kernels::TableKind::kHybridLinear;
    if (run.tables.leaf.kind == LeafKind::kTopk) kind = kernels::TableKind::kTopk;
    const bool swa = plan.phases[run.tables.view.phase].swa;
    for (int layer = 0; layer < run.layers; ++layer) {
      kinds.push_back(kernels::layer_kind(kind, swa, static_cast<int>(kinds.size())));
    }
  }
  return kinds;
}

}  // namespace tpjitter
