#include "harness/step_plan.h"

namespace tpjitter {
namespace {

using kernels::DecodePhase;
using kernels::QueryMode;

// SERVING engines at draft_steps / topk 1 / draft_tokens: draft_steps - 1 draft passes, then
// target-verify, then draft-extend, each after its own rebuild.
StepPlan speculative_plan(const CaseConfig& config) {
  StepPlan plan;
  plan.query_len = static_cast<std::int32_t>(config.draft_tokens);
  plan.draft_passes = static_cast<int>(config.draft_steps) - 1;
  const bool one_draft_graph = config.graph_layout == "merged";
  int graph = 0;
  for (int pass = 0; pass < plan.draft_passes; ++pass) {
    PlannedPhase draft;
    draft.phase = Phase::kDraftDecode;
    draft.rebuild = DecodePhase::kDraftDecode;
    draft.inputs = PhaseInputs::kDraft;
    draft.draft_pass = pass;
    draft.graph = graph;
    draft.launches = !one_draft_graph || pass + 1 == plan.draft_passes;
    draft.seqlen_offset = pass + 1;
    draft.swa = config.draft_swa;
    draft.layers = static_cast<std::int32_t>(config.draft_layers);
    plan.phases.push_back(draft);
    if (draft.launches) ++graph;
  }
  PlannedPhase verify;
  verify.phase = Phase::kTargetVerify;
  verify.rebuild = DecodePhase::kTargetVerify;
  verify.inputs = PhaseInputs::kVerify;
  verify.graph = graph++;
  verify.seqlen_offset = plan.query_len;
  verify.query_len = plan.query_len;
  verify.swa = config.swa;
  verify.layers = static_cast<std::int32_t>(config.layers);
  plan.phases.push_back(verify);

  const bool strided = config.draft_extend == "strided";
  PlannedPhase extend;
  extend.phase = strided ? Phase::kDraftExtendStrided : Phase::kDraftExtendCumsum;
  extend.rebuild = strided ? DecodePhase::kDraftExtendStrided : DecodePhase::kDraftExtendCumsum;
  extend.inputs = PhaseInputs::kDraftExtend;
  extend.graph = graph++;
  extend.query_len = plan.query_len;
  extend.q_mode = strided ? QueryMode::kStrided : QueryMode::kCumsum;
  extend.swa = config.draft_swa;
  extend.layers = static_cast<std::int32_t>(config.draft_layers);
  plan.phases.push_back(extend);
  plan.graphs = graph;
  return plan;
}

}  // namespace

int StepPlan::first_phase(int g) const {
  int i = 0;
  while (phases[i].graph != g) ++i;
  return i;
}

int StepPlan::last_phase(int g) const {
  int i = first_phase(g);
  while (i < static_cast<int>(phases.size()) && phases[i].graph == g) ++i;
  return i;
}

StepPlan step_plan(const CaseConfig& config) {
  if (config.mode == "speculative") return speculative_plan(config);
  StepPlan plan;
  PlannedPhase decode;
  decode.swa = config.swa;
  decode.layers = static_cast<std::int32_t>(config.layers);
  plan.phases.push_back(decode);
  return plan;
}

}  // namespace tpjitter
