// Are the paths right? Before timing: every path's tables of every phase equal the reference's, on
// the case's first inputs. After each block: every graph's checksum is the one that the reference
// gives.
#pragma once

#include <cstdint>
#include <span>

#include "harness/backend.h"
#include "harness/cuda/cuda_case.h"
#include "harness/cuda/cuda_device.h"
#include "harness/expected_graphs.h"

namespace tpjitter {

// Runs every path over step 0's staged inputs.
CaseChecks check_paths(const RankContext& context, CudaCase& c, CudaDevice& device,
                       cudaStream_t stream);

// Follows the run with a ServingState of its own, step by step.
class StepChecker {
 public:
  StepChecker(const RankContext& context, const CaseConfig& config);

  // The next steps' graphs as the GPU stamped them. `rows`: of the last steps, whole ones; the row
  // that launched a wrong graph is flagged.
  CaseChecks check(std::span<const kernels::GraphStamp> graphs, std::span<PhaseRow> rows);
  std::int64_t steps_checked() const { return step_; }

 private:
  const RankContext& context_;
  ExpectedGraphs expected_;
  std::int64_t step_ = 0;
};

}  // namespace tpjitter
