// The attention stand-in of decode_body.h: reads the tables of its layer, writes the KV slots.
// Source:   our own. Which tables: attention_tables.h, one instantiation a kind, so that a paged
//           forward's kernel and parameters carry nothing of the others.
// Inputs:   the rebuilt metadata; [elements] bf16 of the previous all-reduce.
// Outputs:  the next all-reduce's input; KV slots or states; a sum into state->checksum.
// Grid:     that of the body: rows by block, columns by thread; index lists by entry.
// Traffic:  live page ids or entries * 4 bytes, locations * 8, all_reduce_elements * 4 bytes.
// Limits:   any batch size; capturable; no host sync. Values of padded rows are folded too.
#include <cuda_runtime.h>

#include "kernels/decode_body.cuh"
#include "kernels/decode_body_fold.h"

namespace tpjitter::kernels {
namespace {

// Each thread's part of a fold: rows by block, columns by thread.
__device__ std::uint64_t fold_tables(const PagedView& view) {
  std::uint64_t sum = 0;
  for (std::int32_t row = static_cast<std::int32_t>(blockIdx.x); row < view.rows;
       row += static_cast<std::int32_t>(gridDim.x)) {
    const std::int32_t live = live_columns(view, view.cache_seqlens[row]);
    if (threadIdx.x == 0) sum += fold_row(view, row);
    for (std::int32_t column = static_cast<std::int32_t>(threadIdx.x); column < live;
         column += kBodyThreads) {
      sum += fold_page(view, row, column);
    }
  }
  return sum;
}

__device__ std::uint64_t fold_lists(const KvIndicesWrapper& kv, bool sliding,
                                    std::int32_t batch_size) {
  std::uint64_t sum = 0;
  for (std::int64_t row = first_element(); row < batch_size; row += element_stride()) {
    sum += fold_kv_row(kv, sliding, static_cast<std::int32_t>(row));
  }
  const std::int64_t entries = live_entries(kv, batch_size);
  for (std::int64_t entry = first_element(); entry < entries; entry += element_stride()) {
    sum += fold_kv_entry(kv, sliding, entry);
  }
  return sum;
}

// A padded row has no state, and a stale or wild index must not corrupt memory.
__device__ std::uint64_t fold_and_write_states(const LinearTables& linear, std::int32_t batch_size,
                                               std::int32_t written) {
  std::uint64_t sum = 0;
  for (std::int64_t row = first_element(); row < batch_size; row += element_stride()) {
    const std::int32_t state = linear.state_indices[row];
    sum += fold(FoldTag::kStateIndices, static_cast<std::uint64_t>(row), state);
    sum +=
        fold(FoldTag::kQueryStartLoc, static_cast<std::uint64_t>(row), linear.query_start_loc[row]);
    if (linear.states != nullptr && state >= 0 && state < linear.state_slots) {
      linear.states[state] = written;
    }
    if (row + 1 == batch_size) {
      sum += fold(FoldTag::kQueryStartLoc, static_cast<std::uint64_t>(row) + 1,
                  linear.query_start_loc[row + 1]);
    }
  }
  return sum;
}

// Folds the locations and writes their KV slots. A stale or wild location must not corrupt memory:
// it fails the checksum instead.
__device__ std::uint64_t fold_and_write_slots(const LocationView& view,
                                              const DecodeBodyCommon& args, bool sliding) {
  std::int32_t* kv = sliding ? args.swa_kv : args.kv;
  const std::int64_t slots = sliding ? args.swa_kv_slots : args.kv_slots;
  const auto written = static_cast<std::int32_t>(args.state->step);
  std::uint64_t sum = 0;
  for (std::int64_t i = first_element(); i < view.count; i += element_stride()) {
    const std::int64_t location = view.locations[i];
    sum += fold(view.tag, static_cast<std::uint64_t>(i), location);
    if (location >= 0 && location < slots) kv[location] = written;
  }
  return sum;
}

__device__ std::uint64_t fold_halves(const DecodeBodyArgs& args, bool sliding) {
  std::uint64_t sum = 0;
  const DecodeMetadataArgs& left = args.tables.halves[0];
  if (left.batch_size > 0) {
    sum += fold_tables(paged_view(left, sliding));
    sum += fold_and_write_slots(location_view(left, sliding), args, sliding);
  }
  const DecodeMetadataArgs& right = args.tables.halves[1];
  if (right.batch_size > 0) {
    sum += fold_tables(as_second(paged_view(right, sliding)));
    sum += fold_and_write_slots(location_view(right, sliding, kSecondSet), args, sliding);
  }
  return sum;
}

// What the layer reads, in the parts of this thread. Full and sliding layers.
template <TableKind kKind, class Args>
__device__ std::uint64_t fold_layer(const Args& args, bool sliding) {
  if constexpr (kKind == TableKind::kTwoBatch) {
    return fold_halves(args, sliding);
  } else {
    std::uint64_t sum = 0;
    if constexpr (kKind == TableKind::kKvIndices) {
      sum += fold_lists(sliding ? args.tables.swa_kv : args.tables.kv, sliding,
                        args.metadata.batch_size);
    } else if constexpr (kKind == TableKind::kTopk) {
      sum += fold_tables(paged_view(args.tables.prefix));
      sum += fold_tables(as_second(paged_view(args.tables.expand)));
    } else {
      sum += fold_tables(paged_view(args.metadata, sliding));
    }
    return sum + fold_and_write_slots(location_view(args.metadata, sliding), args, sliding);
  }
}

__host__ __device__ inline std::int64_t counted_rows(const DecodeMetadataArgs& m) {
  return m.num_out_tokens > 1 ? m.num_out_tokens : 1;
}

// Each block arrives at its rows; a row's last one resets the counter. More blocks than rows share
// them as the blocks of a split KV do. One warp.
__device__ void count_arrivals(const AttentionScratch& scratch, std::int64_t rows) {
  const std::int64_t blocks = gridDim.x;
  const std::int64_t first = blockIdx.x % rows + threadIdx.x % 32 * blocks;
  for (std::int64_t row = first; row < rows; row += 32 * blocks) {
    const std::int64_t expected = row < blocks ? (blocks - 1 - row) / rows + 1 : 1;
    if (atomicAdd(scratch.counters + row, 1) == expected - 1) scratch.counters[row] = 0;
  }
}

// 1 with the scales that were set up, so that a missing one fails the checksum.
__device__ __forceinline__ std::uint64_t scale_of(const AttentionScratch& scratch) {
  if (scratch.kv_scales[0] == nullptr) return 1;
  return *scratch.kv_scales[0] == 1.0f && *scratch.kv_scales[1] == 1.0f ? 1 : 0;
}

template <TableKind kKind, class Args>
__global__ void __launch_bounds__(kBodyThreads) attention_kernel(const Args args, const int layer) {
  begin_kernel(args.pdl);
  if (args.stamp_begin && layer == 0 && blockIdx.x == 0 && threadIdx.x == 0) {
    args.ring.graphs[*args.ring.entry].begin_ns = globaltimer_ns();
  }
  if (block_aborted(args.guard)) return;
  const LayerKind kind = layer_kind(kKind, args.shape.swa, layer);
  // A warp that the fold's single-thread part does not use: the atomic's way to memory and back
  // hides behind the tables.
  if (kind == LayerKind::kFull && args.scratch.counters != nullptr &&
      threadIdx.x >= kBodyThreads - 32) {
    count_arrivals(args.scratch, counted_rows(args.metadata));
  }
  std::uint64_t sum = 0;
  if constexpr (kKind == TableKind::kHybridLinear) {
    if (kind == LayerKind::kLinear) {
      sum = fold_and_write_states(args.tables.linear, args.metadata.batch_size,
                                  static_cast<std::int32_t>(args.state->step));
    } else {
      sum = fold_layer<kKind>(args, false);
    }
  } else {
    sum = fold_layer<kKind>(args, kind == LayerKind::kSliding);
  }
  sum *= fold_weight(static_cast<std::uint64_t>(layer));
  if (kind == LayerKind::kFull) sum *= scale_of(args.scratch);
  const int ordinal = layer * kAllReducesPerLayer;
  if (layer > 0) sum += fold_reduced(args, ordinal - 1);
  write_all_reduce_input(args, ordinal);
  add_to_checksum(args.state, sum);
}

template <TableKind kKind, class Args>
int launch_kind(const Args& args, int layer, cudaStream_t stream) {
  return launch_kernel(attention_kernel<kKind, Args>, blocks_of(args), kBodyThreads, args.pdl,
                       stream, args, layer);
}

}  // namespace

int launch_attention(const DecodeBodyArgs& args, int layer, CUstream_st* stream) {
  const AttentionScratch& scratch = args.scratch;
  if (scratch.counters != nullptr && scratch.counter_rows < counted_rows(args.metadata)) {
    return cudaErrorInvalidValue;
  }
  switch (args.tables.kind) {
    case TableKind::kPaged:
      return launch_kind<TableKind::kPaged, DecodeBodyCommon>(args, layer, stream);
    case TableKind::kKvIndices:
      return launch_kind<TableKind::kKvIndices>(args, layer, stream);
    case TableKind::kHybridLinear:
      return launch_kind<TableKind::kHybridLinear>(args, layer, stream);
    case TableKind::kTwoBatch:
      return launch_kind<TableKind::kTwoBatch>(args, layer, stream);
    case TableKind::kTopk:
      return launch_kind<TableKind::kTopk>(args, layer, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace tpjitter::kernels
