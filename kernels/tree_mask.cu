// The mask of the draft trees.
// Source:   our own; stands for the engine's tree build, which writes the mask on the GPU as well.
// Inputs:   seq_lens int32 [live_rows]; the step.
// Outputs:  the last q bytes of each of a live request's q mask rows.
// Grid:     a block a request.
// Traffic:  q * q bytes written a request; the lengths of those before it read.
// Limits:   up to 64 draft tokens; positions in 64 bits; capturable; no host sync.
#include <cuda_runtime.h>

#include <cub/block/block_reduce.cuh>

#include "kernels/tree_mask.h"

namespace tpjitter::kernels {
namespace {

constexpr int kThreads = 128;

__global__ void __launch_bounds__(kThreads) tree_mask_kernel(const TreeMaskArgs args) {
  using Reduce = cub::BlockReduce<std::int64_t, kThreads>;
  __shared__ typename Reduce::TempStorage temporary;
  __shared__ std::int64_t begin;
  __shared__ std::uint64_t seen[kMaxTreeTokens];
  const auto request = static_cast<std::int32_t>(blockIdx.x);
  const auto thread = static_cast<std::int32_t>(threadIdx.x);
  const std::int32_t q = args.draft_tokens;
  std::int64_t bytes = 0;
  for (std::int32_t other = thread; other < request; other += kThreads) {
    bytes += (std::int64_t{args.seq_lens[other]} + q) * q;
  }
  bytes = Reduce(temporary).Sum(bytes);
  if (thread == 0) {
    begin = bytes;
    tree_rows(args.seed, *args.step, request, q, seen);
  }
  __syncthreads();
  const std::int64_t tokens = args.seq_lens[request];
  for (std::int32_t at = thread; at < q * q; at += kThreads) {
    const std::int64_t to = begin + at / q * (tokens + q) + tokens + at % q;
    if (to < args.mask_len) {
      args.custom_mask[to] = static_cast<std::uint8_t>(seen[at / q] >> (at % q) & 1);
    }
  }
}

}  // namespace

int launch_tree_mask(const TreeMaskArgs& args, CUstream_st* stream) {
  if (args.live_rows <= 0) return cudaSuccess;
  if (args.draft_tokens < 1 || args.draft_tokens > kMaxTreeTokens) return cudaErrorInvalidValue;
  tree_mask_kernel<<<static_cast<unsigned>(args.live_rows), kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace tpjitter::kernels
