// The multi-layer EAGLE runner: after target-verify one draft-extend forward for each speculative
// step, each with an MTP layer, a backend and a graph of its own. The runner's input buffers are
// filled once; between two steps one launch moves the tokens on. Lengths are int32; padded rows have
// accept length -1 and keep the pool rows that an earlier batch left there.
#include "harness/compositions/shared_parts.h"

namespace tpjitter {

PlannedPhase multi_layer_extend(const CaseConfig& config) {
  PlannedPhase extend = draft_extend_phase(config);
  extend.runner.seq_lens_type = kernels::IntType::kInt32;
  extend.runner.padded_accept = -1;
  extend.runner.stale_padded_rows = true;
  return extend;
}

std::string multi_layer_gap(const CaseConfig& config) {
  if (config.draft_extend != "cumsum") return {};
  return "pads accepted lengths with -1, of which draft-extend cannot take prefix sums; use "
         "step.draft_extend = \"strided\"";
}

Composition multi_layer_composition() {
  return {"multi_layer",
          "after target-verify a draft-extend for each draft step, with a graph of its own",
          "SGLang multi-layer EAGLE draft-extend runner",
          false,
          true,
          one_paged_leaf,
          [](const CaseConfig& config) {
            StepPlan plan = empty_speculative_plan(config);
            append_phase(verify_phase(config), plan);
            for (int step = 0; step < config.draft_steps; ++step) {
              PlannedPhase extend = multi_layer_extend(config);
              extend.rotates = step > 0;
              append_phase(extend, plan);
            }
            return plan;
          },
          nullptr,
          multi_layer_gap};
}

}  // namespace tpjitter
