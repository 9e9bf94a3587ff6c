#include "harness/step_plan.h"

#include <algorithm>
#include <utility>

#include "harness/compositions/composition.h"

namespace tpjitter {

using kernels::DecodePhase;
using kernels::QueryMode;

StepPlan empty_speculative_plan(const CaseConfig& config) {
  StepPlan plan;
  plan.graphs = 0;
  plan.query_len = static_cast<std::int32_t>(config.draft_tokens);
  plan.draft_passes = static_cast<int>(config.draft_steps) - 1;
  plan.topk = static_cast<std::int32_t>(config.topk);
  return plan;
}

void append_phase(PlannedPhase phase, StepPlan& plan) {
  phase.graph = plan.graphs++;
  plan.phases.push_back(std::move(phase));
}

void append_draft_passes(const CaseConfig& config, StepPlan& plan) {
  const bool one_draft_graph = config.graph_layout == "merged";
  for (int pass = 0; pass < plan.draft_passes; ++pass) {
    PlannedPhase draft;
    draft.phase = Phase::kDraftDecode;
    draft.rebuild = DecodePhase::kDraftDecode;
    draft.inputs = PhaseInputs::kDraft;
    draft.draft_pass = pass;
    draft.graph = plan.graphs;
    draft.launches = !one_draft_graph || pass + 1 == plan.draft_passes;
    draft.seqlen_offset = pass + 1;
    draft.query_len = static_cast<std::int32_t>(config.topk);
    draft.swa = config.draft_swa;
    draft.draft_model = true;
    draft.layers = static_cast<std::int32_t>(config.draft_layers);
    plan.phases.push_back(draft);
    if (draft.launches) ++plan.graphs;
  }
}

PlannedPhase verify_phase(const CaseConfig& config) {
  PlannedPhase verify;
  verify.phase = Phase::kTargetVerify;
  verify.rebuild = DecodePhase::kTargetVerify;
  verify.inputs = PhaseInputs::kVerify;
  verify.query_len = static_cast<std::int32_t>(config.draft_tokens);
  verify.seqlen_offset = verify.query_len;
  verify.swa = config.swa;
  verify.layers = static_cast<std::int32_t>(config.layers);
  return verify;
}

PlannedPhase draft_extend_phase(const CaseConfig& config) {
  const bool strided = config.draft_extend == "strided";
  PlannedPhase extend;
  extend.phase = strided ? Phase::kDraftExtendStrided : Phase::kDraftExtendCumsum;
  extend.rebuild = strided ? DecodePhase::kDraftExtendStrided : DecodePhase::kDraftExtendCumsum;
  extend.inputs = PhaseInputs::kDraftExtend;
  extend.query_len = static_cast<std::int32_t>(config.draft_tokens);
  extend.q_mode = strided ? QueryMode::kStrided : QueryMode::kCumsum;
  extend.swa = config.draft_swa;
  extend.draft_model = true;
  extend.layers = static_cast<std::int32_t>(config.draft_layers);
  extend.runner.counted = extend.query_len;
  extend.runner.padded_accept = extend.query_len;
  return extend;
}

// SERVING engines at draft_steps / topk 1 / draft_tokens: draft_steps - 1 draft passes, then
// target-verify, then draft-extend, each after its own rebuild.
StepPlan eagle_plan(const CaseConfig& config) {
  StepPlan plan = empty_speculative_plan(config);
  append_draft_passes(config, plan);
  append_phase(verify_phase(config), plan);
  append_phase(draft_extend_phase(config), plan);
  return plan;
}

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

std::vector<int> phases_ready_at_begin(const StepPlan& plan) {
  std::vector<int> ready;
  for (int i = 0; i < static_cast<int>(plan.phases.size()); ++i) {
    if (!plan.phases[i].has_own_inputs()) ready.push_back(i);
  }
  return ready;
}

bool reads_in_forward(const CaseConfig& config) {
  if (metadata_path(config.path).in_graph) return true;
  const StepPlan plan = step_plan(config);
  return std::any_of(plan.phases.begin(), plan.phases.end(),
                     [](const PlannedPhase& phase) { return !phase.replays_hook; });
}

bool has_schedule_stream(const CaseConfig& config) { return config.read_done != "post_replay"; }

StepPlan step_plan(const CaseConfig& config) {
  if (config.mode == "speculative") return find_composition(config.composition).plan(config);
  StepPlan plan;
  PlannedPhase decode;
  decode.swa = config.swa;
  decode.layers = static_cast<std::int32_t>(config.layers);
  plan.phases.push_back(decode);
  return plan;
}

std::vector<std::int32_t> captured_batch_sizes(const CaseConfig& config) {
  std::vector<std::int32_t> sizes;
  for (const std::int64_t size : config.capture_batch_sizes) {
    sizes.push_back(static_cast<std::int32_t>(size));
  }
  if (sizes.empty()) sizes.push_back(static_cast<std::int32_t>(config.batch_size));
  std::sort(sizes.begin(), sizes.end());
  return sizes;
}

}  // namespace tpjitter
