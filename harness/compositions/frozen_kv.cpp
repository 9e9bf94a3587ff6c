// Frozen-KV MTP: the draft loop runs as plain decode over the target's KV cache, so one rebuild at
// the target's lengths serves all of its forwards, nothing is written to the cache, and there is no
// draft-extend. The runner's own lengths are int64; the sliding window is the target's, whatever
// draft_swa says.
#include "harness/compositions/shared_parts.h"

namespace tpjitter {

Composition frozen_kv_composition() {
  return {"frozen_kv",
          "a draft loop over the target's cache with one rebuild for all its forwards, no "
          "draft-extend",
          "SGLang frozen-KV MTP runner",
          false,
          true,
          one_paged_leaf,
          [](const CaseConfig& config) {
            StepPlan plan = empty_speculative_plan(config);
            PlannedPhase draft;
            draft.phase = Phase::kDraftDecode;
            draft.inputs = PhaseInputs::kFrozenDraft;
            draft.swa = config.swa;
            draft.draft_model = true;
            draft.layers = static_cast<std::int32_t>(config.draft_layers);
            draft.forwards = static_cast<std::int32_t>(config.draft_steps);
            draft.runner.padded_accept = plan.query_len;
            append_phase(draft, plan);
            append_phase(verify_phase(config), plan);
            return plan;
          },
          nullptr,
          [](const CaseConfig& config) -> std::string {
            if (config.draft_extend == "strided") return {};
            return "has no draft-extend: step.draft_extend changes nothing";
          }};
}

}  // namespace tpjitter
