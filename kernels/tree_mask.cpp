// The mask of the draft trees on the host.
#include "kernels/tree_mask.h"

namespace tpjitter::kernels {

void reference_tree_mask(const TreeMaskArgs& args) {
  const std::int32_t q = args.draft_tokens;
  std::int64_t begin = 0;  // of the request's rows
  for (std::int32_t request = 0; request < args.live_rows; ++request) {
    std::uint64_t seen[kMaxTreeTokens];
    tree_rows(args.seed, *args.step, request, q, seen);
    const std::int64_t tokens = args.seq_lens[request];
    for (std::int32_t i = 0; i < q; ++i) {
      const std::int64_t row = begin + i * (tokens + q) + tokens;
      for (std::int32_t j = 0; j < q && row + j < args.mask_len; ++j) {
        args.custom_mask[row + j] = static_cast<std::uint8_t>(seen[i] >> j & 1);
      }
    }
    begin += (tokens + q) * q;
  }
}

}  // namespace tpjitter::kernels
