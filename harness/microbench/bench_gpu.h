// Whether a bench_* program has a GPU to run on. Without one it exits 77, as a skipped test.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdio>

namespace tpjitter {

// The number of GPUs; where it is 0, stderr says why.
inline int count_gpus(const char* program) {
  int gpus = 0;
  const cudaError_t status = cudaGetDeviceCount(&gpus);
  if (status == cudaSuccess && gpus > 0) return gpus;
  std::fprintf(stderr, "%s: no GPU (%s)\n", program,
               status != cudaSuccess ? cudaGetErrorString(status) : "no device is visible");
  return 0;
}

}  // namespace tpjitter
