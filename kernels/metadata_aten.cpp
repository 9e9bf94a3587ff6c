// Order and kind of every operation follow the pre-fusion code of SGLang's TRT-LLM MHA backend
// (topk <= 1) under PyTorch 2.11, whose indexing leaves out full slices. Operations that look
// redundant (the second host maximum, add twice) are the original's.
#include "kernels/metadata_aten.h"

#include <stdexcept>

#include "kernels/metadata_steps.h"

namespace tpjitter::kernels {
namespace {

std::int64_t ceil_divide(std::int64_t tokens, std::int64_t divisor) {
  return (tokens + divisor - 1) / divisor;
}

// The longest length of the batch, tokens.
std::int64_t longest_length(TensorOps& ops, DecodePhase phase, const AtenMetadataArgs& args,
                            const Tensor& seq_lens_cpu, const Tensor& cache_seqlens) {
  if (phase == DecodePhase::kDraftDecode) return ops.item(ops.max(cache_seqlens));
  const std::int64_t longest = ops.item(ops.max(seq_lens_cpu));
  if (phase == DecodePhase::kNormalDecode) return longest;
  // Verify and draft-extend compute it again for the page count.
  const bool adds = phase == DecodePhase::kTargetVerify;
  return ops.item(ops.max(seq_lens_cpu)) + (adds ? args.metadata.seqlen_offset : 0);
}

// page_table[:, :P], and swa_page_table[:, :P] where there is one.
void update_page_tables(TensorOps& ops, DecodePhase phase, const AtenMetadataArgs& args,
                        const Tensor& req_pool_indices, std::int64_t pages) {
  const DecodeMetadataArgs& metadata = args.metadata;
  const std::int64_t batch_size = metadata.batch_size;
  const Tensor req_to_token =
      matrix_tensor(metadata.req_to_token, IntType::kInt32, args.pool_rows,
                    metadata.req_to_token_stride, metadata.req_to_token_stride);
  const Tensor rows = ops.unsqueeze(req_pool_indices, 1);
  Tensor columns = ops.slice(
      vector_tensor(args.strided_indices, IntType::kInt64, metadata.max_seq_pages), 0, 0, pages);
  const bool decode = phase == DecodePhase::kNormalDecode || phase == DecodePhase::kDraftDecode;
  if (decode) columns = ops.unsqueeze(columns, 0);
  const Tensor slots = ops.index(req_to_token, rows, columns);  // token slots at page starts
  const Tensor page_table =
      ops.slice(matrix_tensor(metadata.page_table, IntType::kInt32, batch_size,
                              metadata.max_seq_pages, metadata.page_table_stride),
                1, 0, pages);
  ops.copy_(page_table, ops.floor_divide(slots, metadata.page_size));
  if (metadata.swa_page_table == nullptr) return;

  const Tensor full_to_swa =
      vector_tensor(metadata.full_to_swa, IntType::kInt64, args.full_to_swa_len);
  const Tensor flat = ops.reshape(slots, batch_size * pages, kOneDimension);
  const Tensor swa_slots =
      ops.to(ops.reshape(ops.index(full_to_swa, flat), batch_size, pages), IntType::kInt32);
  const Tensor swa_page_table =
      ops.slice(matrix_tensor(metadata.swa_page_table, IntType::kInt32, batch_size,
                              metadata.max_seq_pages, metadata.swa_page_table_stride),
                1, 0, pages);
  ops.copy_(swa_page_table, ops.floor_divide(swa_slots, metadata.page_size));
}

}  // namespace

int rebuild_metadata_aten(TensorOps& ops, DecodePhase phase, const AtenMetadataArgs& args) {
  const DecodeMetadataArgs& metadata = args.metadata;
  const std::int64_t batch_size = metadata.batch_size;
  if (batch_size == 0) return ops.status();
  ops.end_rebuild();  // in case an earlier rebuild threw halfway

  const Tensor seq_lens = ops.slice(
      vector_tensor(metadata.seq_lens, metadata.seq_lens_type, batch_size), 0, 0, batch_size);
  Tensor seq_lens_cpu = vector_tensor(args.seq_lens_cpu, IntType::kInt64, batch_size);
  seq_lens_cpu.on_host = true;
  if (args.static_pages == 0) seq_lens_cpu = ops.slice(seq_lens_cpu, 0, 0, batch_size);
  const Tensor req_pool_indices = ops.slice(
      vector_tensor(metadata.req_pool_indices, metadata.req_pool_indices_type, batch_size), 0, 0,
      batch_size);
  Tensor cache_seqlens = vector_tensor(metadata.cache_seqlens, IntType::kInt32, batch_size);
  if (phase == DecodePhase::kDraftDecode) {
    cache_seqlens = ops.slice(cache_seqlens, 0, 0, batch_size);
  }

  update_cache_seqlens(ops, phase, metadata.seqlen_offset, seq_lens, cache_seqlens);
  const std::int64_t pages =
      args.static_pages > 0
          ? args.static_pages
          : ceil_divide(longest_length(ops, phase, args, seq_lens_cpu, cache_seqlens),
                        metadata.page_size);
  if (pages > metadata.max_seq_pages) {
    throw std::invalid_argument("aten metadata: a length is past max_seq_pages * page_size");
  }
  update_cu_seqlens_k(ops, metadata, cache_seqlens);
  update_cu_seqlens_q(ops, phase, metadata);
  update_page_tables(ops, phase, args, req_pool_indices, pages);
  if (translates_out_cache_loc(metadata)) {
    check_swa_out_length(args);
    update_swa_out_cache_loc(ops, args);
  }
  ops.end_rebuild();
  return ops.status();
}

}  // namespace tpjitter::kernels
