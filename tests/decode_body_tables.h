// Tables of a small batch for the tests of the decode body's checksum, of every kind, in host
// memory.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/decode_body.h"

namespace tpjitter::test {

using kernels::AttentionTables;
using kernels::DecodeBodyShape;
using kernels::DecodeMetadataArgs;
using kernels::GraphForward;
using kernels::TableKind;

// Tables of a small batch in host memory: lengths 5, 8 and 1 with pages of 4.
struct Tables {
  std::vector<std::int32_t> cache_seqlens{5, 8, 1};
  std::vector<std::int32_t> cu_seqlens_k{0, 5, 13, 14};
  std::vector<std::int32_t> cu_seqlens_q{0, 1, 2, 3};
  std::vector<std::int32_t> page_table{1, 2, 90, 3, 4, 91, 5, 92, 93};
  std::vector<std::int32_t> swa_page_table{6, -1, 94, 7, 8, 95, 9, 96, 97};
  std::vector<std::int64_t> out_cache_loc{8, 19, 20};
  std::vector<std::int64_t> swa_out_cache_loc{28, -1, 0};

  DecodeMetadataArgs args() {
    DecodeMetadataArgs a;
    a.cache_seqlens = cache_seqlens.data();
    a.cu_seqlens_k = cu_seqlens_k.data();
    a.cu_seqlens_q = cu_seqlens_q.data();
    a.page_table = page_table.data();
    a.swa_page_table = swa_page_table.data();
    a.out_cache_loc = out_cache_loc.data();
    a.swa_out_cache_loc = swa_out_cache_loc.data();
    a.page_table_stride = a.swa_page_table_stride = 3;
    a.batch_size = 3;
    a.max_seq_pages = 3;
    a.page_size = 4;
    a.num_out_tokens = a.swa_out_len = 3;
    return a;
  }
};

inline DecodeBodyShape shape_of(bool swa) {
  DecodeBodyShape shape;
  shape.layers = 3;
  shape.world_size = 2;
  shape.all_reduce_elements = 24;
  shape.swa = swa;
  return shape;
}

// Tables of every kind beside the metadata of Tables: a batch of three.
struct AllTables {
  Tables metadata;
  std::vector<std::int32_t> kv_indptr{0, 5, 13, 14}, swa_kv_indptr{0, 2, 4, 5};
  std::vector<std::int32_t> kv_indices{3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 99};
  std::vector<std::int32_t> swa_kv_indices{2, 7, 1, 8, 2, 99};
  std::vector<std::int32_t> qo_indptr{0, 1, 2, 3}, swa_qo_indptr{0, 1, 2, 3};
  std::vector<std::int32_t> last_page_len{1, 1, 1}, swa_last_page_len{1, 1, 1};
  std::vector<std::int32_t> state_indices{4, 2, -1}, query_start_loc{0, 1, 2, 2};
  // A left half of one row and a right one of two, with their own sums.
  Tables left, right;
  // Two branches a request: expand rows of two tokens.
  std::vector<std::int32_t> expand_cache_seqlens{2, 2, 1, 2, 2, 1};
  std::vector<std::int32_t> expand_cu_k{0, 2, 4, 5, 7, 9, 10}, expand_cu_q{0, 1, 2, 3, 4, 5, 6};
  std::vector<std::int32_t> expand_table{11, 12, 13, 14, 15, 98, 16, 17, 18, 19, 20, 97};

  AttentionTables tables(TableKind kind) {
    AttentionTables t;
    t.kind = kind;
    t.kv = {.kv_indptr = kv_indptr.data(),
            .kv_indices = kv_indices.data(),
            .kv_last_page_len = last_page_len.data(),
            .qo_indptr = qo_indptr.data(),
            .capacity = 15};
    t.swa_kv = {.kv_indptr = swa_kv_indptr.data(),
                .kv_indices = swa_kv_indices.data(),
                .kv_last_page_len = swa_last_page_len.data(),
                .qo_indptr = swa_qo_indptr.data(),
                .capacity = 6};
    t.linear.state_indices = state_indices.data();
    t.linear.query_start_loc = query_start_loc.data();
    t.halves[0] = left.args();
    t.halves[1] = right.args();
    for (int half = 0; half < 2; ++half) {
      t.halves[half].batch_size = half + 1;
      t.halves[half].num_out_tokens = t.halves[half].swa_out_len = half + 1;
    }
    const DecodeMetadataArgs m = metadata.args();
    t.prefix = {.cache_seqlens = m.cache_seqlens,
                .cu_seqlens_k = m.cu_seqlens_k,
                .cu_seqlens_q = m.cu_seqlens_q,
                .page_table = m.page_table,
                .page_table_stride = 3,
                .rows = 3,
                .width = 3,
                .page_size = 4};
    t.expand = {.cache_seqlens = expand_cache_seqlens.data(),
                .cu_seqlens_k = expand_cu_k.data(),
                .cu_seqlens_q = expand_cu_q.data(),
                .page_table = expand_table.data(),
                .page_table_stride = 2,
                .rows = 6,
                .width = 2,
                .page_size = 1};
    return t;
  }
  // layers 4: a hybrid-linear model has a full-attention layer then, and both parities occur.
  std::uint64_t checksum(TableKind kind, bool swa = true) {
    GraphForward forward;
    forward.metadata = metadata.args();
    forward.layers = 4;
    forward.swa = swa;
    forward.tables = tables(kind);
    return reference_graph_checksum({&forward, 1}, shape_of(swa), 7);
  }
};

}  // namespace tpjitter::test
