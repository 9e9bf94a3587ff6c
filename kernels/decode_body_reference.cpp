#include <algorithm>

#include "kernels/decode_body.h"

namespace tpjitter::kernels {

std::uint64_t reference_metadata_fold(const DecodeMetadataArgs& m, bool sliding) {
  std::uint64_t sum = 0;
  const std::int32_t* table = sliding ? m.swa_page_table : m.page_table;
  const std::int64_t stride = sliding ? m.swa_page_table_stride : m.page_table_stride;
  const FoldTag table_tag = sliding ? FoldTag::kSwaPageTable : FoldTag::kPageTable;
  for (std::int32_t row = 0; row < m.batch_size; ++row) {
    const std::int32_t length = m.cache_seqlens[row];
    sum += fold(FoldTag::kCacheSeqlens, row, length);
    sum += fold(FoldTag::kCuSeqlensK, row, m.cu_seqlens_k[row + 1]);
    sum += fold(FoldTag::kCuSeqlensQ, row, m.cu_seqlens_q[row + 1]);
    const std::int32_t live = std::min((length + m.page_size - 1) / m.page_size, m.max_seq_pages);
    for (std::int32_t column = 0; column < live; ++column) {
      sum += fold(table_tag, static_cast<std::uint64_t>(row) * m.max_seq_pages + column,
                  table[row * stride + column]);
    }
  }
  if (sliding) {
    for (std::int64_t i = 0; i < m.swa_out_len; ++i) {
      sum += fold(FoldTag::kSwaOutCacheLoc, i, m.swa_out_cache_loc[i]);
    }
  } else {
    for (std::int64_t i = 0; i < m.num_out_tokens; ++i) {
      sum += fold(FoldTag::kOutCacheLoc, i, m.out_cache_loc[i]);
    }
  }
  return sum;
}

std::uint64_t reference_graph_checksum(std::span<const GraphForward> forwards,
                                       const DecodeBodyShape& shape, std::int64_t step) {
  std::uint64_t sum = 0;
  int layer = 0;
  for (const GraphForward& forward : forwards) {
    const std::uint64_t full = reference_metadata_fold(forward.metadata, false);
    const std::uint64_t sliding = forward.swa ? reference_metadata_fold(forward.metadata, true) : 0;
    for (int end = layer + forward.layers; layer < end; ++layer) {
      sum += fold_weight(layer) * (layer_is_sliding(forward.swa, layer) ? sliding : full);
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
  const GraphForward forward{metadata, shape.layers, shape.swa};
  return reference_graph_checksum({&forward, 1}, shape, step);
}

}  // namespace tpjitter::kernels
