// From the stamp ring to the rows of a block.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "harness/contract/phase_row.h"
#include "harness/cuda/cuda_case.h"

namespace tpjitter {

// Host copies of the ring, in replay order. Kept between blocks: one allocation a case.
struct DrainedStamps {
  std::vector<kernels::GraphStamp> graphs;           // [steps, graphs of a step]
  std::vector<kernels::AllReduceStamp> all_reduces;  // [steps, graphs of a step, per_replay]
  std::int32_t per_replay = 0;                       // room; a graph may have fewer
};

// Copies the entries of steps [first, end); the stream must be empty. At most a ring of them.
void fetch_stamps(const CudaCase& c, std::int64_t first, std::int64_t end, DrainedStamps& stamps);

// Fills the device fields of the rows, which belong to the last steps, whole ones. A row that
// launches nothing gets none. nccl's all-reduces cannot stamp themselves: only the first of a
// graph is bracketed and none has a wait.
void fill_device_fields(const CudaCase& c, const DrainedStamps& stamps, int rank,
                        std::span<PhaseRow> rows);

// Latest peer's flag of one all-reduce; peer -1: there are no peers.
struct LastSeen {
  std::int64_t seen_ns = 0;
  std::int32_t peer = -1;
};
LastSeen last_seen(const kernels::AllReduceStamp& stamp, int rank, int world_size);

}  // namespace tpjitter
