// The multi-layer EAGLE runner with all draft-extend steps in one graph. At replay its backend's
// out_graph is never called: the graph's first step rebuilds everything, the later ones read what it
// left. On a path whose rebuild is the host's elsewhere, what can be captured of it is recorded.
#include "harness/compositions/composition.h"

namespace tpjitter {

PlannedPhase multi_layer_extend(const CaseConfig& config);  // multi_layer.cpp
std::string multi_layer_gap(const CaseConfig& config);

Composition multi_layer_one_graph_composition() {
  return {"multi_layer_one_graph",
          "the draft-extends of multi_layer in one graph that rebuilds its metadata itself",
          "SGLang multi-layer EAGLE draft-extend runner, single-graph form",
          false,
          true,
          [](const StepPlan&, LeafSource& leaves) {
            return leaves.make({LeafKind::kPaged, 0});
          },
          [](const CaseConfig& config) {
            StepPlan plan = empty_speculative_plan(config);
            append_phase(verify_phase(config), plan);
            PlannedPhase extend = multi_layer_extend(config);
            extend.forwards = static_cast<std::int32_t>(config.draft_steps);
            extend.replays_hook = false;
            append_phase(extend, plan);
            return plan;
          },
          nullptr,
          multi_layer_gap};
}

}  // namespace tpjitter
