// Builds page_table and swa_page_table from lengths that only the device knows.
// Replaces: max().item(), index, floor_divide and copy_ of the op-by-op path, twice with SWA.
// Source:   SGLang, trtllm_mha_page_table.py, create_trtllm_mha_kv_indices_triton (Triton). Differs:
//           negative slots are guarded (there the mapping is read out of bounds), strides and page
//           size are runtime values (there constexpr: a new stride compiles again), each table has
//           its own stride, a page may be larger than 4096 tokens, and a block covers 256 to 1024
//           pages (there 4096 tokens).
// Inputs:   cache_seqlens int32, req_pool_indices int32 or int64 [batch_size]; req_to_token
//           [pool, req_to_token_stride] int32; full_to_swa int64.
// Outputs:  live columns of page_table and swa_page_table, int32; nothing past them.
// Grid:     x = row, y = parts of a row up to the static bound, of 256, 512 or 1024 pages: the
//           smallest at which all blocks are resident at once, if any is. A part past the row's
//           length exits after two loads.
// Traffic:  live pages * (4 read + 4 written), with SWA live pages * (8 read + 4 written) more; 8 to
//           12 bytes a block.
// Limits:   any batch size; to 64 M pages a row; capturable; no host sync.
#include <cuda_runtime.h>

#include <bit>
#include <cstdint>

#include "kernels/metadata_page_table.h"
#include "kernels/metadata_pages.cuh"

namespace tpjitter::kernels {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kResidentBlocks = 1056;  // of 256 threads, on an H200
constexpr std::int64_t kMaxGridY = 65535;

// Pages of the row to write: its own, at most the static bound.
__device__ std::int32_t live_pages(const PageTableArgs& args, std::int64_t row,
                                   std::int32_t page_shift) {
  const std::int64_t tokens = max(__ldg(args.cache_seqlens + row), 0);
  const std::int64_t pages = (tokens + args.page_size - 1) >> page_shift;
  return pages < args.max_seq_pages ? static_cast<std::int32_t>(pages) : args.max_seq_pages;
}

template <bool kHasSwa, int kPagesPerThread>
__global__ void __launch_bounds__(kThreads)
    page_table_kernel(const __grid_constant__ PageTableArgs args, std::int32_t page_shift) {
  const std::int64_t row = blockIdx.x;
  const std::int32_t part = static_cast<std::int32_t>(blockIdx.y) * (kThreads * kPagesPerThread);
  // Both loads are in flight together: the guard makes the chain no longer.
  const std::int64_t pool_row = load_int(args.req_pool_indices, args.req_pool_indices_type, row);
  const std::int32_t columns = live_pages(args, row, page_shift);
  if (part >= columns) return;  // the whole block lies past this row's length

  const std::int32_t first = part + static_cast<std::int32_t>(threadIdx.x);
  const int* __restrict__ slots = args.req_to_token + pool_row * args.req_to_token_stride;
  std::int32_t slot[kPagesPerThread];
#pragma unroll
  for (int j = 0; j < kPagesPerThread; ++j) {
    const std::int32_t column = first + j * kThreads;
    slot[j] = -1;
    if (column < columns) slot[j] = __ldg(slots + (std::int64_t{column} << page_shift));
  }
  std::int64_t swa_slot[kPagesPerThread];
  if (kHasSwa) {
#pragma unroll
    for (int j = 0; j < kPagesPerThread; ++j) {
      swa_slot[j] = -1;
      if (slot[j] >= 0) swa_slot[j] = __ldg(args.full_to_swa + slot[j]);
    }
  }
#pragma unroll
  for (int j = 0; j < kPagesPerThread; ++j) {
    const std::int32_t column = first + j * kThreads;
    if (column >= columns) continue;  // past the row's live pages
    args.page_table[row * args.page_table_stride + column] = page_of(slot[j], page_shift);
    if (kHasSwa) {
      args.swa_page_table[row * args.swa_page_table_stride + column] =
          swa_page_of(swa_slot[j], page_shift);
    }
  }
}

template <bool kHasSwa>
void launch(const PageTableArgs& args, dim3 grid, std::int32_t pages_per_thread,
            cudaStream_t stream) {
  const int page_shift = std::countr_zero(static_cast<std::uint32_t>(args.page_size));
  switch (pages_per_thread) {
    case 1:
      page_table_kernel<kHasSwa, 1><<<grid, kThreads, 0, stream>>>(args, page_shift);
      break;
    case 2:
      page_table_kernel<kHasSwa, 2><<<grid, kThreads, 0, stream>>>(args, page_shift);
      break;
    default:
      page_table_kernel<kHasSwa, 4><<<grid, kThreads, 0, stream>>>(args, page_shift);
  }
}

}  // namespace

int launch_page_table(const PageTableArgs& args, CUstream_st* stream) {
  if (args.batch_size == 0 || args.max_seq_pages == 0) return cudaSuccess;
  if (!is_valid(args)) return cudaErrorInvalidValue;
  std::int32_t pages_per_thread = 1;
  const auto parts = [&] {
    const std::int64_t pages = std::int64_t{kThreads} * pages_per_thread;
    return (args.max_seq_pages + pages - 1) / pages;
  };
  while (pages_per_thread < 4 && parts() * args.batch_size > kResidentBlocks) pages_per_thread *= 2;
  if (parts() > kMaxGridY) return cudaErrorInvalidValue;
  const dim3 grid(static_cast<unsigned>(args.batch_size), static_cast<unsigned>(parts()));
  if (args.swa_page_table != nullptr) {
    launch<true>(args, grid, pages_per_thread, stream);
  } else {
    launch<false>(args, grid, pages_per_thread, stream);
  }
  return cudaGetLastError();
}

}  // namespace tpjitter::kernels
