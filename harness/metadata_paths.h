// The table of metadata paths: names and what each costs the host, for `list` and the README.
// Add a path: a row here, its name in the scenario field table, its work in the backends.
#pragma once

#include <span>

namespace tpjitter {

struct MetadataPath {
  const char* name;
  const char* summary;
  const char* source;     // what it reproduces
  const char* host_work;  // of one rebuild in normal decode
};

inline std::span<const MetadataPath> metadata_paths() {
  static constexpr MetadataPath kPaths[] = {
      {"aten", "op by op, the way engines did it before it was fused",
       "SGLang trtllm_mha backend, _apply_cuda_graph_metadata",
       "7 kernel launches and 2 copies, with SWA 14 and 3"},
      {"page_table_kernel", "few operations and a page-table kernel with a static bound; no sync",
       "SGLang trtllm_mha_page_table, after the host sync was removed",
       "3 kernel launches and 2 copies, with SWA 5 and 3"},
      {"glue_graph", "the op-by-op form in a small captured graph of its own, with a static bound",
       "SGLang MetadataGlueGraph: opt-in, for batches without padded rows", "1 graph launch"},
      {"fused", "one kernel launch, eager", "SGLang trtllm_mha_graph_metadata", "1 kernel launch"},
      {"fused_in_graph", "the same kernel as the captured graph's first node",
       "SGLang trtllm_mha_graph_metadata, in-graph hook", "none"},
      {"fused_multi",
       "one launch for the draft passes and target-verify of a step, one for draft-extend",
       "none: what the fused kernel allows further", "in speculative mode 2 launches a step"},
      {"torch", "op by op with PyTorch's own operations, in a build with TPJITTER_TORCH",
       "libtorch: Debian's, or the machine's PyTorch",
       "7 kernel launches and 2 copies, with SWA 14 and 3"},
  };
  return kPaths;
}

}  // namespace tpjitter
