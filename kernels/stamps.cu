// Stamp nodes: the begin of a graph whose first kernel is not ours, and the brackets of NCCL.
// Grid: one thread. Traffic: one load (the ring entry) and one 8-byte store.
// Limits: capturable; no host sync.
#include <cuda_runtime.h>

#include "kernels/spin.cuh"
#include "kernels/stamps.h"

namespace tpjitter::kernels {
namespace {

__global__ void stamp_kernel(const StampArgs args) {
  const std::int64_t t = globaltimer_ns();
  const std::int64_t entry = *args.ring.entry;
  if (args.point == StampPoint::kGraphBegin) {
    args.ring.graphs[entry].begin_ns = t;
    return;
  }
  AllReduceStamp& stamp =
      args.ring.all_reduces[entry * args.ring.all_reduces_per_replay + args.ordinal];
  (args.point == StampPoint::kAllReduceBegin ? stamp.own_ns : stamp.end_ns) = t;
}

}  // namespace

int launch_stamp(const StampArgs& args, CUstream_st* stream) {
  stamp_kernel<<<1, 1, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace tpjitter::kernels
