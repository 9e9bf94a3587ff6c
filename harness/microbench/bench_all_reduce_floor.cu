// The floor of an all-reduce: each rank writes its input to every peer and to its output, and waits
// for nobody.
// Inputs:   this rank's input of this parity. Outputs: `output`, and the peers' staging buffers,
//           which two_shot writes anew before it reads them.
// Grid:     one pack of 16 bytes a thread, as one_shot_push.
// Traffic:  bytes read, bytes written, (ranks - 1) * bytes sent and received.
#include <cuda_runtime.h>

#include <algorithm>

#include "harness/microbench/bench_all_reduce_ranks.h"

namespace tpjitter::bench {
namespace {

__global__ void floor_kernel(const uint4* input, uint4* output, std::size_t staging,
                             const __grid_constant__ kernels::AllReduceArgs args) {
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       i < args.bytes / 16; i += stride) {
    const uint4 pack = input[i];
    for (int p = 0; p < args.arena.world_size; ++p) {
      if (p == args.rank) continue;
      reinterpret_cast<uint4*>(args.arenas[p] + staging)[i] = pack;
    }
    output[i] = pack;
  }
}

}  // namespace

int launch_all_reduce_floor(const kernels::AllReduceArgs& args, CUstream_st* stream) {
  const std::int64_t packs = args.bytes / 16;
  const int threads = packs <= 8192 ? 64 : 512;
  const std::int64_t blocks =
      std::min((packs + threads - 1) / threads, std::int64_t{args.max_blocks});
  const auto* input =
      reinterpret_cast<const uint4*>(args.arenas[args.rank] + args.arena.input(args.ordinal));
  floor_kernel<<<static_cast<unsigned>(blocks), static_cast<unsigned>(threads), 0, stream>>>(
      input, static_cast<uint4*>(args.output), args.arena.staging(), args);
  return cudaGetLastError();
}

}  // namespace tpjitter::bench
