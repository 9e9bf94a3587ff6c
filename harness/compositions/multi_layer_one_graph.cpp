// The multi-layer EAGLE runner with all draft-extend steps in one graph. At replay its backend's
// out_graph is never called: the graph's first step rebuilds everything, the later ones read what it
// left. On a path whose rebuild is the host's elsewhere, what can be captured of it is recorded.
#include "harness/compositions/shared_parts.h"

namespace tpjitter {

Composition multi_layer_one_graph_composition() {
  return {"multi_layer_one_graph",
          "the draft-extends of multi_layer in one graph that rebuilds its metadata itself",
          "SGLang multi-layer EAGLE draft-extend runner, single-graph form",
          false,
          true,
          one_paged_leaf,
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
