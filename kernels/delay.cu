// Stamps the begin of a graph, then occupies the stream for the delay of the current step.
// Grid: one thread. Traffic: three loads, before the stamp, and one 8-byte store.
// Limits: capturable; no host sync; ends early when the communicator is aborted, at the deadline at
// the latest.
#include <cuda_runtime.h>

#include "kernels/delay.h"
#include "kernels/spin.cuh"

namespace tpjitter::kernels {
namespace {

__global__ void delay_kernel(const DelayArgs args) {
  if (aborted(args.guard)) return;
  const std::int64_t step = *args.step;
  const std::int64_t delay_ns = step >= 0 && step < args.steps ? args.delays_ns[step] : 0;
  const std::int64_t entry = args.ring.graphs != nullptr ? *args.ring.entry : 0;
  const std::int64_t begin_ns = globaltimer_ns();
  if (args.ring.graphs != nullptr) args.ring.graphs[entry].begin_ns = begin_ns;
  const std::int64_t limit_ns = min(kDelayBaseNs + delay_ns, args.guard.deadline_ns);
  for (std::uint32_t spins = 1; globaltimer_ns() - begin_ns < limit_ns; ++spins) {
    if (spins % kSpinsPerCheck == 0 && aborted(args.guard)) return;
  }
}

}  // namespace

int launch_delay(const DelayArgs& args, CUstream_st* stream) {
  delay_kernel<<<1, 1, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace tpjitter::kernels
