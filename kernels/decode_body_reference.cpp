// The checksum of the decode body on the host.
#include <algorithm>
#include <cstddef>

#include "kernels/decode_body_fold.h"

namespace tpjitter::kernels {
namespace {

std::uint64_t fold_tables(const PagedView& view) {
  std::uint64_t sum = 0;
  for (std::int32_t row = 0; row < view.rows; ++row) {
    sum += fold_row(view, row);
    const std::int32_t live = live_columns(view, view.cache_seqlens[row]);
    for (std::int32_t column = 0; column < live; ++column) sum += fold_page(view, row, column);
  }
  return sum;
}

std::uint64_t fold_lists(const KvIndicesWrapper& kv, bool sliding, std::int32_t batch_size) {
  std::uint64_t sum = 0;
  for (std::int32_t row = 0; row < batch_size; ++row) sum += fold_kv_row(kv, sliding, row);
  const std::int64_t entries = live_entries(kv, batch_size);
  for (std::int64_t entry = 0; entry < entries; ++entry) sum += fold_kv_entry(kv, sliding, entry);
  return sum;
}

std::uint64_t fold_linear(const LinearTables& linear, std::int32_t batch_size) {
  std::uint64_t sum = 0;
  for (std::int32_t row = 0; row < batch_size; ++row) {
    sum += fold(FoldTag::kStateIndices, row, linear.state_indices[row]);
  }
  for (std::int32_t row = 0; row <= batch_size && batch_size > 0; ++row) {
    sum += fold(FoldTag::kQueryStartLoc, row, linear.query_start_loc[row]);
  }
  return sum;
}

std::uint64_t fold_locations(const LocationView& view) {
  std::uint64_t sum = 0;
  for (std::int64_t i = 0; i < view.count; ++i) sum += fold(view.tag, i, view.locations[i]);
  return sum;
}

std::uint64_t fold_halves(const AttentionTables& tables, bool sliding) {
  const DecodeMetadataArgs& left = tables.halves[0];
  const DecodeMetadataArgs& right = tables.halves[1];
  std::uint64_t sum = 0;
  if (left.batch_size > 0) {
    sum += fold_tables(paged_view(left, sliding)) + fold_locations(location_view(left, sliding));
  }
  if (right.batch_size > 0) {
    sum += fold_tables(as_second(paged_view(right, sliding))) +
           fold_locations(location_view(right, sliding, kSecondSet));
  }
  return sum;
}

}  // namespace

std::uint64_t reference_metadata_fold(const DecodeMetadataArgs& metadata, bool sliding) {
  return fold_tables(paged_view(metadata, sliding)) +
         fold_locations(location_view(metadata, sliding));
}

std::uint64_t reference_tables_fold(const DecodeMetadataArgs& metadata,
                                    const AttentionTables& tables, LayerKind layer) {
  const bool sliding = layer == LayerKind::kSliding;
  if (layer == LayerKind::kLinear) return fold_linear(tables.linear, metadata.batch_size);
  switch (tables.kind) {
    case TableKind::kPaged:
    case TableKind::kHybridLinear:
      break;
    case TableKind::kKvIndices:
      return fold_lists(sliding ? tables.swa_kv : tables.kv, sliding, metadata.batch_size) +
             fold_locations(location_view(metadata, sliding));
    case TableKind::kTwoBatch:
      return fold_halves(tables, sliding);
    case TableKind::kTopk:
      return fold_tables(paged_view(tables.prefix)) +
             fold_tables(as_second(paged_view(tables.expand))) +
             fold_locations(location_view(metadata, sliding));
  }
  return reference_metadata_fold(metadata, sliding);
}

std::uint64_t reference_graph_checksum(std::span<const GraphForward> forwards,
                                       const DecodeBodyShape& shape, std::int64_t step) {
  std::uint64_t sum = 0;
  int layer = 0;
  for (const GraphForward& forward : forwards) {
    std::uint64_t folds[3] = {};  // by layer kind; made once, however many layers there are
    bool made[3] = {};
    for (int end = layer + forward.layers; layer < end; ++layer) {
      const LayerKind kind = layer_kind(forward.tables.kind, forward.swa, layer);
      const auto at = static_cast<std::size_t>(kind);
      if (!made[at]) folds[at] = reference_tables_fold(forward.metadata, forward.tables, kind);
      made[at] = true;
      sum += fold_weight(layer) * folds[at];
    }
  }
  for (int n = 0; n < layer * kAllReducesPerLayer; ++n) {
    std::uint64_t total = 0;
    for (int lane = 0; lane < 4; ++lane) {  // the value depends on i only through i & 3
      const std::int64_t count = (shape.all_reduce_elements + 3 - lane) / 4;
      for (int rank = 0; rank < shape.world_size; ++rank) {
        total += static_cast<std::uint64_t>(count) * all_reduce_value(rank, step, n, lane);
      }
    }
    sum += fold_weight(n) * total;
  }
  return sum;
}

std::uint64_t reference_step_checksum(const DecodeMetadataArgs& metadata,
                                      const DecodeBodyShape& shape, std::int64_t step) {
  GraphForward forward;
  forward.metadata = metadata;
  forward.layers = shape.layers;
  forward.swa = shape.swa;
  return reference_graph_checksum({&forward, 1}, shape, step);
}

DecodeMetadataArgs half_args(const DecodeMetadataArgs& parent, const DecodeMetadataArgs& outputs,
                             BatchHalf half, std::int32_t tokens_per_row) {
  const auto row_of = [&](const void* data, IntType type) -> const void* {
    if (data == nullptr) return nullptr;
    return static_cast<const std::byte*>(data) +
           std::int64_t{half.first_row} * static_cast<std::int64_t>(type);
  };
  DecodeMetadataArgs args = parent;
  args.req_pool_indices = row_of(parent.req_pool_indices, parent.req_pool_indices_type);
  args.seq_lens = row_of(parent.seq_lens, parent.seq_lens_type);
  args.q_lens = row_of(parent.q_lens, parent.q_lens_type);
  const std::int64_t first_token = std::int64_t{half.first_row} * tokens_per_row;
  if (parent.out_cache_loc != nullptr) args.out_cache_loc = parent.out_cache_loc + first_token;
  args.num_out_tokens = std::clamp<std::int64_t>(parent.num_out_tokens - first_token, 0,
                                                 std::int64_t{half.rows} * tokens_per_row);
  args.batch_size = half.rows;
  args.cache_seqlens = outputs.cache_seqlens;
  args.cu_seqlens_k = outputs.cu_seqlens_k;
  args.cu_seqlens_q = outputs.cu_seqlens_q;
  args.page_table = outputs.page_table;
  args.swa_page_table = outputs.swa_page_table;
  args.swa_out_cache_loc = outputs.swa_out_cache_loc;
  args.page_table_stride = outputs.page_table_stride;
  args.swa_page_table_stride = outputs.swa_page_table_stride;
  args.swa_out_len = outputs.swa_out_len;
  return args;
}

}  // namespace tpjitter::kernels
