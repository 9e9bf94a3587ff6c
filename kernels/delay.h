// An injected delay as a node of a graph. The node is always there: who is delayed in which step
// stands in a table on the GPU, so that a replayed graph needs no new arguments and the graphs of
// all ranks are alike. It also marks the graph's begin, behind a gate where the ranks have met:
// what a rank takes longer than the others from there to its all-reduce is the delay it really had.
#pragma once

#include <cstdint>

#include "kernels/spin.h"
#include "kernels/stamps.h"

namespace tpjitter::kernels {

// Every rank waits this long in every step, and the delayed one that much longer. Behind a kernel
// that lasts, the GPU has the next ones ready; behind one that ends at once it has not: without this
// a delay would be up to 0.3 us shorter than asked for (two H200, 2026-11).
inline constexpr std::int64_t kDelayBaseNs = 5'000;

struct DelayArgs {
  const std::int32_t* delays_ns = nullptr;  // [steps], device: of this rank, 0 where it has none
  std::int64_t steps = 0;
  const std::int64_t* step = nullptr;  // device, the batch's; beyond the table: no delay
  StampRing ring;                      // begin_ns of the replay; without graphs: no stamp
  SpinGuard guard;                     // a delay ends at the deadline at the latest
};

// Returns cudaError_t.
int launch_delay(const DelayArgs& args, CUstream_st* stream);

}  // namespace tpjitter::kernels
