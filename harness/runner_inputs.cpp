#include "harness/runner_inputs.h"

#include <algorithm>

#include "kernels/tree_mask.h"

namespace tpjitter {

RunnerInputs::RunnerInputs(const ServingShape& shape, const PlannedPhase& phase)
    : live_rows_(shape.live_batch),
      batch_size_(shape.batch_size),
      phase_(phase),
      seed_(shape.seed) {
  const auto rows = static_cast<std::size_t>(shape.max_batch);
  const bool stale = phase.has_own_inputs() && phase.runner.stale_padded_rows;
  req_pool_indices_.assign(rows, stale ? kStalePoolRow : 0);
  // A length of 0 would give a padded row no page at all, which attention kernels do not accept.
  seq_lens_cpu_.assign(rows, 1);
  seq_lens_.assign(rows, 1);
  if (phase.inputs == PhaseInputs::kDraftExtend) {
    accept_lens_.assign(rows, phase.runner.padded_accept);
  }
  if (phase.writes_slots())
    out_cache_loc_.assign(rows * static_cast<std::size_t>(phase.query_len), 0);
  if (shape.topk == 1) return;
  if (phase.inputs == PhaseInputs::kDraft) {
    tree_cache_loc_.assign(rows * static_cast<std::size_t>(shape.topk * shape.draft_steps), 0);
  }
  if (phase.inputs == PhaseInputs::kVerify) {
    custom_mask_.assign(static_cast<std::size_t>(shape.custom_mask_bytes()), 1);
  }
}

void RunnerInputs::set(const StepInputs& inputs) {
  const std::int64_t live = live_rows_;
  std::copy_n(inputs.req_pool_indices.begin(), live, req_pool_indices_.begin());
  for (std::int64_t i = 0; i < live; ++i) {
    seq_lens_[i] = inputs.seq_lens[i] + phase_.runner.counted;
    seq_lens_cpu_[i] = seq_lens_[i];
  }
  if (!accept_lens_.empty()) std::copy_n(inputs.accept_lens.begin(), live, accept_lens_.begin());
  if (!phase_.writes_slots()) return;
  const std::int64_t* slots = inputs.out_cache_loc.data();
  if (phase_.inputs == PhaseInputs::kDraft) {
    slots = inputs.draft_cache_loc.data() +
            std::int64_t{batch_size_} * phase_.query_len * phase_.draft_pass;
  }
  if (!tree_cache_loc_.empty()) {
    const auto a_row = static_cast<std::int64_t>(inputs.tree_cache_loc.size()) / batch_size_;
    std::copy_n(inputs.tree_cache_loc.begin(), live * a_row, tree_cache_loc_.begin());
  }
  if (!custom_mask_.empty()) {
    kernels::TreeMaskArgs mask;
    mask.seq_lens = seq_lens_.data();
    mask.step = &inputs.step;
    mask.custom_mask = custom_mask_.data();
    mask.mask_len = static_cast<std::int64_t>(custom_mask_.size());
    mask.seed = seed_;
    mask.live_rows = live_rows_;
    mask.draft_tokens = phase_.query_len;
    kernels::reference_tree_mask(mask);
  }
  std::copy_n(slots, live * phase_.query_len, out_cache_loc_.begin());
}

PhaseArrays RunnerInputs::arrays(const ServingState& state) const {
  PhaseArrays arrays;
  arrays.req_pool_indices = req_pool_indices_.data();
  if (phase_.has_own_inputs()) arrays.seq_lens_type = phase_.runner.seq_lens_type;
  const bool wide = arrays.seq_lens_type == kernels::IntType::kInt64;
  arrays.seq_lens = wide ? static_cast<const void*>(seq_lens_cpu_.data()) : seq_lens_.data();
  if (!accept_lens_.empty()) arrays.accept_lens = accept_lens_.data();
  if (!out_cache_loc_.empty()) arrays.out_cache_loc = out_cache_loc_.data();
  arrays.req_to_token = state.req_to_token().data();
  arrays.full_to_swa = state.full_to_swa().data();
  arrays.full_to_swa_len = static_cast<std::int64_t>(state.full_to_swa().size());
  arrays.seq_lens_cpu = seq_lens_cpu_.data();
  if (!tree_cache_loc_.empty()) arrays.tree_cache_loc = tree_cache_loc_.data();
  if (!custom_mask_.empty()) arrays.custom_mask = custom_mask_.data();
  arrays.custom_mask_len = static_cast<std::int64_t>(custom_mask_.size());
  return arrays;
}

}  // namespace tpjitter
