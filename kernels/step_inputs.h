// A step's inputs, packed by the host into one staging buffer and applied to the persistent device
// buffers by one kernel: the grouped copies and the padding that come before every metadata rebuild
// (SGLang's populate_from_forward_batch), as one copy and one launch.
#pragma once

#include <cstddef>
#include <cstdint>

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
  std::size_t req_pool_indices = 0;  // [live_rows] int64
  std::size_t out_cache_loc = 0;     // [live_rows] int64
  std::size_t resets = 0;            // [live_rows] StagedLengthReset, num_resets used
  std::size_t writes = 0;            // [num_writes] StagedTokenWrite

  static StagedLayout of(std::int32_t batch_size, std::int32_t live_rows) {
    const auto live = static_cast<std::size_t>(live_rows);
    StagedLayout layout;
    layout.batch_size = batch_size;
    layout.live_rows = live_rows;
    layout.req_pool_indices = sizeof(StagedHeader);
    layout.out_cache_loc = layout.req_pool_indices + sizeof(std::int64_t) * live;
    layout.resets = layout.out_cache_loc + sizeof(std::int64_t) * live;
    layout.writes = layout.resets + sizeof(StagedLengthReset) * live;
    return layout;
  }
  std::size_t bytes(std::int64_t num_writes) const {
    return writes + sizeof(StagedTokenWrite) * static_cast<std::size_t>(num_writes);
  }
};

struct StepInputsArgs {
  const unsigned char* staging = nullptr;  // device, StagedLayout
  StagedLayout layout;
  std::int64_t max_writes = 0;               // sizes the grid
  std::int64_t* req_pool_indices = nullptr;  // [batch_size]; padded rows become 0
  std::int64_t* out_cache_loc = nullptr;     // [batch_size]; padded rows become 0
  std::int32_t* seq_lens = nullptr;          // [batch_size], resets only; padded rows become 1
  std::int32_t* req_to_token = nullptr;
};

// Returns cudaError_t.
int launch_step_inputs(const StepInputsArgs& args, CUstream_st* stream);

}  // namespace tpjitter::kernels
