// Pattern B alone: kv_indptr and kv_indices of every phase, wrappers made once. Capture runs the
// replay update too. With sliding windows each phase has two wrappers, filled together.
#include "harness/compositions/shared_parts.h"

namespace tpjitter {

std::string kv_indices_gap(const CaseConfig& config) {
  if (config.mode == "speculative" && config.draft_extend == "cumsum") {
    return "has no draft-extend with prefix sums of accepted lengths in kv_indices; use "
           "step.draft_extend = \"strided\"";
  }
  return {};
}

Composition pattern_b_composition() {
  return {"pattern_b",
          "kv_indptr and kv_indices, token granular, one backend for every phase",
          "SGLang flashinfer backend; in speculative mode the EAGLE runner",
          true,
          true,
          [](const StepPlan&, LeafSource& leaves) {
            return leaves.make({LeafKind::kKvIndices, 0});
          },
          eagle_plan,
          nullptr,
          kv_indices_gap};
}

}  // namespace tpjitter
