#include "harness/metadata_buffers.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

namespace tpjitter {
namespace {

constexpr std::int32_t kPoison = -7;

std::string unequal(const char* what, std::int64_t index, std::int64_t got, std::int64_t expected) {
  return fmt::format("{}[{}] is {}, expected {}", what, index, got, expected);
}

}  // namespace

kernels::DecodeBodyShape body_shape(const CaseConfig& config, int world_size) {
  kernels::DecodeBodyShape shape;
  shape.layers = static_cast<std::int32_t>(config.layers);
  shape.world_size = world_size;
  shape.all_reduce_elements = ServingShape::of(config).batch_size * config.hidden_size;
  shape.swa = config.swa;
  return shape;
}

MetadataBuffers::MetadataBuffers(const ServingShape& shape, kernels::PageColumns columns)
    : shape_(shape), columns_(columns) {
  const auto rows = static_cast<std::size_t>(shape.batch_size);
  cache_seqlens_.resize(rows);
  cu_seqlens_k_.resize(rows + 1);
  cu_seqlens_q_.resize(rows + 1);
  page_table_.resize(rows * shape.max_seq_pages);
  if (shape.swa) {
    swa_page_table_.resize(rows * shape.max_seq_pages);
    swa_out_cache_loc_.resize(shape.max_batch);
  }
  poison();
}

void MetadataBuffers::poison() {
  std::fill(cache_seqlens_.begin(), cache_seqlens_.end(), kPoison);
  std::fill(cu_seqlens_k_.begin(), cu_seqlens_k_.end(), kPoison);
  std::fill(page_table_.begin(), page_table_.end(), kPoison);
  std::fill(swa_page_table_.begin(), swa_page_table_.end(), kPoison);
  std::fill(swa_out_cache_loc_.begin(), swa_out_cache_loc_.end(), kPoison);
  cu_seqlens_k_[0] = 0;  // preset, never written by a path
  for (std::size_t i = 0; i < cu_seqlens_q_.size(); ++i) {
    cu_seqlens_q_[i] = static_cast<std::int32_t>(i);  // decode: one query token a row, preset
  }
}

kernels::DecodeMetadataArgs MetadataBuffers::args(const ServingState& state,
                                                  const StepInputs& inputs) {
  kernels::DecodeMetadataArgs a;
  a.req_pool_indices = inputs.req_pool_indices.data();
  a.seq_lens = inputs.seq_lens.data();
  a.req_to_token = state.req_to_token().data();
  a.out_cache_loc = inputs.out_cache_loc.data();
  a.cache_seqlens = cache_seqlens_.data();
  a.cu_seqlens_k = cu_seqlens_k_.data();
  a.cu_seqlens_q = cu_seqlens_q_.data();
  a.page_table = page_table_.data();
  a.req_to_token_stride = shape_.max_context;
  a.page_table_stride = shape_.max_seq_pages;
  a.num_out_tokens = shape_.batch_size;
  a.batch_size = shape_.batch_size;
  a.max_seq_pages = shape_.max_seq_pages;
  a.page_size = shape_.page_size;
  a.page_columns = columns_;
  if (shape_.swa) {
    a.full_to_swa = state.full_to_swa().data();
    a.swa_page_table = swa_page_table_.data();
    a.swa_page_table_stride = shape_.max_seq_pages;
    a.swa_out_cache_loc = swa_out_cache_loc_.data();
    a.swa_out_len = shape_.batch_size;
  }
  return a;
}

std::string MetadataBuffers::difference(const kernels::DecodeMetadataArgs& got,
                                        const kernels::DecodeMetadataArgs& expected) {
  for (std::int32_t row = 0; row < expected.batch_size; ++row) {
    if (got.cache_seqlens[row] != expected.cache_seqlens[row]) {
      return unequal("cache_seqlens", row, got.cache_seqlens[row], expected.cache_seqlens[row]);
    }
    if (got.cu_seqlens_k[row + 1] != expected.cu_seqlens_k[row + 1]) {
      return unequal("cu_seqlens_k", row + 1, got.cu_seqlens_k[row + 1],
                     expected.cu_seqlens_k[row + 1]);
    }
    const std::int32_t pages =
        (expected.cache_seqlens[row] + expected.page_size - 1) / expected.page_size;
    const std::int32_t live = std::min(pages, expected.max_seq_pages);
    for (std::int32_t column = 0; column < live; ++column) {
      const auto at = row * expected.page_table_stride + column;
      if (got.page_table[at] != expected.page_table[at]) {
        return unequal("page_table", at, got.page_table[at], expected.page_table[at]);
      }
      if (expected.swa_page_table != nullptr &&
          got.swa_page_table[at] != expected.swa_page_table[at]) {
        return unequal("swa_page_table", at, got.swa_page_table[at], expected.swa_page_table[at]);
      }
    }
  }
  for (std::int64_t i = 0; i < expected.swa_out_len; ++i) {
    if (got.swa_out_cache_loc[i] != expected.swa_out_cache_loc[i]) {
      return unequal("swa_out_cache_loc", i, got.swa_out_cache_loc[i],
                     expected.swa_out_cache_loc[i]);
    }
  }
  return {};
}

}  // namespace tpjitter
