// For a build of the whole program whose injected delay on the GPU ends in a GPU fault: the linker
// puts this launcher in place of kernels/delay.cu's (--wrap). The victim's first delay at or after
// kFaultStep stores to an address that no allocation has, as a wrong index in a kernel would; until
// then, and on every other rank, nothing differs.
#include <cuda_runtime.h>

#include "kernels/delay.h"

namespace {

constexpr std::int64_t kFaultStep = 60;  // of the case, warm-up included

__global__ void fault_kernel(const tpjitter::kernels::DelayArgs args) {
  const std::int64_t step = *args.step;
  if (step < kFaultStep || step >= args.steps || args.delays_ns[step] == 0) return;
  *reinterpret_cast<volatile std::int32_t*>(std::uintptr_t{64}) = 1;
}

}  // namespace

// The names that `--wrap` gives to tpjitter::kernels::launch_delay.
extern "C" int __real__ZN8tpjitter7kernels12launch_delayERKNS0_9DelayArgsEP11CUstream_st(
    const tpjitter::kernels::DelayArgs& args, CUstream_st* stream);
extern "C" int __wrap__ZN8tpjitter7kernels12launch_delayERKNS0_9DelayArgsEP11CUstream_st(
    const tpjitter::kernels::DelayArgs& args, CUstream_st* stream) {
  fault_kernel<<<1, 1, 0, stream>>>(args);
  if (const cudaError_t status = cudaGetLastError(); status != cudaSuccess) return status;
  return __real__ZN8tpjitter7kernels12launch_delayERKNS0_9DelayArgsEP11CUstream_st(args, stream);
}
