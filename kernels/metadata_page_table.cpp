// The page table on the host, and the operations around the kernel. Order and kind of every
// operation follow SGLang's TRT-LLM MHA backend between the removal of its host sync and the fused
// kernel (topk <= 1); that version has no cumsum draft-extend, which is composed here by analogy.
#include "kernels/metadata_page_table.h"

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <string>

#include "kernels/metadata_steps.h"
#include "kernels/tensor_ops.h"

namespace tpjitter::kernels {
namespace {

std::int64_t load_index(const PageTableArgs& args, std::int64_t row) {
  return args.req_pool_indices_type == IntType::kInt64
             ? static_cast<const std::int64_t*>(args.req_pool_indices)[row]
             : static_cast<const std::int32_t*>(args.req_pool_indices)[row];
}

void check_phase(DecodePhase phase, const DecodeMetadataArgs& metadata) {
  QueryMode q_mode = QueryMode::kPreset;
  if (phase == DecodePhase::kDraftExtendCumsum) q_mode = QueryMode::kCumsum;
  if (phase == DecodePhase::kDraftExtendStrided) q_mode = QueryMode::kStrided;
  if (metadata.q_mode != q_mode) {
    throw std::invalid_argument("page-table metadata: q_mode is not the phase's");
  }
  const bool adds = phase == DecodePhase::kDraftDecode || phase == DecodePhase::kTargetVerify;
  if (!adds && metadata.seqlen_offset != 0) {
    throw std::invalid_argument(
        "page-table metadata: the phase adds nothing to seq_lens, but "
        "seqlen_offset is " +
        std::to_string(metadata.seqlen_offset));
  }
}

void check_arguments(DecodePhase phase, const PageTableMetadataArgs& args) {
  const DecodeMetadataArgs& metadata = args.metadata;
  check_phase(phase, metadata);
  if (args.known_seq_lens != nullptr) check_static_bound(metadata, args.known_seq_lens);
  if (!translates_out_cache_loc(metadata)) return;
  if (metadata.full_to_swa == nullptr) {
    throw std::invalid_argument("page-table metadata: swa_out_cache_loc without full_to_swa");
  }
  check_swa_out_length(args);
}

}  // namespace

PageTableArgs page_table_args(const DecodeMetadataArgs& metadata) {
  return {.req_pool_indices = metadata.req_pool_indices,
          .cache_seqlens = metadata.cache_seqlens,
          .req_to_token = metadata.req_to_token,
          .full_to_swa = metadata.full_to_swa,
          .page_table = metadata.page_table,
          .swa_page_table = metadata.swa_page_table,
          .req_to_token_stride = metadata.req_to_token_stride,
          .page_table_stride = metadata.page_table_stride,
          .swa_page_table_stride = metadata.swa_page_table_stride,
          .batch_size = metadata.batch_size,
          .max_seq_pages = metadata.max_seq_pages,
          .page_size = metadata.page_size,
          .req_pool_indices_type = metadata.req_pool_indices_type};
}

bool is_valid(const PageTableArgs& args) {
  if (args.batch_size < 0 || args.max_seq_pages < 0 || args.page_size < 1) return false;
  if (!std::has_single_bit(static_cast<std::uint32_t>(args.page_size))) return false;
  if (args.req_pool_indices == nullptr || args.cache_seqlens == nullptr ||
      args.req_to_token == nullptr || args.page_table == nullptr) {
    return false;
  }
  return args.swa_page_table == nullptr || args.full_to_swa != nullptr;
}

void reference_page_table(const PageTableArgs& args) {
  if (args.batch_size == 0) return;
  if (!is_valid(args)) {
    throw std::invalid_argument("page table: page_size is no power of two, or an array is missing");
  }
  for (std::int64_t row = 0; row < args.batch_size; ++row) {
    const std::int32_t* slots =
        args.req_to_token + load_index(args, row) * args.req_to_token_stride;
    const std::int64_t tokens = std::max(args.cache_seqlens[row], 0);
    const std::int64_t columns =
        std::min<std::int64_t>((tokens + args.page_size - 1) / args.page_size, args.max_seq_pages);
    for (std::int64_t column = 0; column < columns; ++column) {
      const std::int32_t slot = slots[column * args.page_size];
      args.page_table[row * args.page_table_stride + column] = slot / args.page_size;
      if (args.swa_page_table == nullptr) continue;
      const std::int64_t swa_slot = slot < 0 ? -1 : args.full_to_swa[slot];
      args.swa_page_table[row * args.swa_page_table_stride + column] =
          swa_slot < 0 ? -1 : static_cast<std::int32_t>(swa_slot / args.page_size);
    }
  }
}

void check_static_bound(const DecodeMetadataArgs& metadata, const std::int64_t* seq_lens) {
  const std::int64_t bound = std::int64_t{metadata.max_seq_pages} * metadata.page_size;
  for (std::int64_t row = 0; row < metadata.batch_size; ++row) {
    const std::int64_t tokens = seq_lens[row] + metadata.seqlen_offset;
    if (tokens <= bound) continue;
    throw std::invalid_argument("page table: row " + std::to_string(row) + " has " +
                                std::to_string(tokens) + " tokens, past the static bound of " +
                                std::to_string(bound) + " (" +
                                std::to_string(metadata.max_seq_pages) + " pages of " +
                                std::to_string(metadata.page_size) + ")");
  }
}

int rebuild_metadata_page_table(TensorOps& ops, DecodePhase phase,
                                const PageTableMetadataArgs& args) {
  const DecodeMetadataArgs& metadata = args.metadata;
  const std::int64_t batch_size = metadata.batch_size;
  if (batch_size == 0) return ops.status();
  check_arguments(phase, args);
  ops.end_rebuild();  // in case an earlier rebuild threw halfway

  const Tensor seq_lens = ops.slice(
      vector_tensor(metadata.seq_lens, metadata.seq_lens_type, batch_size), 0, 0, batch_size);
  ops.slice(vector_tensor(metadata.req_pool_indices, metadata.req_pool_indices_type, batch_size), 0,
            0, batch_size);
  Tensor cache_seqlens = vector_tensor(metadata.cache_seqlens, IntType::kInt32, batch_size);
  if (phase == DecodePhase::kDraftDecode) {
    cache_seqlens = ops.slice(cache_seqlens, 0, 0, batch_size);
  }
  update_cache_seqlens(ops, phase, metadata.seqlen_offset, seq_lens, cache_seqlens);
  update_cu_seqlens_k(ops, metadata, cache_seqlens);
  update_cu_seqlens_q(ops, phase, metadata);
  ops.page_table(page_table_args(metadata));
  if (translates_out_cache_loc(metadata)) update_swa_out_cache_loc(ops, args);
  ops.end_rebuild();
  return ops.status();
}

}  // namespace tpjitter::kernels
