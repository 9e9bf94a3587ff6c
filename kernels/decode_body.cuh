// What the kernels of the decode body share: the start under programmatic launch, the checksum, the
// all-reduce values, and the launch itself. Its callers' files are decode_body.cu and
// decode_body_attention.cu.
//
// Programmatic dependent launch (args.pdl): every kernel begins with the wait for the whole end of
// its predecessor, then lets its own successor start. Since each of them waits, the end of one
// implies the end of everything before it; a kernel with the attribute and no wait would break
// that. All-reduces do the same (push lets its successor start behind its stores), NCCL's do not. The
// fused metadata kernel lets its consumer start too. An edge from another metadata kernel or a fill
// into one of these kernels is programmatic in the captured graph as well, but its producer never
// triggers: it starts the consumer at its end, as a full edge does. A fill ahead of an attention
// thus takes a pair that overlaps out of the chain.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "kernels/decode_body.h"
#include "kernels/spin.cuh"

namespace tpjitter::kernels {

inline constexpr int kBodyThreads = 256;
inline constexpr std::int64_t kMaxBodyBlocks =
    128;  // fewer than the SMs of every GPU that we build for

__device__ __forceinline__ void begin_kernel(bool pdl) {
  if (!pdl) return;
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
}

// Sum over the block; the result is valid in thread 0.
__device__ __forceinline__ std::uint64_t block_sum(std::uint64_t value) {
  __shared__ std::uint64_t warp_sums[kBodyThreads / 32];
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    value += __shfl_down_sync(0xffffffffu, value, offset);
  }
  if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int warp = 1; warp < kBodyThreads / 32; ++warp) value += warp_sums[warp];
  }
  return value;
}

__device__ __forceinline__ void add_to_checksum(DecodeBodyState* state, std::uint64_t value) {
  value = block_sum(value);
  if (threadIdx.x == 0) atomicAdd(reinterpret_cast<unsigned long long*>(&state->checksum), value);
}

__device__ __forceinline__ std::int64_t first_element() {
  return static_cast<std::int64_t>(blockIdx.x) * kBodyThreads + threadIdx.x;
}
__device__ __forceinline__ std::int64_t element_stride() {
  return static_cast<std::int64_t>(gridDim.x) * kBodyThreads;
}

// Two bf16 integers in a word. A bf16 is the upper half of an fp32.
__device__ __forceinline__ std::uint64_t sum_of_word(std::uint32_t word) {
  return static_cast<std::uint64_t>(static_cast<std::int64_t>(__uint_as_float(word << 16)) +
                                    static_cast<std::int64_t>(__uint_as_float(word & 0xffff0000u)));
}

// This thread's part of the sum of all-reduce `ordinal`'s output, weighted.
__device__ inline std::uint64_t fold_reduced(const DecodeBodyCommon& args, int ordinal) {
  std::uint64_t sum = 0;
  const std::int64_t packs = args.shape.all_reduce_elements / 8;
  for (std::int64_t i = first_element(); i < packs; i += element_stride()) {
    const uint4 pack = static_cast<const uint4*>(args.reduced)[i];
    sum += sum_of_word(pack.x) + sum_of_word(pack.y) + sum_of_word(pack.z) + sum_of_word(pack.w);
  }
  return fold_weight(static_cast<std::uint64_t>(ordinal)) * sum;
}

__device__ inline std::uint32_t bf16_pair(std::int32_t low, std::int32_t high) {
  const __nv_bfloat162 pair =
      __floats2bfloat162_rn(static_cast<float>(low), static_cast<float>(high));
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

// The values repeat every four elements: one pack serves all.
__device__ inline void write_all_reduce_input(const DecodeBodyCommon& args, int ordinal) {
  const std::int64_t step = args.state->step;
  std::int32_t value[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) value[i] = all_reduce_value(args.rank, step, ordinal, i);
  const std::uint32_t low = bf16_pair(value[0], value[1]);
  const std::uint32_t high = bf16_pair(value[2], value[3]);
  auto* input = static_cast<uint4*>(args.inputs[ordinal % 2]);
  const std::int64_t packs = args.shape.all_reduce_elements / 8;
  for (std::int64_t i = first_element(); i < packs; i += element_stride()) {
    input[i] = {low, high, low, high};
  }
}

inline unsigned blocks_of(const DecodeBodyCommon& args) {
  const std::int64_t by_elements =
      (args.shape.all_reduce_elements / 8 + kBodyThreads - 1) / kBodyThreads;
  const std::int64_t wanted =
      by_elements > args.metadata.batch_size ? by_elements : std::int64_t{args.metadata.batch_size};
  return static_cast<unsigned>(wanted < 1 ? 1 : wanted > kMaxBodyBlocks ? kMaxBodyBlocks : wanted);
}

// The same launch with and without the attribute; `Args` as the kernel declares them.
template <typename... Args>
int launch_kernel(void (*kernel)(Args...), unsigned blocks, unsigned threads, bool pdl,
                  cudaStream_t stream, std::type_identity_t<Args>... args) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = threads;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = pdl ? 1 : 0;
  static_cast<void>(cudaLaunchKernelEx(&config, kernel, args...));
  return cudaGetLastError();
}

}  // namespace tpjitter::kernels
