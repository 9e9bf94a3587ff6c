// What a layer of the decode body reads, as views that the host reference and the GPU kernels fold
// alike: sets of paged tables, index lists, locations. Internal to kernels/.
#pragma once

#include <cstdint>

#include "kernels/decode_body.h"

namespace tpjitter::kernels {

// One set of paged tables; the tags of a second set in the same layer are kSecondSet higher.
struct PagedView {
  const std::int32_t* cache_seqlens = nullptr;
  const std::int32_t* cu_seqlens_k = nullptr;
  const std::int32_t* cu_seqlens_q = nullptr;
  const std::int32_t* page_table = nullptr;
  std::int64_t stride = 0;
  std::int32_t rows = 0;
  std::int32_t width = 0;
  std::int32_t page_size = 1;
  FoldTag table_tag = FoldTag::kPageTable;
  std::uint32_t first_tag = 0;  // 0 or kSecondSet
};

TPJITTER_HOST_DEVICE inline PagedView paged_view(const DecodeMetadataArgs& m, bool sliding) {
  PagedView view;
  view.cache_seqlens = m.cache_seqlens;
  view.cu_seqlens_k = m.cu_seqlens_k;
  view.cu_seqlens_q = m.cu_seqlens_q;
  view.page_table = sliding ? m.swa_page_table : m.page_table;
  view.stride = sliding ? m.swa_page_table_stride : m.page_table_stride;
  view.rows = m.batch_size;
  view.width = m.max_seq_pages;
  view.page_size = m.page_size;
  view.table_tag = sliding ? FoldTag::kSwaPageTable : FoldTag::kPageTable;
  return view;
}

TPJITTER_HOST_DEVICE inline PagedView paged_view(const TopkTable& table) {
  PagedView view;
  view.cache_seqlens = table.cache_seqlens;
  view.cu_seqlens_k = table.cu_seqlens_k;
  view.cu_seqlens_q = table.cu_seqlens_q;
  view.page_table = table.page_table;
  view.stride = table.page_table_stride;
  view.rows = table.rows;
  view.width = table.width;
  view.page_size = table.page_size;
  return view;
}

TPJITTER_HOST_DEVICE inline PagedView as_second(PagedView view) {
  view.first_tag = kSecondSet;
  return view;
}

TPJITTER_HOST_DEVICE inline FoldTag shifted(FoldTag tag, std::uint32_t first_tag) {
  return static_cast<FoldTag>(static_cast<std::uint32_t>(tag) + first_tag);
}

TPJITTER_HOST_DEVICE inline std::int32_t live_columns(const PagedView& view, std::int32_t length) {
  const std::int32_t pages = (length + view.page_size - 1) / view.page_size;
  return pages < view.width ? pages : view.width;
}

// Lengths and prefix sums of a row.
TPJITTER_HOST_DEVICE inline std::uint64_t fold_row(const PagedView& view, std::int32_t row) {
  const auto at = static_cast<std::uint64_t>(row);
  return fold(shifted(FoldTag::kCacheSeqlens, view.first_tag), at, view.cache_seqlens[row]) +
         fold(shifted(FoldTag::kCuSeqlensK, view.first_tag), at, view.cu_seqlens_k[row + 1]) +
         fold(shifted(FoldTag::kCuSeqlensQ, view.first_tag), at, view.cu_seqlens_q[row + 1]);
}

TPJITTER_HOST_DEVICE inline std::uint64_t fold_page(const PagedView& view, std::int32_t row,
                                                    std::int32_t column) {
  const std::uint64_t position =
      static_cast<std::uint64_t>(row) * static_cast<std::uint64_t>(view.width) +
      static_cast<std::uint64_t>(column);
  return fold(shifted(view.table_tag, view.first_tag), position,
              view.page_table[row * view.stride + column]);
}

// An index list; the tags of the sliding one follow those of the full one.
TPJITTER_HOST_DEVICE inline std::uint64_t fold_kv_row(const KvIndicesWrapper& kv, bool sliding,
                                                      std::int32_t row) {
  const auto at = static_cast<std::uint64_t>(row);
  std::uint64_t sum =
      fold(sliding ? FoldTag::kSwaKvIndptr : FoldTag::kKvIndptr, at, kv.kv_indptr[row + 1]);
  if (kv.qo_indptr != nullptr) {
    sum += fold(sliding ? FoldTag::kSwaQoIndptr : FoldTag::kQoIndptr, at, kv.qo_indptr[row + 1]);
  }
  if (kv.kv_last_page_len != nullptr) {
    sum += fold(sliding ? FoldTag::kSwaKvLastPageLen : FoldTag::kKvLastPageLen, at,
                kv.kv_last_page_len[row]);
  }
  return sum;
}

// Entries of kv_indices that an attention reads: below the last prefix sum, and the capacity.
TPJITTER_HOST_DEVICE inline std::int64_t live_entries(const KvIndicesWrapper& kv,
                                                      std::int32_t batch_size) {
  if (batch_size < 1) return 0;
  const std::int64_t entries = kv.kv_indptr[batch_size];
  return entries < kv.capacity ? entries : kv.capacity;
}

TPJITTER_HOST_DEVICE inline std::uint64_t fold_kv_entry(const KvIndicesWrapper& kv, bool sliding,
                                                        std::int64_t entry) {
  return fold(sliding ? FoldTag::kSwaKvIndices : FoldTag::kKvIndices,
              static_cast<std::uint64_t>(entry), kv.kv_indices[entry]);
}

struct LocationView {
  const std::int64_t* locations = nullptr;
  std::int64_t count = 0;
  FoldTag tag = FoldTag::kOutCacheLoc;
};

// The live prefix of out_cache_loc, or all of swa_out_cache_loc's view.
TPJITTER_HOST_DEVICE inline LocationView location_view(const DecodeMetadataArgs& m, bool sliding,
                                                       std::uint32_t first_tag = 0) {
  return {sliding ? m.swa_out_cache_loc : m.out_cache_loc,
          sliding ? m.swa_out_len : m.num_out_tokens,
          shifted(sliding ? FoldTag::kSwaOutCacheLoc : FoldTag::kOutCacheLoc, first_tag)};
}

}  // namespace tpjitter::kernels
