// State metadata of linear-attention layers (mamba, gated delta net) in a graph: which state slot a
// row reads and writes, and where its queries begin. Rebuilt beside the page tables of the model's
// full-attention layers, for the same batch. One engine function serves capture and replay, and
// only decode and target-verify: a draft-extend graph must not use these layers.
//
// The hard thing is the number of padded rows. The engine counts lengths that equal the fill value
// when it is not told, which takes live rows of that length for padding; see count_fill_lengths.
#pragma once

#include <cstdint>

#include "kernels/decode_metadata.h"
#include "kernels/metadata_aten.h"  // DecodePhase

struct CUstream_st;  // *cudaStream_t

namespace tpjitter::kernels {

class TensorOps;

inline constexpr std::int32_t kPaddedState = -1;  // state_indices of a row without a request

// With live = batch_size - num_padding:
//   state_indices[i]   = mapping[req_pool_indices[i]] for i < live, else kPaddedState
//   query_start_loc[i] = i * query_len for i <= live, else live * query_len
struct LinearStateArgs {
  // [batch_size], int32 or int64. Read only, but with zero_padded_requests.
  void* req_pool_indices = nullptr;
  const std::int32_t* mapping = nullptr;    // [mapping_len] state slot of each row of req_to_token
  std::int32_t* state_indices = nullptr;    // [batch_size], written whole
  std::int32_t* query_start_loc = nullptr;  // [batch_size + 1], written whole, entry 0 too
  // Op by op only: [batch_size + 1] 0, query_len, 2 * query_len...; the engine keeps one for decode
  // and one for verify, made once.
  const std::int32_t* query_start_preset = nullptr;
  std::int64_t mapping_len = 0;  // pool rows; an index outside of it gives kPaddedState
  std::int32_t batch_size = 0;   // 0: nothing is written
  std::int32_t num_padding = 0;  // rows at the batch's end without a request, 0 to batch_size
  std::int32_t query_len = 1;    // tokens a request: 1 in decode, draft tokens in target-verify
  // Sets req_pool_indices of the padded rows to 0 in the runner's own buffer, as the engine does.
  // Off by default: the full-attention backend shares the buffer and must have read it before.
  bool zero_padded_requests = false;
  IntType req_pool_indices_type = IntType::kInt64;
};

// The engine's fallback where the runner gives no num_padding: lengths equal to `fill` in the host
// mirror. Wrong by one for every live row of that length; 0 without a mirror (null).
std::int32_t count_fill_lengths(const std::int64_t* seq_lens_cpu, std::int32_t batch_size,
                                std::int64_t fill);

bool is_valid(const LinearStateArgs& args);

// Throws std::invalid_argument where `phase` is neither kNormalDecode nor kTargetVerify, where
// query_len does not fit it, or where the arguments are not valid.
void check_linear_state(DecodePhase phase, const LinearStateArgs& args);
// Also names the first live row whose request lies outside of the mapping; req_pool_indices must be
// host memory.
void check_linear_mapping(const LinearStateArgs& args);

// The obvious version, on host memory. Throws as check_linear_state.
void reference_linear_state(DecodePhase phase, const LinearStateArgs& args);

// Op by op, in the engine's order: zero the padded requests (where asked for), look up, set the
// padded rows to -1, copy; then copy or copy and fill query_start_loc. Returns ops.status(); throws
// as check_linear_state, and over host memory std::out_of_range for an index outside of the mapping
// (on a GPU PyTorch asserts on the device; here the read is not checked).
int rebuild_linear_state_aten(TensorOps& ops, DecodePhase phase, const LinearStateArgs& args);

// One launch. Returns a cudaError_t: cudaErrorInvalidValue for arguments that are not valid.
// Capturable, but batch_size and num_padding are baked in.
int launch_linear_state(const LinearStateArgs& args, CUstream_st* stream);

}  // namespace tpjitter::kernels
