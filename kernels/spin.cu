// Occupies a stream for a given time of the GPU's clock: an injected delay, a load stand-in.
// Grid: one thread; the clock does not depend on how much of the GPU is free.
// Limits: capturable; ends early when the communicator is aborted, at the deadline at the latest.
#include <cuda_runtime.h>

#include "kernels/spin.cuh"

namespace tpjitter::kernels {
namespace {

__global__ void spin_kernel(const SpinArgs args) {
  if (aborted(args.guard)) return;
  const std::int64_t begin_ns = globaltimer_ns();
  const std::int64_t limit_ns = min(args.duration_ns, args.guard.deadline_ns);
  for (std::uint32_t spins = 1; globaltimer_ns() - begin_ns < limit_ns; ++spins) {
    if (spins % kSpinsPerCheck == 0 && aborted(args.guard)) return;
  }
}

}  // namespace

int launch_spin(const SpinArgs& args, CUstream_st* stream) {
  spin_kernel<<<1, 1, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace tpjitter::kernels
