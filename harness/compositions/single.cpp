// Pattern A alone: one backend with page tables for every phase. Its capture delegates to the replay
// fill, so that there is one way to fill a table.
#include "harness/compositions/shared_parts.h"

namespace tpjitter {

Composition single_composition() {
  return {"single",
          "page tables in persistent buffers, one backend for every phase",
          "SGLang trtllm_mha backend; in speculative mode the EAGLE runner",
          true,
          true,
          one_paged_leaf,
          eagle_plan,
          nullptr,
          nullptr};
}

}  // namespace tpjitter
