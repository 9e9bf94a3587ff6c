// Metadata in FlashInfer's form ("Pattern B"): kv_indptr, kv_indices and qo_indptr in place of page
// tables, token granular. One launch computes the prefix sums, copies the slots of all requests one
// after the other, and translates them for a sliding-window wrapper. The host knows no length and
// no total: the only bound is the capacity of kv_indices.
//
// The fills of the engine, as fields of KvIndicesArgs (q: draft tokens a request):
//   decode            sliding_window = kNoWindow, seqlen_offset = 0
//   sliding window    sliding_window = w: len = min(tokens, w + 1), start = tokens - len; with
//                     full_to_swa. One fill for each of the two wrappers, both in one launch.
//   target-verify     seqlen_offset = q_stride = q
//   draft-extend v2   q_stride = num_tokens_per_req, lengths unchanged
//   draft decode      step t = 0...: seqlen_offset = t + 1, buffers of its own (draft_step_fills)
#pragma once

#include <cstdint>
#include <span>

#include "kernels/decode_metadata.h"
#include "kernels/metadata_aten.h"  // DecodePhase

struct CUstream_st;  // *cudaStream_t

namespace tpjitter::kernels {

inline constexpr std::int32_t kNoWindow = -1;
inline constexpr int kMaxKvIndicesFills = 16;  // in one launch

// Buffers of one attention wrapper, made once for the largest batch. Wrappers of all batch sizes
// alias the same prefix, and entries past the batch keep their value.
struct KvIndicesWrapper {
  std::int32_t* kv_indptr = nullptr;   // [batch_size + 1]; entry 0 is preset to 0, never written
  std::int32_t* kv_indices = nullptr;  // [capacity] slots; row p: kv_indptr[p] to kv_indptr[p + 1]
  // [batch_size], preset to 1 (pages of one token) and never rewritten: no fill reads or writes it,
  // the attention's plan does.
  const std::int32_t* kv_last_page_len = nullptr;
  std::int32_t* qo_indptr = nullptr;  // [batch_size + 1], entry 0 too: i * q_stride; null: decode
  std::int64_t capacity = 0;          // entries of kv_indices
};

// Slots that the sliding layers write: each location translated, a negative one -1, and 0 from
// num_locations to length. Of a window's fill, with full_to_swa.
struct SwaOutCacheLoc {
  const std::int64_t* out_cache_loc = nullptr;  // [num_locations]
  std::int64_t* swa_out_cache_loc = nullptr;    // [length]; null: not wanted
  std::int64_t num_locations = 0;
  std::int64_t length = 0;
};

// One fill. A row has tokens = seq_lens + seqlen_offset (0 if negative), and
//   kv_indices[kv_indptr[p] + j] = req_to_token[req_pool_indices[p], start_p + j], j < len_p.
// A row that does not fit into the capacity is cut there, never written past; kv_indptr still says
// what would have been needed, so that kv_indptr[batch_size] > capacity shows it. Slots keep their
// sign, as in the engine; translated, a negative one is -1. Columns past the stride of req_to_token
// are not read: -1.
struct KvIndicesArgs {
  const void* req_pool_indices = nullptr;      // [batch_size] rows of req_to_token
  const void* seq_lens = nullptr;              // [batch_size] tokens, before seqlen_offset
  const void* kv_start_idx = nullptr;          // [batch_size] first token of a row; null: 0, or
                                               // from the window. Not together with a window
  const std::int32_t* req_to_token = nullptr;  // [pool, req_to_token_stride] slot of each token
  const std::int64_t* full_to_swa = nullptr;   // [slots + ...]; null: slots are not translated
  KvIndicesWrapper wrapper;
  SwaOutCacheLoc swa_out = {};
  std::int64_t req_to_token_stride = 0;     // elements
  std::int32_t batch_size = 0;              // 0: nothing is written
  std::int32_t seqlen_offset = 0;           // tokens
  std::int32_t sliding_window = kNoWindow;  // tokens before the last one
  std::int32_t q_stride = 0;                // query tokens a request; with qo_indptr
  IntType req_pool_indices_type = IntType::kInt64;
  IntType seq_lens_type = IntType::kInt64;
  IntType kv_start_idx_type = IntType::kInt64;
};

// The full-attention fill of a phase, from the metadata's inputs; its outputs are not used. Throws
// std::invalid_argument for the cumsum draft-extend, which this form does not have.
KvIndicesArgs kv_indices_args(DecodePhase phase, const DecodeMetadataArgs& metadata,
                              const KvIndicesWrapper& wrapper);

// The same fill for the sliding-window wrapper.
KvIndicesArgs with_sliding_window(KvIndicesArgs full, std::int32_t sliding_window,
                                  const std::int64_t* full_to_swa, const KvIndicesWrapper& wrapper);

// fills[t], t = 0...: what draft step t + 1 of fills.size() reads, with one branch a request: the
// prefix and the t + 1 tokens drafted since, from `first` with its seqlen_offset raised by t + 1.
// Buffers are [steps, kv_indptr_stride] and [steps, kv_indices_stride], strides in elements. The
// engine sums kv_indptr from positions, which equal seq_lens here.
void draft_step_fills(const KvIndicesArgs& first, std::int64_t kv_indptr_stride,
                      std::int64_t kv_indices_stride, std::span<KvIndicesArgs> fills);

bool is_valid(const KvIndicesArgs& args);

// The obvious version, on host memory. Throws std::invalid_argument for arguments that are not
// valid.
void reference_kv_indices(const KvIndicesArgs& args);

// Throws std::invalid_argument that names row, needed and available if a row of known length does
// not fit into kv_indices, into a row of req_to_token, or into the int32 of kv_indptr.
// `seq_lens`: host memory, [batch_size], before seqlen_offset.
void check_kv_indices(const KvIndicesArgs& args, const std::int64_t* seq_lens);

// All fills in one launch; none if every batch is empty. Returns a cudaError_t:
// cudaErrorInvalidValue for more than kMaxKvIndicesFills, or arguments that are not valid.
// Capturable. The fills must not write to each other's buffers.
int launch_kv_indices(std::span<const KvIndicesArgs> fills, CUstream_st* stream);
int launch_kv_indices(const KvIndicesArgs& fill, CUstream_st* stream);

}  // namespace tpjitter::kernels
