// A step's inputs as the runner of one phase holds them, in host memory: sized for the largest
// captured batch, padded by the runner's own rules, at addresses that stay. What the checker and
// the host backend rebuild metadata from.
#pragma once

#include <cstdint>
#include <vector>

#include "harness/leaf_tables.h"
#include "harness/serving_state.h"
#include "harness/step_plan.h"

namespace tpjitter {

// The pool row that a runner which does not reset its padded rows finds there: of an earlier batch,
// and a row that exists, for its first token is read.
inline constexpr std::int64_t kStalePoolRow = 1;

class RunnerInputs {
 public:
  RunnerInputs(const ServingShape& shape, const PlannedPhase& phase);

  // Takes over a step's live rows. Padded rows stay as they are.
  void set(const StepInputs& inputs);

  // The same, as rebuilds read it, with the scheduler's tables in `state`.
  PhaseArrays arrays(const ServingState& state) const;
  const std::int32_t* accept_lens() const { return accept_lens_.data(); }  // draft-extend only

 private:
  std::int32_t live_rows_, batch_size_;
  PlannedPhase phase_;
  std::vector<std::int64_t> req_pool_indices_, out_cache_loc_, seq_lens_cpu_;
  std::vector<std::int32_t> seq_lens_, accept_lens_;
  std::vector<std::int64_t> tree_cache_loc_;  // draft passes of trees
  std::vector<std::uint8_t> custom_mask_;     // target-verify of trees
  std::uint64_t seed_;
};

}  // namespace tpjitter
