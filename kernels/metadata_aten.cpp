// Order and kind of every operation follow the pre-fusion code of SGLang's TRT-LLM MHA backend
// (topk <= 1) under PyTorch 2.11, whose indexing leaves out full slices. Operations that look
// redundant (the second host maximum, add twice) are the original's.
#include "kernels/metadata_aten.h"

#include <stdexcept>

namespace tpjitter::kernels {
namespace {

std::int64_t ceil_divide(std::int64_t tokens, std::int64_t divisor) {
  return (tokens + divisor - 1) / divisor;
}

bool is_draft_extend(DecodePhase phase) {
  return phase == DecodePhase::kDraftExtendCumsum || phase == DecodePhase::kDraftExtendStrided;
}

// cache_seqlens from seq_lens, and the longest length of the batch, tokens.
std::int64_t update_seqlens(TensorOps& ops, DecodePhase phase, const AtenMetadataArgs& args,
                            const Tensor& seq_lens, const Tensor& seq_lens_cpu,
                            const Tensor& cache_seqlens) {
  const std::int64_t offset = args.metadata.seqlen_offset;
  if (phase == DecodePhase::kDraftDecode) {
    // The backend is given the draft step and adds 1 itself, also at step 0.
    const Tensor at_step = ops.add(seq_lens, offset - 1);
    ops.copy_(cache_seqlens, ops.add(at_step, 1));
    return ops.item(ops.max(cache_seqlens));
  }
  if (phase == DecodePhase::kTargetVerify) {
    ops.copy_(cache_seqlens, ops.add(seq_lens, offset));
  } else {
    ops.copy_(cache_seqlens, seq_lens);
  }
  const std::int64_t longest = ops.item(ops.max(seq_lens_cpu));
  if (phase == DecodePhase::kNormalDecode) return longest;
  // Verify and draft-extend compute it again for the page count.
  return ops.item(ops.max(seq_lens_cpu)) + (phase == DecodePhase::kTargetVerify ? offset : 0);
}

void update_cu_seqlens_k(TensorOps& ops, const DecodeMetadataArgs& metadata,
                         const Tensor& cache_seqlens) {
  const Tensor whole =
      vector_tensor(metadata.cu_seqlens_k, IntType::kInt32, metadata.batch_size + 1);
  const Tensor tail = ops.slice(whole, 0, 1, metadata.batch_size + 1);
  ops.copy_(tail, ops.cumsum(cache_seqlens, IntType::kInt32));
}

void update_cu_seqlens_q(TensorOps& ops, DecodePhase phase, const DecodeMetadataArgs& metadata) {
  const std::int64_t batch_size = metadata.batch_size;
  const Tensor whole = vector_tensor(metadata.cu_seqlens_q, IntType::kInt32, batch_size + 1);
  if (phase == DecodePhase::kDraftExtendCumsum) {
    const Tensor q_lens = ops.slice(
        vector_tensor(metadata.q_lens, metadata.q_lens_type, batch_size), 0, 0, batch_size);
    const Tensor tail = ops.slice(whole, 0, 1, batch_size + 1);
    ops.copy_(tail, ops.cumsum(q_lens, IntType::kInt32));
    return;
  }
  const Tensor tail = ops.slice(whole, 0, 1, batch_size + 1);
  const std::int64_t stride = metadata.q_stride;
  ops.copy_(tail, ops.arange(stride, batch_size * stride + 1, stride, IntType::kInt32));
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

void update_swa_out_cache_loc(TensorOps& ops, const AtenMetadataArgs& args) {
  const DecodeMetadataArgs& metadata = args.metadata;
  const std::int64_t length =
      args.swa_out_buffer_len > 0 ? args.swa_out_buffer_len : metadata.swa_out_len;
  const std::int64_t live = metadata.num_out_tokens;
  if (live > length) {
    throw std::invalid_argument("aten metadata: out_cache_loc is longer than swa_out_cache_loc");
  }
  const Tensor buffer = vector_tensor(metadata.swa_out_cache_loc, IntType::kInt64, length);
  ops.zero_(ops.slice(buffer, 0, live, length));
  const Tensor destination = ops.slice(buffer, 0, 0, live);
  const Tensor full_to_swa =
      vector_tensor(metadata.full_to_swa, IntType::kInt64, args.full_to_swa_len);
  const Tensor locations = vector_tensor(metadata.out_cache_loc, IntType::kInt64, live);
  ops.copy_(destination, ops.index(full_to_swa, locations));
}

}  // namespace

int rebuild_metadata_aten(TensorOps& ops, DecodePhase phase, const AtenMetadataArgs& args) {
  const DecodeMetadataArgs& metadata = args.metadata;
  const std::int64_t batch_size = metadata.batch_size;
  if (batch_size == 0) return ops.status();
  ops.end_rebuild();  // in case an earlier rebuild threw halfway

  const Tensor seq_lens = ops.slice(
      vector_tensor(metadata.seq_lens, metadata.seq_lens_type, batch_size), 0, 0, batch_size);
  Tensor host_lens = vector_tensor(args.seq_lens_cpu, IntType::kInt64, batch_size);
  host_lens.on_host = true;
  const Tensor seq_lens_cpu = ops.slice(host_lens, 0, 0, batch_size);
  const Tensor req_pool_indices = ops.slice(
      vector_tensor(metadata.req_pool_indices, metadata.req_pool_indices_type, batch_size), 0, 0,
      batch_size);
  Tensor cache_seqlens = vector_tensor(metadata.cache_seqlens, IntType::kInt32, batch_size);
  if (phase == DecodePhase::kDraftDecode) {
    cache_seqlens = ops.slice(cache_seqlens, 0, 0, batch_size);
  }

  const std::int64_t longest =
      update_seqlens(ops, phase, args, seq_lens, seq_lens_cpu, cache_seqlens);
  const std::int64_t pages = ceil_divide(longest, metadata.page_size);
  if (pages > metadata.max_seq_pages) {
    throw std::invalid_argument("aten metadata: a length is past max_seq_pages * page_size");
  }
  update_cu_seqlens_k(ops, metadata, cache_seqlens);
  if (is_draft_extend(phase)) update_cu_seqlens_q(ops, phase, metadata);
  update_page_tables(ops, phase, args, req_pool_indices, pages);
  if (metadata.swa_out_cache_loc != nullptr && metadata.out_cache_loc != nullptr) {
    update_swa_out_cache_loc(ops, args);
  }
  ops.end_rebuild();
  return ops.status();
}

}  // namespace tpjitter::kernels
