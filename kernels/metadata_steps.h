// The steps that the op-by-op paths share (metadata_aten.cpp, metadata_page_table.cpp): same
// operations in the same order, as in SGLang's TRT-LLM MHA backend. Internal to kernels/.
#pragma once

#include <cstdint>
#include <stdexcept>

#include "kernels/decode_metadata.h"
#include "kernels/metadata_aten.h"  // DecodePhase
#include "kernels/tensor_ops.h"

namespace tpjitter::kernels {

inline void update_cache_seqlens(TensorOps& ops, DecodePhase phase, std::int64_t seqlen_offset,
                                 const Tensor& seq_lens, const Tensor& cache_seqlens) {
  if (phase == DecodePhase::kDraftDecode) {
    // The backend is given the draft step and adds 1 itself, also at step 0.
    ops.copy_(cache_seqlens, ops.add(ops.add(seq_lens, seqlen_offset - 1), 1));
  } else if (phase == DecodePhase::kTargetVerify) {
    ops.copy_(cache_seqlens, ops.add(seq_lens, seqlen_offset));
  } else {
    ops.copy_(cache_seqlens, seq_lens);
  }
}

// Entries 1 and on of a cu_seqlens array.
inline Tensor after_first(TensorOps& ops, std::int32_t* cu_seqlens, std::int64_t batch_size) {
  return ops.slice(vector_tensor(cu_seqlens, IntType::kInt32, batch_size + 1), 0, 1,
                   batch_size + 1);
}

inline void update_cu_seqlens_k(TensorOps& ops, const DecodeMetadataArgs& metadata,
                                const Tensor& cache_seqlens) {
  const Tensor tail = after_first(ops, metadata.cu_seqlens_k, metadata.batch_size);
  ops.copy_(tail, ops.cumsum(cache_seqlens, IntType::kInt32));
}

// Draft-extend only: elsewhere cu_seqlens_q is preset.
inline void update_cu_seqlens_q(TensorOps& ops, DecodePhase phase,
                                const DecodeMetadataArgs& metadata) {
  const std::int64_t batch_size = metadata.batch_size;
  if (phase == DecodePhase::kDraftExtendCumsum) {
    const Tensor q_lens = ops.slice(
        vector_tensor(metadata.q_lens, metadata.q_lens_type, batch_size), 0, 0, batch_size);
    const Tensor tail = after_first(ops, metadata.cu_seqlens_q, batch_size);
    ops.copy_(tail, ops.cumsum(q_lens, IntType::kInt32));
  } else if (phase == DecodePhase::kDraftExtendStrided) {
    const std::int64_t stride = metadata.q_stride;
    const Tensor tail = after_first(ops, metadata.cu_seqlens_q, batch_size);
    ops.copy_(tail, ops.arange(stride, batch_size * stride + 1, stride, IntType::kInt32));
  }
}

inline bool translates_out_cache_loc(const DecodeMetadataArgs& metadata) {
  return metadata.swa_out_cache_loc != nullptr && metadata.out_cache_loc != nullptr;
}

// `Args`: AtenMetadataArgs or PageTableMetadataArgs, which name these sizes alike.
template <class Args>
std::int64_t swa_out_length(const Args& args) {
  return args.swa_out_buffer_len > 0 ? args.swa_out_buffer_len : args.metadata.swa_out_len;
}

template <class Args>
void check_swa_out_length(const Args& args) {
  if (args.metadata.num_out_tokens > swa_out_length(args)) {
    throw std::invalid_argument("decode metadata: out_cache_loc is longer than swa_out_cache_loc");
  }
}

template <class Args>
void update_swa_out_cache_loc(TensorOps& ops, const Args& args) {
  const DecodeMetadataArgs& metadata = args.metadata;
  const std::int64_t length = swa_out_length(args);
  const std::int64_t live = metadata.num_out_tokens;
  const Tensor buffer = vector_tensor(metadata.swa_out_cache_loc, IntType::kInt64, length);
  ops.zero_(ops.slice(buffer, 0, live, length));
  const Tensor destination = ops.slice(buffer, 0, 0, live);
  const Tensor full_to_swa =
      vector_tensor(metadata.full_to_swa, IntType::kInt64, args.full_to_swa_len);
  const Tensor locations = vector_tensor(metadata.out_cache_loc, IntType::kInt64, live);
  ops.copy_(destination, ops.index(full_to_swa, locations));
}

}  // namespace tpjitter::kernels
