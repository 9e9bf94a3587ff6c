// Host memory for the metadata of one phase of a step: the arguments of its rebuild over a
// ServingState, with outputs of the captured shape. What the checker and the host backend compute
// into.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "harness/contract/scenario.h"
#include "harness/serving_state.h"
#include "harness/step_plan.h"
#include "kernels/decode_body.h"
#include "kernels/decode_metadata.h"

namespace tpjitter {

// Shape of the all-reduces of the graph that holds `phase`.
kernels::DecodeBodyShape body_shape(const CaseConfig& config, const PlannedPhase& phase,
                                    int world_size);

class MetadataBuffers {
 public:
  MetadataBuffers(const ServingShape& shape, const PlannedPhase& phase,
                  kernels::PageColumns columns);

  // Arguments over the state's current inputs; pointers into this object and the state. Lengths
  // that only this phase reads are computed here.
  kernels::DecodeMetadataArgs args(const ServingState& state, const StepInputs& inputs);
  void poison();  // outputs get a value no path writes

  const PlannedPhase& phase() const { return phase_; }

  // Describes the first promised value in which the two differ; empty when none does.
  // Live columns only: the rest may differ between paths.
  static std::string difference(const kernels::DecodeMetadataArgs& got,
                                const kernels::DecodeMetadataArgs& expected);

 private:
  ServingShape shape_;
  PlannedPhase phase_;
  kernels::PageColumns columns_;
  std::vector<std::int64_t> extend_seq_lens_;  // draft-extend: seq_lens + query_len
  std::vector<std::int32_t> cache_seqlens_, cu_seqlens_k_, cu_seqlens_q_, page_table_,
      swa_page_table_;
  std::vector<std::int64_t> swa_out_cache_loc_;
};

}  // namespace tpjitter
