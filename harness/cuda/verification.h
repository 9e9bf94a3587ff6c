// Are the paths right? Before timing: every path's tables equal the reference's, on the case's
// first inputs. After each block: every step's checksum is the one that the reference gives.
#pragma once

#include <cstdint>
#include <span>

#include "harness/backend.h"
#include "harness/cuda/cuda_case.h"
#include "harness/cuda/cuda_device.h"
#include "harness/metadata_buffers.h"

namespace tpjitter {

// Runs aten, fused and fused_in_graph over step 0's staged inputs.
CaseChecks check_paths(const RankContext& context, CudaCase& c, CudaDevice& device,
                       cudaStream_t stream);

// Follows the run with a ServingState of its own, step by step.
class StepChecker {
 public:
  StepChecker(const RankContext& context, const CaseConfig& config);

  // The next steps' checksums as the GPU gave them. `rows`: of the last rows.size() steps, flagged
  // where wrong.
  CaseChecks check(std::span<const kernels::GraphStamp> steps, std::span<PhaseRow> rows);
  std::int64_t steps_checked() const { return step_; }

 private:
  const RankContext& context_;
  ServingState state_;
  MetadataBuffers expected_;
  kernels::DecodeBodyShape body_;
  std::int64_t step_ = 0;
};

}  // namespace tpjitter
