// From the stamp ring to the rows of a block.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "harness/contract/phase_row.h"
#include "harness/cuda/cuda_case.h"

namespace tpjitter {

// Host copies of the ring, in step order. Kept between blocks: one allocation a case.
struct DrainedStamps {
  std::vector<kernels::GraphStamp> graphs;           // one a step
  std::vector<kernels::AllReduceStamp> all_reduces;  // [steps, per replay]
  std::int32_t per_replay = 0;
};

// Copies the entries of steps [first, end); the stream must be empty. At most ring_capacity steps.
void fetch_stamps(const CudaCase& c, std::int64_t first, std::int64_t end, DrainedStamps& stamps);

// Fills the device fields of the rows, which belong to the last rows.size() steps. `bracketed`: the
// all-reduces cannot stamp themselves; only the first is bracketed and none has a wait.
void fill_device_fields(const DrainedStamps& stamps, int rank, int world_size, bool bracketed,
                        std::span<PhaseRow> rows);

// Latest peer's flag of one all-reduce; peer -1: there are no peers.
struct LastSeen {
  std::int64_t seen_ns = 0;
  std::int32_t peer = -1;
};
LastSeen last_seen(const kernels::AllReduceStamp& stamp, int rank, int world_size);

}  // namespace tpjitter
