// A decode backend with page tables and a prefill backend with kv_indices: draft passes go to the
// first, target-verify and draft-extend to the second. Both hooks go where the phase goes.
#include "harness/compositions/shared_parts.h"

namespace tpjitter {

Composition hybrid_composition() {
  return {"hybrid",
          "page tables for draft passes, kv_indices for target-verify and draft-extend",
          "SGLang HybridAttnBackend with speculative_attention_mode = prefill",
          false,  // a decode step uses the decode backend only: `single`
          true,
          [](const StepPlan& plan, LeafSource& leaves) -> std::unique_ptr<MetadataBackend> {
            std::vector<bool> decodes;
            for (const PlannedPhase& phase : plan.phases) {
              decodes.push_back(phase.rebuild == kernels::DecodePhase::kNormalDecode ||
                                phase.rebuild == kernels::DecodePhase::kDraftDecode);
            }
            return std::make_unique<ChosenByPhase>(leaves.make({LeafKind::kPaged, 0}),
                                                   leaves.make({LeafKind::kKvIndices, 0}),
                                                   std::move(decodes));
          },
          eagle_plan,
          nullptr,
          kv_indices_gap};
}

}  // namespace tpjitter
