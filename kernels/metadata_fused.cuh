// Device code of the fused metadata kernels, one phase of a step: lengths and prefix sums, page
// tables, swa_out_cache_loc. Included by metadata_fused.cu, a launch a phase, and by
// metadata_fused_multi.cu, one for several.
#pragma once

#include <cstdint>

#include "kernels/metadata_fused.h"
#include "kernels/metadata_pages.cuh"

namespace tpjitter::kernels {
namespace {

constexpr int kWarps = kMetadataThreads / 32;
constexpr int kItems = 4;  // entries of the prefix sum a thread
constexpr int kTile = kMetadataThreads * kItems;
constexpr unsigned kFullWarp = 0xffffffffu;

// Inclusive sum over the warp. Unsigned: wraps like the reference.
__device__ std::uint32_t warp_inclusive_sum(std::uint32_t value) {
  const unsigned lane = threadIdx.x % 32;
#pragma unroll
  for (unsigned distance = 1; distance < 32; distance *= 2) {
    const std::uint32_t other = __shfl_up_sync(kFullWarp, value, distance);
    if (lane >= distance) value += other;
  }
  return value;
}

struct Tile {
  std::uint32_t k[kItems];
  std::uint32_t q[kItems];
};

// The thread's consecutive entries of the tile at `base`; zero past the batch.
__device__ Tile load_tile(const DecodeMetadataArgs& args, std::int64_t base) {
  Tile tile;
#pragma unroll
  for (int j = 0; j < kItems; ++j) {
    const std::int64_t i = base + threadIdx.x * kItems + j;
    tile.k[j] = 0;
    tile.q[j] = 0;
    if (i >= args.batch_size) continue;
    tile.k[j] = static_cast<std::uint32_t>(load_int(args.seq_lens, args.seq_lens_type, i)) +
                static_cast<std::uint32_t>(args.seqlen_offset);
    if (args.q_mode == QueryMode::kCumsum) {
      tile.q[j] = static_cast<std::uint32_t>(load_int(args.q_lens, args.q_lens_type, i));
    }
  }
  return tile;
}

__device__ void store_tile(const DecodeMetadataArgs& args, std::int64_t base, const Tile& tile,
                           std::uint32_t sum_k, std::uint32_t sum_q) {
#pragma unroll
  for (int j = 0; j < kItems; ++j) {
    const std::int64_t i = base + threadIdx.x * kItems + j;
    if (i >= args.batch_size) continue;
    sum_k += tile.k[j];
    sum_q += tile.q[j];
    args.cache_seqlens[i] = static_cast<std::int32_t>(tile.k[j]);
    args.cu_seqlens_k[i + 1] = static_cast<std::int32_t>(sum_k);
    if (args.q_mode == QueryMode::kCumsum) {
      args.cu_seqlens_q[i + 1] = static_cast<std::int32_t>(sum_q);
    } else if (args.q_mode == QueryMode::kStrided) {
      args.cu_seqlens_q[i + 1] = static_cast<std::int32_t>((i + 1) * args.q_stride);
    }
  }
}

// A batch that one warp holds, an entry a lane: without the block's barrier and shared memory, since
// at small shapes this chain is as long as the gather's.
__device__ void write_few_lengths(const DecodeMetadataArgs& args) {
  const std::int32_t i = static_cast<std::int32_t>(threadIdx.x);
  if (i >= 32) return;
  const bool live = i < args.batch_size;
  const bool sums_queries = args.q_mode == QueryMode::kCumsum;
  std::uint32_t k = 0;
  std::uint32_t q = 0;
  if (live) {
    k = static_cast<std::uint32_t>(load_int(args.seq_lens, args.seq_lens_type, i)) +
        static_cast<std::uint32_t>(args.seqlen_offset);
    if (sums_queries) {
      q = static_cast<std::uint32_t>(load_int(args.q_lens, args.q_lens_type, i));
    }
    args.cache_seqlens[i] = static_cast<std::int32_t>(k);
    if (args.q_mode == QueryMode::kStrided) args.cu_seqlens_q[i + 1] = (i + 1) * args.q_stride;
  }
  k = warp_inclusive_sum(k);
  if (live) args.cu_seqlens_k[i + 1] = static_cast<std::int32_t>(k);
  if (!sums_queries) return;
  q = warp_inclusive_sum(q);
  if (live) args.cu_seqlens_q[i + 1] = static_cast<std::int32_t>(q);
}

// One block walks the batch in tiles and carries both sums; the next tile's loads fly while this
// one is summed. The totals alternate between two buffers, so that one barrier a tile is enough.
__device__ void write_lengths(const DecodeMetadataArgs& args) {
  if (args.batch_size <= 32) {
    write_few_lengths(args);
    return;
  }
  __shared__ std::uint32_t warp_k[2][kWarps];
  __shared__ std::uint32_t warp_q[2][kWarps];
  const unsigned lane = threadIdx.x % 32;
  const unsigned warp = threadIdx.x / 32;
  std::uint32_t carry_k = 0;
  std::uint32_t carry_q = 0;
  int buffer = 0;
  Tile next = load_tile(args, 0);
  for (std::int64_t base = 0; base < args.batch_size; base += kTile, buffer ^= 1) {
    const Tile tile = next;
    next = load_tile(args, base + kTile);
    std::uint32_t own_k = 0;
    std::uint32_t own_q = 0;
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      own_k += tile.k[j];
      own_q += tile.q[j];
    }
    const std::uint32_t through_k = warp_inclusive_sum(own_k);
    const std::uint32_t through_q = warp_inclusive_sum(own_q);
    if (lane == 31) {
      warp_k[buffer][warp] = through_k;
      warp_q[buffer][warp] = through_q;
    }
    __syncthreads();
    std::uint32_t before_k = carry_k + through_k - own_k;
    std::uint32_t before_q = carry_q + through_q - own_q;
#pragma unroll
    for (unsigned w = 0; w < kWarps; ++w) {
      const std::uint32_t total_k = warp_k[buffer][w];
      const std::uint32_t total_q = warp_q[buffer][w];
      if (w < warp) {
        before_k += total_k;
        before_q += total_q;
      }
      carry_k += total_k;
      carry_q += total_q;
    }
    store_tile(args, base, tile, before_k, before_q);
  }
}

// 256 entries: translated while live, -1 for a negative location, 0 past the live prefix.
__device__ void write_swa_out(const DecodeMetadataArgs& args, std::int64_t unit) {
  const std::int64_t i = unit * kMetadataThreads + threadIdx.x;
  if (i >= args.swa_out_len) return;  // tail of the last unit, and units past the last
  std::int64_t translated = 0;
  if (args.out_cache_loc != nullptr && i < args.num_out_tokens) {
    const std::int64_t location = __ldg(args.out_cache_loc + i);
    translated = location < 0 ? -1 : __ldg(args.full_to_swa + location);
  }
  args.swa_out_cache_loc[i] = translated;
}

template <bool kHasSwa, bool kLive, int kPagesPerThread>
__device__ void write_pages(const FusedMetadataParams& params) {
  const DecodeMetadataArgs& args = params.args;
  const std::int64_t row = blockIdx.x - params.extra_columns;
  const std::int32_t first =
      static_cast<std::int32_t>(blockIdx.y) * (kMetadataThreads * kPagesPerThread) +
      static_cast<std::int32_t>(threadIdx.x);
  // Both loads are in flight together: live columns cost no longer chain.
  const std::int64_t pool_row = load_int(args.req_pool_indices, args.req_pool_indices_type, row);
  std::int32_t columns = args.max_seq_pages;
  if (kLive) {
    const auto tokens = static_cast<std::int32_t>(
        static_cast<std::uint32_t>(load_int(args.seq_lens, args.seq_lens_type, row)) +
        static_cast<std::uint32_t>(args.seqlen_offset));
    const std::int64_t pages =
        (std::int64_t{tokens > 0 ? tokens : 0} + args.page_size - 1) >> params.page_shift;
    if (pages < columns) columns = static_cast<std::int32_t>(pages);
  }
  const int* __restrict__ slots = args.req_to_token + pool_row * args.req_to_token_stride;
  std::int32_t slot[kPagesPerThread];
#pragma unroll
  for (int j = 0; j < kPagesPerThread; ++j) {
    const std::int32_t column = first + j * kMetadataThreads;
    slot[j] = -1;
    if (column < columns) slot[j] = __ldg(slots + (std::int64_t{column} << params.page_shift));
  }
  std::int64_t swa_slot[kPagesPerThread];
  if (kHasSwa) {
#pragma unroll
    for (int j = 0; j < kPagesPerThread; ++j) {
      swa_slot[j] = -1;
      if (slot[j] >= 0) {
        swa_slot[j] = __ldg(args.full_to_swa + slot[j]);
      }
    }
  }
  std::int32_t* page_row = args.page_table + row * args.page_table_stride;
  std::int32_t* swa_row =
      kHasSwa ? args.swa_page_table + row * args.swa_page_table_stride : nullptr;
#pragma unroll
  for (int j = 0; j < kPagesPerThread; ++j) {
    const std::int32_t column = first + j * kMetadataThreads;
    if (column >= columns) continue;  // past the row, or past its live pages
    page_row[column] = page_of(slot[j], params.page_shift);
    if (kHasSwa) {
      swa_row[column] = swa_page_of(swa_slot[j], params.page_shift);
    }
  }
}

// What the blocks in front of the rows do.
__device__ void write_extras(const FusedMetadataParams& params) {
  const std::int64_t unit = std::int64_t{blockIdx.x} * gridDim.y + blockIdx.y;
  if (unit == 0) {
    write_lengths(params.args);
  } else if (params.args.swa_out_cache_loc != nullptr) {
    write_swa_out(params.args, unit - 1);
  }
}

}  // namespace
}  // namespace tpjitter::kernels
