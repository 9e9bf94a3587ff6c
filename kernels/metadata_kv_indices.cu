// Builds kv_indptr, kv_indices and qo_indptr from lengths that only the device knows.
// Replaces: cumsum, the index kernel and, with a sliding window, the translation of a slice whose
//           length is a device scalar (a hidden D2H sync); once for each wrapper or draft step.
// Source:   SGLang, create_flashinfer_kv_indices_triton and, for draft decode with one branch,
//           generate_draft_decode_kv_indices (Triton). Differs: there one block walks a row, 512
//           (128) tokens at a time, so the longest row decides; here the entries of all rows are
//           shared out evenly whatever the rows' lengths. Prefix sums and translation are inside,
//           strides are runtime values, and the capacity of kv_indices is a guard.
// Inputs:   seq_lens, req_pool_indices, kv_start_idx int32 or int64 [batch_size]; req_to_token
//           [pool, req_to_token_stride] int32; full_to_swa int64.
// Outputs:  kv_indptr[1:] and qo_indptr int32 [batch_size + 1]; kv_indices int32, its first
//           kv_indptr[batch_size] entries. Nothing past them, nothing past the capacity. Of a
//           window also swa_out_cache_loc int64.
// Grid:     y = fill, x = even shares of the entries. Every block sums all lengths itself, in tiles
//           of 1024 rows, and so finds its share without a second launch; the last block, whose
//           share is the smallest, writes the prefix sums. At most as many blocks as are resident.
// Traffic:  entries * (4 read + 4 written), translated entries * 8 read more; 8 to 24 bytes a
//           request and block, from L2.
// Limits:   any batch size; positions in 64 bits; capturable; no host sync.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "kernels/metadata_kv_indices.h"
#include "kernels/metadata_pages.cuh"

namespace tpjitter::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kItems = 4;  // rows of a tile, and entries in flight, a thread
constexpr int kTileRows = kThreads * kItems;
constexpr std::int64_t kResidentBlocks = 1056;  // of 256 threads, on an H200
constexpr std::int64_t kMaxTokens = 0x7fffffff;
constexpr unsigned kFullWarp = 0xffffffffu;

template <int kFills>
struct FillList {
  KvIndicesArgs fills[kFills];
};

// Up to 1024 rows of a fill.
struct RowTile {
  std::int64_t begin[kTileRows];       // first entry of the row, counted from the tile's first
  std::int64_t pool_begin[kTileRows];  // element of req_to_token at which the row's request starts
  std::int32_t start[kTileRows];       // first column
  std::int64_t warp_entries[kWarps];
};

struct RowRange {
  std::int32_t start;
  std::int32_t length;
};

__device__ RowRange load_range(const KvIndicesArgs& args, std::int64_t row) {
  const std::int64_t tokens =
      max(std::int64_t{0},
          min(load_int(args.seq_lens, args.seq_lens_type, row) + args.seqlen_offset, kMaxTokens));
  std::int64_t start = 0;
  std::int64_t length = tokens;
  if (args.sliding_window != kNoWindow) {
    length = min(tokens, std::int64_t{args.sliding_window} + 1);
    start = tokens - length;
  } else if (args.kv_start_idx != nullptr) {
    start = max(std::int64_t{0},
                min(load_int(args.kv_start_idx, args.kv_start_idx_type, row), kMaxTokens));
  }
  return {static_cast<std::int32_t>(start), static_cast<std::int32_t>(length)};
}

__device__ std::int64_t warp_inclusive_sum(std::int64_t value) {
  const unsigned lane = threadIdx.x % 32;
#pragma unroll
  for (unsigned distance = 1; distance < 32; distance *= 2) {
    const std::int64_t other = __shfl_up_sync(kFullWarp, static_cast<long long>(value), distance);
    if (lane >= distance) value += other;
  }
  return value;
}

// Rows [base, base + 1024) into the tile, rows past the batch empty; returns the tile's entries.
__device__ std::int64_t load_tile(const KvIndicesArgs& args, std::int32_t base, RowTile* tile) {
  const unsigned warp = threadIdx.x / 32;
  const int first = static_cast<int>(threadIdx.x) * kItems;
  std::int32_t length[kItems];
  std::int64_t own = 0;
#pragma unroll
  for (int j = 0; j < kItems; ++j) {
    length[j] = 0;
    if (first + j >= args.batch_size - base) continue;
    const std::int64_t row = std::int64_t{base} + first + j;
    const std::int64_t pool_row = load_int(args.req_pool_indices, args.req_pool_indices_type, row);
    const RowRange range = load_range(args, row);
    tile->pool_begin[first + j] = pool_row * args.req_to_token_stride;
    tile->start[first + j] = range.start;
    length[j] = range.length;
    own += range.length;
  }
  const std::int64_t through = warp_inclusive_sum(own);
  if (threadIdx.x % 32 == 31) tile->warp_entries[warp] = through;
  __syncthreads();
  std::int64_t begin = through - own;
  std::int64_t total = 0;
#pragma unroll
  for (unsigned w = 0; w < kWarps; ++w) {
    if (w < warp) begin += tile->warp_entries[w];
    total += tile->warp_entries[w];
  }
#pragma unroll
  for (int j = 0; j < kItems; ++j) {
    tile->begin[first + j] = begin;
    begin += length[j];
  }
  __syncthreads();
  return total;
}

// One block only. Entry 0 of kv_indptr is the caller's.
__device__ void write_indptr(const KvIndicesArgs& args, std::int32_t base,
                             std::int64_t entries_before, std::int64_t entries,
                             const RowTile& tile) {
  const KvIndicesWrapper& wrapper = args.wrapper;
  const int rows = min(args.batch_size - base, kTileRows);
  for (int i = static_cast<int>(threadIdx.x); i < rows; i += kThreads) {
    const std::int64_t end = i + 1 < rows ? tile.begin[i + 1] : entries;
    const std::int64_t at = std::int64_t{base} + i + 1;
    wrapper.kv_indptr[at] = static_cast<std::int32_t>(entries_before + end);
    if (wrapper.qo_indptr == nullptr) continue;
    wrapper.qo_indptr[at] = static_cast<std::int32_t>(at * args.q_stride);
    if (at == 1) wrapper.qo_indptr[0] = 0;
  }
}

// The row of [low, high] that holds the entry: the last that begins at or before it, which steps
// over empty rows.
__device__ int find_row(const RowTile& tile, int low, int high, std::int64_t entry) {
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (tile.begin[middle] <= entry) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// This block's share of the tile's entries, up to the capacity.
__device__ void copy_share(const KvIndicesArgs& args, std::int32_t base,
                           std::int64_t entries_before, std::int64_t entries, const RowTile& tile) {
  const std::int64_t room = args.wrapper.capacity - entries_before;
  if (room < entries) entries = max(std::int64_t{0}, room);  // the row is cut here
  const std::int64_t even = (entries + gridDim.x - 1) / gridDim.x;
  const std::int64_t share = (even + kThreads - 1) / kThreads * kThreads;
  const std::int64_t end = min((blockIdx.x + std::int64_t{1}) * share, entries);
  std::int32_t* out = args.wrapper.kv_indices + entries_before;
  const int last_row = min(args.batch_size - base, kTileRows) - 1;
  const auto thread = static_cast<int>(threadIdx.x);
  int high = 0;
  for (std::int64_t step = blockIdx.x * share; step < end; step += kTileRows) {
    // Within a step 32 bits are enough, and the registers that they save are not spilled.
    const auto count = static_cast<int>(min(end - step, std::int64_t{kTileRows}));
    // The rows of these 1024 entries; usually one, and then no thread searches further.
    const int low = find_row(tile, high, last_row, step);
    high = find_row(tile, low, last_row, step + count - 1);
    std::int32_t slot[kItems];
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      slot[j] = -1;
      const int i = j * kThreads + thread;
      if (i >= count) continue;
      const int row = find_row(tile, low, high, step + i);
      const std::int64_t column = tile.start[row] + (step + i - tile.begin[row]);
      if (column >= args.req_to_token_stride) continue;  // past the request's row
      slot[j] = __ldg(args.req_to_token + tile.pool_begin[row] + column);
    }
    if (args.full_to_swa != nullptr) {
#pragma unroll
      for (int j = 0; j < kItems; ++j) {
        if (slot[j] >= 0) {
          slot[j] = static_cast<std::int32_t>(__ldg(args.full_to_swa + slot[j]));
        } else {
          slot[j] = -1;
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      const int i = j * kThreads + thread;
      if (i < count) out[step + i] = slot[j];
    }
  }
}

// Slots of the sliding layers, shared out over the blocks.
__device__ void write_swa_out(const KvIndicesArgs& args) {
  const SwaOutCacheLoc& out = args.swa_out;
  if (out.swa_out_cache_loc == nullptr) return;
  const std::int64_t stride = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < out.length;
       i += stride) {
    std::int64_t translated = 0;
    if (i < out.num_locations) {
      const std::int64_t location = out.out_cache_loc[i];
      translated = location < 0 ? -1 : __ldg(args.full_to_swa + location);
    }
    out.swa_out_cache_loc[i] = translated;
  }
}

// Eight blocks a multiprocessor: 32 registers, so that kResidentBlocks are resident.
template <int kFills>
__global__ void __launch_bounds__(kThreads, 8)
    kv_indices_kernel(const __grid_constant__ FillList<kFills> list) {
  __shared__ RowTile tile;
  const KvIndicesArgs& args = list.fills[blockIdx.y];
  if (args.batch_size > 0) write_swa_out(args);
  std::int64_t entries_before = 0;
  for (std::int32_t t = 0; std::int64_t{t} * kTileRows < args.batch_size; ++t) {
    const std::int32_t base = t * kTileRows;
    const std::int64_t entries = load_tile(args, base, &tile);
    if (blockIdx.x == gridDim.x - 1) write_indptr(args, base, entries_before, entries, tile);
    copy_share(args, base, entries_before, entries, tile);
    entries_before += entries;
    __syncthreads();  // before the tile is loaded again
  }
}

template <int kFills>
int launch(std::span<const KvIndicesArgs> fills, dim3 grid, cudaStream_t stream) {
  FillList<kFills> list;
  std::copy(fills.begin(), fills.end(), list.fills);
  kv_indices_kernel<kFills><<<grid, kThreads, 0, stream>>>(list);
  return cudaGetLastError();
}

}  // namespace

int launch_kv_indices(std::span<const KvIndicesArgs> fills, CUstream_st* stream) {
  if (fills.size() > kMaxKvIndicesFills) return cudaErrorInvalidValue;
  bool any_rows = false;
  std::int64_t capacity = 0;
  for (const KvIndicesArgs& fill : fills) {
    if (fill.batch_size == 0) continue;  // whatever else its arguments say
    if (!is_valid(fill)) return cudaErrorInvalidValue;
    any_rows = true;
    capacity = std::max(capacity, fill.wrapper.capacity);
  }
  if (!any_rows) return cudaSuccess;
  const auto num_fills = static_cast<std::int64_t>(fills.size());
  const std::int64_t shares = (capacity + kThreads - 1) / kThreads;
  const std::int64_t blocks = std::clamp<std::int64_t>(shares, 1, kResidentBlocks / num_fills);
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(num_fills));
  // Parameters travel with every launch: both wrappers of a decode need not bring 16.
  if (num_fills <= 2) return launch<2>(fills, grid, stream);
  return launch<kMaxKvIndicesFills>(fills, grid, stream);
}

int launch_kv_indices(const KvIndicesArgs& fill, CUstream_st* stream) {
  return launch_kv_indices(std::span(&fill, 1), stream);
}

}  // namespace tpjitter::kernels
