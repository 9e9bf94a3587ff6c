// The decode-metadata rebuild op by op, as serving engines ran it before it was fused: the same
// ATen operations in the same order for each phase, over any TensorOps. It writes page-table
// columns [0, P) only, P the pages of the batch's longest request, and divides with floor, so a
// slot of -1 gives page -1 where the fused kernel gives 0.
#pragma once

#include <cstdint>

#include "kernels/decode_metadata.h"
#include "kernels/tensor_ops.h"

namespace tpjitter::kernels {

// The serving phases; they differ in what is added to seq_lens, where P comes from, and
// cu_seqlens_q.
enum class DecodePhase : std::int32_t {
  kNormalDecode = 0,
  kDraftDecode = 1,  // P from the device: a D2H copy and a stream sync
  kTargetVerify = 2,
  kDraftExtendCumsum = 3,   // metadata.q_mode is kCumsum
  kDraftExtendStrided = 4,  // metadata.q_mode is kStrided
};

struct AtenMetadataArgs {
  DecodeMetadataArgs metadata;                    // page_columns is not used: see above
  const std::int64_t* seq_lens_cpu = nullptr;     // host, [batch_size] tokens, before seqlen_offset
  const std::int64_t* strided_indices = nullptr;  // [max_seq_pages]: 0, page_size, 2 * page_size...
  std::int64_t pool_rows = 0;                     // rows of req_to_token
  std::int64_t full_to_swa_len = 0;               // entries, with the -1 at the end; SWA only
  std::int64_t swa_out_buffer_len = 0;  // the persistent buffer, zeroed to its end, whatever
                                        // swa_out_len says; 0: swa_out_len
  // P without a look at any length, for a capture: a P of the lengths at capture would silently
  // leave out the pages of longer ones at replay. 0: P of the batch's longest request.
  std::int64_t static_pages = 0;
};

// Returns ops.status(). Throws std::invalid_argument where PyTorch would raise: more out_cache_loc
// entries than swa_out_cache_loc has room for, or lengths past max_seq_pages. A null out_cache_loc
// leaves swa_out_cache_loc as it is. With batch_size 0 nothing is done.
int rebuild_metadata_aten(TensorOps& ops, DecodePhase phase, const AtenMetadataArgs& args);

}  // namespace tpjitter::kernels
