// Reads and writes what the fused metadata kernel does, without sums, divisions and sign rules.
// Inputs:   as metadata_fused.cu. req_pool_indices int32 or int64, slots not negative.
// Outputs:  page_table = slot; swa_page_table = mapping[slot]; lengths copied to cache_seqlens and
//           both cu_seqlens; swa_out_cache_loc = mapping[location], 0 past the live prefix.
// Grid:     that of the fused kernel, so that only the work differs.
// Traffic:  that of the fused kernel.
#include <cuda_runtime.h>

#include <bit>
#include <cstdint>

#include "kernels/metadata_floor.h"
#include "kernels/metadata_grid.h"
#include "kernels/metadata_pages.cuh"

namespace tpjitter::kernels {
namespace {

__device__ void copy_lengths(const DecodeMetadataArgs& args) {
  for (std::int64_t i = threadIdx.x; i < args.batch_size; i += kMetadataThreads) {
    const auto tokens = static_cast<std::int32_t>(load_int(args.seq_lens, args.seq_lens_type, i));
    args.cache_seqlens[i] = tokens;
    args.cu_seqlens_k[i + 1] = tokens;
    if (args.q_mode == QueryMode::kCumsum) {
      args.cu_seqlens_q[i + 1] =
          static_cast<std::int32_t>(load_int(args.q_lens, args.q_lens_type, i));
    } else if (args.q_mode == QueryMode::kStrided) {
      args.cu_seqlens_q[i + 1] = args.q_stride;
    }
  }
}

__device__ void gather_swa_out(const DecodeMetadataArgs& args, std::int64_t unit) {
  const std::int64_t i = unit * kMetadataThreads + threadIdx.x;
  if (i >= args.swa_out_len) return;
  std::int64_t slot = 0;
  if (i < args.num_out_tokens && args.out_cache_loc != nullptr) {
    slot = __ldg(args.out_cache_loc + i);
    if (slot >= 0) slot = __ldg(args.full_to_swa + slot);  // -1: nothing to look up
  }
  args.swa_out_cache_loc[i] = slot;
}

template <bool kHasSwa, bool kLive, int kPagesPerThread>
__global__ void __launch_bounds__(kMetadataThreads, 8)
    metadata_floor_kernel(const __grid_constant__ DecodeMetadataArgs args, int extra_columns,
                          int page_shift) {
  if (static_cast<int>(blockIdx.x) < extra_columns) {
    const std::int64_t unit = std::int64_t{blockIdx.x} * gridDim.y + blockIdx.y;
    if (unit == 0) {
      copy_lengths(args);
    } else if (args.swa_out_cache_loc != nullptr) {
      gather_swa_out(args, unit - 1);
    }
    return;
  }
  const std::int64_t row = blockIdx.x - extra_columns;
  const int first =
      static_cast<int>(blockIdx.y * (kMetadataThreads * kPagesPerThread) + threadIdx.x);
  const std::int64_t pool_row = load_int(args.req_pool_indices, args.req_pool_indices_type, row);
  std::int64_t columns = args.max_seq_pages;
  if (kLive) {
    const std::int64_t tokens = load_int(args.seq_lens, args.seq_lens_type, row);
    columns = min(columns, (tokens + args.seqlen_offset + args.page_size - 1) >> page_shift);
  }
  const std::int32_t* __restrict__ slots = args.req_to_token + pool_row * args.req_to_token_stride;
  std::int32_t slot[kPagesPerThread];
#pragma unroll
  for (int j = 0; j < kPagesPerThread; ++j) {
    const int column = first + j * kMetadataThreads;
    slot[j] = column < columns ? __ldg(slots + (std::int64_t{column} << page_shift)) : 0;
  }
  std::int64_t swa_slot[kPagesPerThread];
#pragma unroll
  for (int j = 0; kHasSwa && j < kPagesPerThread; ++j) {
    if (first + j * kMetadataThreads < columns) swa_slot[j] = __ldg(args.full_to_swa + slot[j]);
  }
#pragma unroll
  for (int j = 0; j < kPagesPerThread; ++j) {
    const int column = first + j * kMetadataThreads;
    if (column >= columns) continue;
    args.page_table[row * args.page_table_stride + column] = slot[j];
    if (kHasSwa) {
      args.swa_page_table[row * args.swa_page_table_stride + column] =
          static_cast<std::int32_t>(swa_slot[j]);
    }
  }
}

template <bool kHasSwa, bool kLive>
void launch(const DecodeMetadataArgs& args, cudaStream_t stream) {
  const MetadataGrid grid = metadata_grid(args);
  const int page_shift = std::countr_zero(static_cast<std::uint32_t>(args.page_size));
  const dim3 blocks(grid.x, grid.y);
  switch (grid.pages_per_thread) {
    case 1:
      metadata_floor_kernel<kHasSwa, kLive, 1>
          <<<blocks, kMetadataThreads, 0, stream>>>(args, grid.extra_columns, page_shift);
      break;
    case 2:
      metadata_floor_kernel<kHasSwa, kLive, 2>
          <<<blocks, kMetadataThreads, 0, stream>>>(args, grid.extra_columns, page_shift);
      break;
    default:
      metadata_floor_kernel<kHasSwa, kLive, 4>
          <<<blocks, kMetadataThreads, 0, stream>>>(args, grid.extra_columns, page_shift);
  }
}

}  // namespace

int launch_metadata_floor(const DecodeMetadataArgs& args, CUstream_st* stream) {
  if (args.batch_size == 0) return cudaSuccess;
  const bool live = args.page_columns == PageColumns::kLive;
  if (args.swa_page_table != nullptr) {
    live ? launch<true, true>(args, stream) : launch<true, false>(args, stream);
  } else {
    live ? launch<false, true>(args, stream) : launch<false, false>(args, stream);
  }
  return cudaGetLastError();
}

}  // namespace tpjitter::kernels
