// The two controls of a launch: what an empty graph launch costs the host, and what an all-reduce
// costs when all ranks arrive together.
#pragma once

#include "harness/backend.h"
#include "harness/cuda/communicator.h"

namespace tpjitter {

// Collective.
RunControl measure_controls(const RankContext& context, Communicator& communicator,
                            const CaseConfig& config, cudaStream_t stream);

}  // namespace tpjitter
