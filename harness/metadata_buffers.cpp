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

kernels::DecodeBodyShape body_shape(const CaseConfig& config, const PlannedPhase& phase,
                                    int world_size) {
  kernels::DecodeBodyShape shape;
  shape.layers = phase.layers;
  shape.world_size = world_size;
  shape.all_reduce_elements =
      std::int64_t{ServingShape::of(config).batch_size} * phase.query_len * config.hidden_size;
  shape.swa = phase.swa;
  return shape;
}

MetadataBuffers::MetadataBuffers(const ServingShape& shape, const PlannedPhase& phase,
                                 kernels::PageColumns columns)
    : shape_(shape), phase_(phase), columns_(columns) {
  const auto rows = static_cast<std::size_t>(shape.batch_size);
  if (phase.inputs == PhaseInputs::kDraftExtend) extend_seq_lens_.resize(rows);
  cache_seqlens_.resize(rows);
  cu_seqlens_k_.resize(rows + 1);
  cu_seqlens_q_.resize(rows + 1);
  page_table_.resize(rows * shape.max_seq_pages);
  if (phase.swa) {
    swa_page_table_.resize(rows * shape.max_seq_pages);
    swa_out_cache_loc_.resize(static_cast<std::size_t>(shape.max_batch) * phase.query_len);
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
  const bool preset = phase_.q_mode == kernels::QueryMode::kPreset;
  for (std::size_t i = 0; i < cu_seqlens_q_.size(); ++i) {
    const auto queries = static_cast<std::int32_t>(i) * phase_.query_len;
    cu_seqlens_q_[i] = preset || i == 0 ? queries : kPoison;
  }
}

kernels::DecodeMetadataArgs MetadataBuffers::args(const ServingState& state,
                                                  const StepInputs& inputs) {
  const std::int64_t rows = shape_.batch_size;
  kernels::DecodeMetadataArgs a;
  a.req_pool_indices = inputs.req_pool_indices.data();
  a.seq_lens = inputs.seq_lens.data();
  a.req_to_token = state.req_to_token().data();
  a.out_cache_loc = inputs.out_cache_loc.data();
  if (phase_.inputs == PhaseInputs::kDraft) {
    a.out_cache_loc = inputs.draft_cache_loc.data() + rows * phase_.draft_pass;
  }
  if (phase_.inputs == PhaseInputs::kDraftExtend) {
    for (std::int64_t i = 0; i < rows; ++i) {
      extend_seq_lens_[i] = std::int64_t{inputs.seq_lens[i]} + phase_.query_len;
    }
    a.seq_lens = extend_seq_lens_.data();
    a.seq_lens_type = kernels::IntType::kInt64;
    a.q_lens = inputs.accept_lens.data();
  }
  a.cache_seqlens = cache_seqlens_.data();
  a.cu_seqlens_k = cu_seqlens_k_.data();
  a.cu_seqlens_q = cu_seqlens_q_.data();
  a.page_table = page_table_.data();
  a.req_to_token_stride = shape_.max_context;
  a.page_table_stride = shape_.max_seq_pages;
  a.num_out_tokens = rows * phase_.query_len;
  a.batch_size = shape_.batch_size;
  a.seqlen_offset = phase_.seqlen_offset;
  a.max_seq_pages = shape_.max_seq_pages;
  a.page_size = shape_.page_size;
  a.q_mode = phase_.q_mode;
  a.q_stride = phase_.q_mode == kernels::QueryMode::kStrided ? phase_.query_len : 0;
  a.page_columns = columns_;
  if (phase_.swa) {
    a.full_to_swa = state.full_to_swa().data();
    a.swa_page_table = swa_page_table_.data();
    a.swa_page_table_stride = shape_.max_seq_pages;
    a.swa_out_cache_loc = swa_out_cache_loc_.data();
    a.swa_out_len = rows * phase_.query_len;
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
    if (got.cu_seqlens_q[row + 1] != expected.cu_seqlens_q[row + 1]) {
      return unequal("cu_seqlens_q", row + 1, got.cu_seqlens_q[row + 1],
                     expected.cu_seqlens_q[row + 1]);
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
