// What the attention stand-in of the decode body reads, by backend: one page table, FlashInfer's
// index lists, linear-attention state in some layers, a table for each half of the batch, or a
// tree's two objects. The body's metadata (DecodeMetadataArgs) stays beside it in every kind: it
// gives batch_size, out_cache_loc and, with SWA, swa_out_cache_loc.
#pragma once

#include <cstdint>

#include "kernels/decode_metadata.h"
#include "kernels/metadata_kv_indices.h"
#include "kernels/metadata_topk.h"

#if defined(__CUDACC__)
#define TPJITTER_HOST_DEVICE __host__ __device__
#else
#define TPJITTER_HOST_DEVICE
#endif

namespace tpjitter::kernels {

enum class TableKind : std::int32_t {
  kPaged = 0,         // metadata's own tables; nothing of AttentionTables is read
  kKvIndices = 1,     // `kv`; sliding layers read `swa_kv`
  kHybridLinear = 2,  // metadata's tables in full-attention layers, `linear` in the others
  kTwoBatch = 3,      // `halves`, with locations of their own
  kTopk = 4,          // `prefix` and `expand`; sliding layers do not exist
};

// What a linear-attention layer reads, and the states that it writes.
struct LinearTables {
  const std::int32_t* state_indices = nullptr;    // [metadata.batch_size], -1 on padded rows
  const std::int32_t* query_start_loc = nullptr;  // [metadata.batch_size + 1]
  std::int32_t* states = nullptr;  // [state_slots] written through state_indices; null: none
  std::int64_t state_slots = 0;
};

struct AttentionTables {
  TableKind kind = TableKind::kPaged;
  KvIndicesWrapper kv, swa_kv;  // qo_indptr and kv_last_page_len null: not read
  LinearTables linear;
  DecodeMetadataArgs halves[2];  // batch_size 0: an empty half
  TopkTable prefix, expand;      // cu_seqlens_q set
};

// Sliding layers read the SWA tables: even layers, as in gpt-oss; none without SWA.
TPJITTER_HOST_DEVICE inline bool layer_is_sliding(bool swa, int layer) {
  return swa && layer % 2 == 0;
}

// Of a hybrid-linear model every fourth layer has full attention, as in Qwen3-Next: 3, 7, 11...
inline constexpr int kFullAttentionInterval = 4;
TPJITTER_HOST_DEVICE inline bool layer_is_linear(TableKind kind, int layer) {
  return kind == TableKind::kHybridLinear &&
         layer % kFullAttentionInterval != kFullAttentionInterval - 1;
}

// What one layer of a forward reads. Linear goes first: a hybrid-linear model has no window.
enum class LayerKind : std::int32_t { kFull = 0, kSliding = 1, kLinear = 2 };
TPJITTER_HOST_DEVICE inline LayerKind layer_kind(TableKind kind, bool swa, int layer) {
  if (kind == TableKind::kHybridLinear) {
    return layer_is_linear(kind, layer) ? LayerKind::kLinear : LayerKind::kFull;
  }
  const bool slides = layer_is_sliding(swa, layer) && kind != TableKind::kTopk;
  return slides ? LayerKind::kSliding : LayerKind::kFull;
}

// Two-batch overlap: where the batch is cut. The left half gets the floor; of one row it is empty.
// `rows`: the padded batch, as the engine cuts it again at each replay.
struct BatchHalf {
  std::int32_t first_row = 0;
  std::int32_t rows = 0;
};
TPJITTER_HOST_DEVICE inline BatchHalf batch_half(std::int32_t rows, int half) {
  const std::int32_t left = rows / 2;
  return half == 0 ? BatchHalf{0, left} : BatchHalf{left, rows - left};
}

// A child's arguments: inputs are rows [first_row, first_row + rows) of the parent's, outputs,
// their strides and swa_out_len are the child's own in `outputs` (each child has a full set: cu_seqlens
// begin at 0 again, so they cannot be slices). tokens_per_row: of out_cache_loc. The parent's
// num_out_tokens counts live tokens only, so that the second child may get fewer than its rows'.
DecodeMetadataArgs half_args(const DecodeMetadataArgs& parent, const DecodeMetadataArgs& outputs,
                             BatchHalf half, std::int32_t tokens_per_row);

}  // namespace tpjitter::kernels
