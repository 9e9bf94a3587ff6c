// A step's inputs, packed by the host into one staging buffer and applied to the persistent device
// buffers by one kernel: the grouped copies and the padding that come before every metadata rebuild
// (SGLang's populate_from_forward_batch), as one copy and one launch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/decode_metadata.h"

struct CUstream_st;

namespace tpjitter::kernels {

// A new token's slot: req_to_token[flat] = slot.
struct StagedTokenWrite {
  std::int64_t flat;  // element of req_to_token
  std::int32_t slot;
  std::int32_t reserved;
};

// A row whose request was replaced: its length does not follow from the accept before.
struct StagedLengthReset {
  std::int32_t row;
  std::int32_t seq_len;  // tokens
};

struct StagedHeader {
  std::int64_t num_writes;
  std::int64_t num_resets;
};

// Byte offsets of the staging buffer's parts, behind the header. The writes come last, so that a
// step copies only what it has.
struct StagedLayout {
  std::int32_t batch_size = 0;       // captured rows
  std::int32_t live_rows = 0;        // at most batch_size; the rest are padded
  std::int32_t query_len = 1;        // slots a row
  std::int32_t draft_passes = 0;     // 0: decode, without the draft parts
  std::int32_t topk = 1;             // above 1: draft slots by branch
  std::int32_t draft_steps = 0;      // slots of a branch
  std::size_t req_pool_indices = 0;  // [live_rows] int64
  std::size_t out_cache_loc = 0;     // [live_rows, query_len] int64
  std::size_t draft_cache_loc = 0;   // [draft_passes, live_rows] int64; with branches
                                     // [live_rows, topk, draft_steps]
  std::size_t accept_lens = 0;       // [live_rows] int32; with draft passes only
  std::size_t resets = 0;            // [live_rows] StagedLengthReset, num_resets used
  std::size_t writes = 0;            // [num_writes] StagedTokenWrite

  static StagedLayout of(std::int32_t batch_size, std::int32_t live_rows,
                         std::int32_t query_len = 1, std::int32_t draft_passes = 0,
                         std::int32_t topk = 1, std::int32_t draft_steps = 0) {
    const auto live = static_cast<std::size_t>(live_rows);
    const std::size_t locations = sizeof(std::int64_t) * live;
    StagedLayout layout;
    layout.batch_size = batch_size;
    layout.live_rows = live_rows;
    layout.query_len = query_len;
    layout.draft_passes = draft_passes;
    layout.topk = topk;
    layout.draft_steps = draft_steps;
    layout.req_pool_indices = sizeof(StagedHeader);
    layout.out_cache_loc = layout.req_pool_indices + locations;
    layout.draft_cache_loc = layout.out_cache_loc + locations * static_cast<std::size_t>(query_len);
    layout.accept_lens =
        layout.draft_cache_loc +
        locations * static_cast<std::size_t>(topk > 1 ? topk * draft_steps : draft_passes);
    layout.resets = layout.accept_lens + (draft_passes > 0 ? sizeof(std::int32_t) * live : 0);
    layout.writes = layout.resets + sizeof(StagedLengthReset) * live;
    layout.writes = (layout.writes + 7) / 8 * 8;  // int64 follow an odd number of int32
    return layout;
  }
  std::size_t bytes(std::int64_t num_writes) const {
    return writes + sizeof(StagedTokenWrite) * static_cast<std::size_t>(num_writes);
  }
};

// Outputs of padded rows: 0; seq_lens 1; accept_lens query_len.
struct StepInputsArgs {
  const unsigned char* staging = nullptr;  // device, StagedLayout
  StagedLayout layout;
  std::int64_t max_writes = 0;               // sizes the grid
  std::int64_t* req_pool_indices = nullptr;  // [batch_size]
  std::int64_t* out_cache_loc = nullptr;     // [batch_size, query_len]
  std::int64_t* draft_cache_loc = nullptr;   // [draft_passes, draft_cache_loc_stride]
  std::int64_t draft_cache_loc_stride = 0;   // elements, at least batch_size * topk
  std::int64_t* tree_cache_loc = nullptr;    // [batch_size, topk, draft_steps]; topk above 1 only
  std::int32_t* accept_lens = nullptr;       // [batch_size]; with draft passes only
  std::int32_t* seq_lens = nullptr;          // [batch_size], resets only
  std::int32_t* req_to_token = nullptr;      // null: launch_token_writes does that part
};

// Returns cudaError_t.
int launch_step_inputs(const StepInputsArgs& args, CUstream_st* stream);
// The new tokens' slots only: the scheduler's part, on a stream of its own.
int launch_token_writes(const StepInputsArgs& args, CUstream_st* stream);

// The input buffers of a draft runner of its own (draft-extend, frozen draft loop), from the step's:
// seq_lens plus the tokens that it counts, in its own type, padded rows 1; where its padding differs
// from the step's also pool rows and accept lengths.
struct RunnerInputsArgs {
  const std::int32_t* seq_lens = nullptr;          // [live_rows]
  void* lengths = nullptr;                         // [batch_size] of lengths_type
  const std::int64_t* req_pool_indices = nullptr;  // [live_rows]
  std::int64_t* pool_rows = nullptr;               // [batch_size], padded ones stay; null: none
  const std::int32_t* accept_lens = nullptr;       // [live_rows]
  std::int32_t* accepts = nullptr;                 // [batch_size]; null: none
  std::int32_t batch_size = 0;
  std::int32_t live_rows = 0;  // the rest are padded
  std::int32_t counted = 0;    // tokens
  std::int32_t padded_accept = 0;
  IntType lengths_type = IntType::kInt64;
};

// Returns cudaError_t.
int launch_runner_inputs(const RunnerInputsArgs& args, CUstream_st* stream);

}  // namespace tpjitter::kernels
