// Both metadata objects of tree drafting (topk > 1) in one launch.
// Replaces: about 10 operations of a draft step, about 30 of target-verify (metadata_topk_ops.cpp),
//           the sort, the gathers of whole request rows and the host's maximum among them.
// Source:   SGLang's FlashAttention backend, whose operations these are; the kernel is our own.
// Inputs:   seq_lens, req_pool_indices int32 or int64 [bs]; req_to_token int32; out_cache_loc int64
//           or custom_mask uint8.
// Outputs:  both tables' cache_seqlens, cu_seqlens_k[1:] and page_table, int32.
// Grid:     x = 0: prefix sums, one block; then a column of blocks a request: y = parts of its
//           prefix's pages, and the first part also its expand rows.
// Traffic:  live pages * (4 read + 4 written); expand entries * (5 to 8 read + 4 written), the mask
//           twice.
// Limits:   any batch size, 64 draft tokens; positions in 64 bits; capturable; no host sync.
#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>

#include "kernels/metadata_pages.cuh"
#include "kernels/metadata_topk.h"

namespace tpjitter::kernels {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kResidentBlocks = 1056;  // of 256 threads, on an H200
using Scan32 = cub::BlockScan<std::int32_t, kThreads>;
using Scan64 = cub::BlockScan<std::int64_t, kThreads>;
using Reduce64 = cub::BlockReduce<std::int64_t, kThreads>;

template <class Args>
__device__ std::int64_t tokens_of(const Args& args, std::int64_t request) {
  return load_int(args.seq_lens, args.seq_lens_type, request);
}

// Tokens of the prefix object: whole pages in a draft step, all in target-verify.
__device__ std::int64_t prefix_tokens(const TopkDraftArgs& args, std::int64_t request) {
  const std::int64_t tokens = tokens_of(args, request);
  return tokens - tokens % args.prefix.page_size;
}
__device__ std::int64_t prefix_tokens(const TopkVerifyArgs& args, std::int64_t request) {
  return tokens_of(args, request);
}

template <class Args>
__device__ std::int32_t slot_at(const Args& args, std::int64_t pool_row, std::int64_t column) {
  if (column < 0 || column >= args.req_to_token_stride) return -1;
  return __ldg(args.req_to_token + pool_row * args.req_to_token_stride + column);
}

// sums[i + 1] = value(0) + ... + value(i). Whole block.
template <class Value>
__device__ void write_sums(std::int32_t* sums, std::int64_t count, Value value) {
  __shared__ typename Scan32::TempStorage temporary;
  std::int32_t before = 0;
  for (std::int64_t base = 0; base < count; base += kThreads) {
    const std::int64_t i = base + threadIdx.x;
    std::int32_t sum = i < count ? value(i) : 0;
    std::int32_t total = 0;
    Scan32(temporary).InclusiveSum(sum, sum, total);
    if (i < count) sums[i + 1] = before + sum;
    before += total;
    __syncthreads();  // before the storage is used again
  }
}

__device__ void write_expand_sums(const TopkDraftArgs& args) {
  if (args.expand.page_size == 1) return;  // preset
  write_sums(args.expand.cu_seqlens_k, args.expand.rows, [&](std::int64_t row) {
    const std::int64_t begun = tokens_of(args, row / args.topk) % args.expand.page_size;
    return static_cast<std::int32_t>(begun + args.step + 1);
  });
}

// Whether expand row `row` sees its request's draft token `column`.
__device__ bool is_visible(const TopkVerifyArgs& args, std::int64_t mask_row, std::int64_t row,
                           std::int64_t column) {
  const std::int64_t at = row < args.num_positions ? mask_row + column : 0;
  return at < args.mask_len && __ldg(args.custom_mask + at) != 0;
}

// Mask bytes of a request: q rows of all it may see.
__device__ std::int64_t mask_bytes(const TopkVerifyArgs& args, std::int64_t request) {
  return (tokens_of(args, request) + args.draft_tokens) * args.draft_tokens;
}

// Tiles of whole requests, a thread an expand row.
__device__ void write_expand_sums(const TopkVerifyArgs& args) {
  __shared__ std::int64_t request_mask[kThreads];
  __shared__ typename Scan64::TempStorage mask_temporary;
  __shared__ typename Scan32::TempStorage count_temporary;
  const std::int32_t q = args.draft_tokens;
  const std::int32_t tile_requests = kThreads / q;
  const auto thread = static_cast<std::int32_t>(threadIdx.x);
  std::int64_t mask_before = 0;
  std::int32_t rows_before = 0;
  for (std::int64_t first = 0; first < args.batch_size; first += tile_requests) {
    const std::int64_t own = first + thread;
    std::int64_t bytes = 0;
    if (thread < tile_requests && own < args.batch_size) bytes = mask_bytes(args, own);
    std::int64_t begin = 0;
    std::int64_t all_bytes = 0;
    Scan64(mask_temporary).ExclusiveSum(bytes, begin, all_bytes);
    request_mask[thread] = mask_before + begin;
    __syncthreads();
    const std::int32_t in_tile = thread / q;
    const std::int64_t request = first + in_tile;
    const bool has_row = in_tile < tile_requests && request < args.batch_size;
    const std::int64_t row = first * q + thread;
    std::int32_t count = 0;
    if (has_row) {
      const std::int64_t tokens = tokens_of(args, request);
      const std::int64_t mask_row = request_mask[in_tile] + thread % q * (tokens + q) + tokens;
      for (std::int32_t j = 0; j < q; ++j) count += is_visible(args, mask_row, row, j) ? 1 : 0;
    }
    std::int32_t total = 0;
    Scan32(count_temporary).InclusiveSum(count, count, total);
    if (has_row) args.expand.cu_seqlens_k[row + 1] = rows_before + count;
    mask_before += all_bytes;
    rows_before += total;
    __syncthreads();  // before the tile's arrays are used again
  }
}

// Expand rows of one request, draft step: k rows of s + 1 slots. Whole block.
__device__ void write_expand(const TopkDraftArgs& args, std::int64_t request) {
  const TopkTable& table = args.expand;
  const auto branch = static_cast<std::int32_t>(threadIdx.x);
  if (branch >= args.topk) return;
  const std::int64_t row = request * args.topk + branch;
  const std::int64_t* slots = args.out_cache_loc + row * args.num_steps;
  std::int32_t* columns = table.page_table + row * table.page_table_stride;
  const bool live = row < args.num_out_tokens / args.num_steps;
  if (table.page_size == 1) {
    for (std::int32_t i = 0; live && i <= args.step; ++i) {
      columns[i] = static_cast<std::int32_t>(slots[i]);
    }
    return;
  }
  const std::int64_t begun = tokens_of(args, request) % table.page_size;
  table.cache_seqlens[row] = static_cast<std::int32_t>(begun + args.step + 1);
  if (!live) return;
  std::int32_t pages = 0;
  std::int32_t last = 0;
  for (std::int32_t i = 0; i <= args.step; ++i) {
    const auto page = static_cast<std::int32_t>(slots[i] / table.page_size);
    if (pages > 0 && page == last) continue;
    columns[pages++] = last = page;
  }
  for (; pages < table.width; ++pages) columns[pages] = 0;
}

// Target-verify: q rows, a warp each; a lane has two of at most 64 columns.
__device__ void write_expand(const TopkVerifyArgs& args, std::int64_t request) {
  __shared__ typename Reduce64::TempStorage temporary;
  __shared__ std::int64_t request_mask;
  std::int64_t bytes = 0;
  for (std::int64_t other = threadIdx.x; other < request; other += kThreads) {
    bytes += mask_bytes(args, other);
  }
  bytes = Reduce64(temporary).Sum(bytes);
  if (threadIdx.x == 0) request_mask = bytes;
  __syncthreads();
  const TopkTable& table = args.expand;
  const std::int32_t q = args.draft_tokens;
  const auto lane = static_cast<std::int32_t>(threadIdx.x % 32);
  const std::int64_t pool_row =
      load_int(args.req_pool_indices, args.req_pool_indices_type, request);
  const std::int64_t tokens = tokens_of(args, request);
  for (auto i = static_cast<std::int32_t>(threadIdx.x / 32); i < q; i += kThreads / 32) {
    const std::int64_t row = request * q + i;
    const std::int64_t mask_row = request_mask + i * (tokens + q) + tokens;
    const std::int32_t high_lane = lane + 32;
    const std::uint32_t low =
        __ballot_sync(0xffffffffu, lane < q && is_visible(args, mask_row, row, lane));
    const std::uint32_t high =
        __ballot_sync(0xffffffffu, high_lane < q && is_visible(args, mask_row, row, high_lane));
    const std::uint64_t seen = std::uint64_t{high} << 32 | low;
    const std::int32_t visible = __popcll(seen);
    if (lane == 0) table.cache_seqlens[row] = visible;
    for (std::int32_t j = lane; j < q; j += 32) {
      const std::int32_t seen_before = __popcll(seen & ((std::uint64_t{1} << j) - 1));
      const bool is_seen = (seen >> j & 1) != 0;
      const std::int32_t place = is_seen ? seen_before : visible + j - seen_before;
      table.page_table[row * table.page_table_stride + place] = slot_at(args, pool_row, tokens + j);
    }
  }
}

template <class Args>
__device__ void write_prefix(const Args& args, std::int64_t request, std::int32_t page_shift) {
  const TopkTable& table = args.prefix;
  const std::int64_t tokens = prefix_tokens(args, request);
  if (blockIdx.y == 0 && threadIdx.x == 0) {
    table.cache_seqlens[request] = static_cast<std::int32_t>(tokens);
  }
  const std::int64_t pool_row =
      load_int(args.req_pool_indices, args.req_pool_indices_type, request);
  const std::int64_t pages = (tokens + table.page_size - 1) >> page_shift;
  const std::int64_t columns = pages < table.width ? pages : table.width;
  const std::int64_t stride = std::int64_t{gridDim.y} * kThreads;
  for (std::int64_t column = std::int64_t{blockIdx.y} * kThreads + threadIdx.x; column < columns;
       column += stride) {
    table.page_table[request * table.page_table_stride + column] =
        page_of(slot_at(args, pool_row, column << page_shift), page_shift);
  }
}

template <class Args>
__global__ void __launch_bounds__(kThreads)
    topk_kernel(const __grid_constant__ Args args, const std::int32_t page_shift,
                const bool with_prefix) {
  if (blockIdx.x == 0) {
    if (blockIdx.y > 0) return;
    if (with_prefix) {
      write_sums(args.prefix.cu_seqlens_k, args.batch_size, [&](std::int64_t request) {
        return static_cast<std::int32_t>(prefix_tokens(args, request));
      });
    }
    write_expand_sums(args);
    return;
  }
  const std::int64_t request = blockIdx.x - 1;
  if (with_prefix) write_prefix(args, request, page_shift);
  if (blockIdx.y == 0) write_expand(args, request);
}

template <class Args>
int launch(const Args& args, bool with_prefix, cudaStream_t stream) {
  if (args.batch_size == 0) return cudaSuccess;
  if (!is_valid(args)) return cudaErrorInvalidValue;
  const std::int64_t parts = (std::int64_t{args.prefix.width} + kThreads - 1) / kThreads;
  const std::int64_t most = std::max<std::int64_t>(kResidentBlocks / args.batch_size, 1);
  const std::int64_t y = with_prefix ? std::clamp<std::int64_t>(parts, 1, most) : 1;
  const dim3 grid(static_cast<unsigned>(args.batch_size) + 1, static_cast<unsigned>(y));
  const int page_shift = std::countr_zero(static_cast<std::uint32_t>(args.prefix.page_size));
  topk_kernel<<<grid, kThreads, 0, stream>>>(args, page_shift, with_prefix);
  return cudaGetLastError();
}

}  // namespace

int launch_topk_draft(const TopkDraftArgs& args, CUstream_st* stream) {
  return launch(args, true, stream);
}

int launch_topk_verify(const TopkVerifyArgs& args, CUstream_st* stream) {
  return launch(args, true, stream);
}

int launch_topk_draft_expand(const TopkDraftArgs& args, CUstream_st* stream) {
  return launch(args, false, stream);
}

}  // namespace tpjitter::kernels
