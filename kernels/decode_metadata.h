// Attention metadata of one decode step: the arguments that every path takes and the reference
// that every path must equal. CUDA-free; pointers are device pointers on a GPU, host pointers on
// the host backend and in the reference.
#pragma once

#include <cstdint>

namespace tpjitter::kernels {

// Value = bytes. kUint8: attention masks only; indices and lengths are int32 or int64.
enum class IntType : std::int32_t { kUint8 = 1, kInt32 = 4, kInt64 = 8 };

// How cu_seqlens_q is made.
enum class QueryMode : std::int32_t {
  kPreset = 0,   // not written: the caller has preset it (decode, target-verify)
  kCumsum = 1,   // cu_seqlens_q[1:] = inclusive prefix sum of q_lens
  kStrided = 2,  // cu_seqlens_q[1 + i] = (i + 1) * q_stride
};

// Which page-table columns a path writes.
enum class PageColumns : std::int32_t {
  kAll = 0,  // all max_seq_pages columns of each row, whatever its length
  // min(ceil(cache_seqlens / page_size), max_seq_pages) columns; the rest keep their value
  kLive = 1,
};

struct DecodeMetadataArgs {
  // Inputs.
  const void* req_pool_indices = nullptr;       // [batch_size] rows of req_to_token
  const void* seq_lens = nullptr;               // [batch_size] tokens, before seqlen_offset
  const std::int32_t* req_to_token = nullptr;   // [pool, req_to_token_stride] slot of each token
  const void* q_lens = nullptr;                 // [batch_size] tokens; kCumsum only
  const std::int64_t* full_to_swa = nullptr;    // [slots + page_size + 1], last is -1; null: no SWA
  const std::int64_t* out_cache_loc = nullptr;  // [num_out_tokens] slots to write; may be null
  // Outputs. Element 0 of both cu_seqlens is never written: the caller presets it to 0.
  std::int32_t* cache_seqlens = nullptr;      // [batch_size] = int32(seq_lens + seqlen_offset)
  std::int32_t* cu_seqlens_k = nullptr;       // [batch_size + 1] prefix sums of cache_seqlens
  std::int32_t* cu_seqlens_q = nullptr;       // [batch_size + 1]; null with kPreset
  std::int32_t* page_table = nullptr;         // [batch_size, page_table_stride] slot / page_size
  std::int32_t* swa_page_table = nullptr;     // [batch_size, swa_page_table_stride]; null: no SWA
  std::int64_t* swa_out_cache_loc = nullptr;  // [swa_out_len]; null: not wanted
  // Strides in elements, sizes in elements, lengths in tokens.
  std::int64_t req_to_token_stride = 0;
  std::int64_t page_table_stride = 0;
  std::int64_t swa_page_table_stride = 0;
  std::int64_t swa_out_len = 0;  // view length; [num_out_tokens, swa_out_len) becomes 0
  // live prefix of out_cache_loc; more than swa_out_len: cut to it
  std::int64_t num_out_tokens = 0;
  std::int32_t batch_size = 0;  // 0: nothing is launched, nothing written
  std::int32_t seqlen_offset = 0;
  std::int32_t max_seq_pages = 0;  // static width
  std::int32_t page_size = 1;      // a power of two
  std::int32_t q_stride = 0;       // kStrided only
  QueryMode q_mode = QueryMode::kPreset;
  PageColumns page_columns = PageColumns::kAll;
  IntType req_pool_indices_type = IntType::kInt64;
  IntType seq_lens_type = IntType::kInt32;
  IntType q_lens_type = IntType::kInt32;
};

// The obvious version, on host memory. Semantics of the fused kernel of the seeds (SGLang,
// trtllm_mha_graph_metadata): a page id is slot / page_size truncated towards zero (slot -1 gives
// page 0); the SWA page id is -1 for a negative slot or a negative mapping; swa_out_cache_loc keeps
// a negative location as -1 and is 0 past the live prefix.
void reference_decode_metadata(const DecodeMetadataArgs& args);

// Throws std::invalid_argument that says needed and available where a mapping does not have an entry
// for each of num_slots slots, one for each of the padding page's, and a last one of -1, which is
// what index -1 wraps to in the op-by-op path. `mapping`: host memory, [length].
void check_swa_mapping(const std::int64_t* mapping, std::int64_t length, std::int64_t num_slots,
                       std::int32_t page_size);

}  // namespace tpjitter::kernels
