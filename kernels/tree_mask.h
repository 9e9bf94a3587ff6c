// The draft trees of topk > 1 and the mask that target-verify reads of them: which draft tokens of a
// request each of them sees, itself and its ancestors. An engine builds both from scores, anew in
// each step; here the tree follows from seed, step and row, so that ranks, device and checker agree
// without talking.
#pragma once

#include <cstdint>

#include "kernels/decode_body.h"
#include "kernels/metadata_topk.h"

struct CUstream_st;

namespace tpjitter::kernels {

// Parent of draft token i > 0; token 0 is the root.
TPJITTER_HOST_DEVICE inline std::int32_t tree_parent(std::uint64_t seed, std::int64_t step,
                                                     std::int32_t row, std::int32_t i) {
  const std::uint64_t h =
      mix64(seed * 131 + static_cast<std::uint64_t>(step) * 65537 +
            static_cast<std::uint64_t>(row) * 257 + static_cast<std::uint64_t>(i));
  return static_cast<std::int32_t>(h % static_cast<std::uint64_t>(i));
}

// seen[i]: bit j says that draft token i sees draft token j. `draft_tokens`: at most kMaxTreeTokens.
TPJITTER_HOST_DEVICE inline void tree_rows(std::uint64_t seed, std::int64_t step, std::int32_t row,
                                           std::int32_t draft_tokens, std::uint64_t* seen) {
  seen[0] = 1;
  for (std::int32_t i = 1; i < draft_tokens; ++i) {
    seen[i] = seen[tree_parent(seed, step, row, i)] | (std::uint64_t{1} << i);
  }
}

// custom_mask as TopkVerifyArgs has it. Of each live request's q rows of seq_len + q bytes the last q
// are written; the rest is set to 1 once, for the cached tokens are always seen, and is read in one
// place only, the first byte. What an engine spends on filling the rest anew is left out.
struct TreeMaskArgs {
  const std::int32_t* seq_lens = nullptr;  // [live_rows] cached tokens
  const std::int64_t* step = nullptr;      // of the batch
  std::uint8_t* custom_mask = nullptr;     // [mask_len]; nothing is written past it
  std::int64_t mask_len = 0;
  std::uint64_t seed = 0;
  std::int32_t live_rows = 0;  // 0: nothing is written
  std::int32_t draft_tokens = 2;
};

// On host memory.
void reference_tree_mask(const TreeMaskArgs& args);
// One launch. Returns a cudaError_t. Capturable.
int launch_tree_mask(const TreeMaskArgs& args, CUstream_st* stream);

}  // namespace tpjitter::kernels
