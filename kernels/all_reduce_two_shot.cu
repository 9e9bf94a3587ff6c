// Two-shot all-reduce: each rank sums its part of all inputs into its staging buffer
// (reduce-scatter), then everybody reads the parts of the others (all-gather).
// Source:   the two-stage kernels of vLLM (csrc/custom_all_reduce.cuh) and SGLang v1.
// Inputs:   the ranks' inputs of this parity; flags and epochs as for pull, two epochs a call.
// Outputs:  output [bytes / 2] bf16 = sum in rank order, the bits of one-shot.
// Grid:     shares out one rank's part. A block reads back only what the blocks of its index wrote,
//           so the barriers are between blocks of one index, not of whole grids.
// Traffic:  2 * bytes read instead of one-shot's ranks * bytes.
// Limits:   as pull. Parts are ceil(packs / ranks) packs; the last ones are shorter or empty.
//
// Why one staging buffer is enough: it is written again only behind the start barrier of a later
// two-shot call, and a peer passes its flag for that only after its reads of this one.
#include "kernels/all_reduce.cuh"

namespace tpjitter::kernels {
namespace {

struct Part {
  std::int64_t first, count;
};

template <int kRanks>
__device__ __forceinline__ Part part_of(int rank, std::int64_t packs) {
  const std::int64_t size = (packs + kRanks - 1) / kRanks;
  const std::int64_t first = min(rank * size, packs);
  return {first, min(size, packs - first)};
}

template <int kRanks, bool kStamped>
__global__ void __launch_bounds__(kMaxAllReduceThreads)
    two_shot_kernel(const __grid_constant__ AllReduceArgs args) {
  begin_all_reduce(args.pdl);
  using Barrier = StartBarrier<kRanks, kStamped>;
  __shared__ typename Barrier::Shared shared;
  Barrier barrier(args, shared);
  if (!barrier.pass()) return;

  const std::int64_t packs = args.bytes / 16;
  const std::size_t offset =
      args.arena.kInputs + 2 * static_cast<std::size_t>(args.arena.max_bytes);
  auto* output = static_cast<uint4*>(args.output);
  const Part own = part_of<kRanks>(args.rank, packs);
  uint4* staging = packs_at(args.arenas[args.rank], offset);
  reduce_inputs<kRanks>(args, own.first, own.count, [&](std::int64_t i, const uint4& sum) {
    staging[i] = sum;
    output[own.first + i] = sum;
  });

  if (!barrier.pass_again()) return;
  barrier.keep_epoch();
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       i < part_of<kRanks>(0, packs).count; i += stride) {
    uint4 values[kRanks];
#pragma unroll
    for (int p = 0; p < kRanks; ++p) {
      if (p != args.rank && i < part_of<kRanks>(p, packs).count) {
        values[p] = packs_at(args.arenas[p], offset)[i];
      }
    }
#pragma unroll
    for (int p = 0; p < kRanks; ++p) {
      const Part part = part_of<kRanks>(p, packs);
      if (p != args.rank && i < part.count) output[part.first + i] = values[p];
    }
  }
  if constexpr (kStamped) barrier.stamp();
}

struct TwoShot {
  using Args = AllReduceArgs;
  static const Args& args(const AllReduceArgs& args) { return args; }
  static constexpr bool kWarpPerPeer = true;
  static constexpr AllReduceGrid kGrids[] = {{kMaxAllReduceBytes, 64, 256}};  // 4 x H200
  template <int kRanks, bool kStamped>
  static constexpr auto kernel() {
    return two_shot_kernel<kRanks, kStamped>;
  }
};

}  // namespace

int launch_two_shot(const AllReduceArgs& args, CUstream_st* stream) {
  const std::int64_t ranks = args.arena.world_size > 0 ? args.arena.world_size : 1;
  return launch_all_reduce<TwoShot>(args, (args.bytes / 16 + ranks - 1) / ranks, stream);
}

}  // namespace tpjitter::kernels
