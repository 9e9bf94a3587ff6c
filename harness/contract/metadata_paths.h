// The table of metadata paths. A row says all that scenario keys, plans, `list`, verification, both
// backends and reports ask about a path: none of them compares names, but for a default or baseline.
// A path of a new form also has a case where forms are told apart: in harness/list_ops.cpp,
// harness/host/host_metadata.cpp and harness/cuda/cuda_metadata.cpp; the compiler names those.
#pragma once

#include <string>
#include <string_view>

#include "harness/contract/error.h"

namespace tpjitter {

// How the host has a phase's metadata rebuilt.
enum class RebuildForm {
  kOperations,    // op by op
  kPageTable,     // few operations and the page-table kernel
  kGlueGraph,     // the operations, captured in a graph of their own
  kOneKernel,     // one kernel for each set of tables
  kMergedKernel,  // one kernel for the phases whose inputs are there when a step begins
  kTorch,         // op by op, with PyTorch's own operations
};

struct MetadataPath {
  const char* name;
  const char* summary;
  const char* source;     // what it reproduces
  const char* host_work;  // of one rebuild in normal decode
  RebuildForm form;
  bool in_graph = false;        // rebuilt by the first nodes of the step's graph
  bool modelled_calls = false;  // step.op_overhead_ns reaches its dispatcher calls
  bool host_lengths = false;    // in speculative mode it needs step.seq_lens_sync
  bool padded_rows = true;      // false: for captured batch sizes only
  bool needs_torch = false;
  // Null: it can. Otherwise why not, behind the path's name ...
  const char* no_decode = nullptr;        // ... in step.mode = "decode"
  const char* single_only = nullptr;      // ... with another composition than `single`
  const char* no_host_backend = nullptr;  // ... on the host backend
};

inline constexpr MetadataPath kMetadataPaths[] = {
    {.name = "aten",
     .summary = "op by op, the way engines did it before it was fused",
     .source = "SGLang trtllm_mha backend, _apply_cuda_graph_metadata",
     .host_work = "7 kernel launches and 2 copies, with SWA 14 and 3",
     .form = RebuildForm::kOperations,
     .modelled_calls = true,
     .host_lengths = true},
    {.name = "page_table_kernel",
     .summary = "few operations and a page-table kernel with a static bound; no sync",
     .source = "SGLang trtllm_mha_page_table, after the host sync was removed",
     .host_work = "3 kernel launches and 2 copies, with SWA 5 and 3",
     .form = RebuildForm::kPageTable,
     .modelled_calls = true},
    {.name = "glue_graph",
     .summary = "the op-by-op form in a small captured graph of its own, with a static bound",
     .source = "SGLang MetadataGlueGraph: opt-in, for batches without padded rows",
     .host_work = "1 graph launch",
     .form = RebuildForm::kGlueGraph,
     .padded_rows = false},
    {.name = "fused",
     .summary = "one kernel launch, eager",
     .source = "SGLang trtllm_mha_graph_metadata",
     .host_work = "1 kernel launch",
     .form = RebuildForm::kOneKernel},
    {.name = "fused_in_graph",
     .summary = "the same kernel as the captured graph's first node",
     .source = "SGLang trtllm_mha_graph_metadata, in-graph hook",
     .host_work = "none",
     .form = RebuildForm::kOneKernel,
     .in_graph = true},
    {.name = "fused_multi",
     .summary = "one launch for the draft passes and target-verify of a step, one for draft-extend",
     .source = "none: what the fused kernel allows further",
     .host_work = "in speculative mode 2 launches a step",
     .form = RebuildForm::kMergedKernel,
     .no_decode = "merges the rebuilds of several phases, and mode decode has one; use fused, or "
                  "set step.mode to speculative",
     .single_only = "leaves and runners of the others rebuild from other inputs"},
    {.name = "torch",
     .summary = "op by op with PyTorch's own operations, in a build with TPJITTER_TORCH",
     .source = "libtorch: Debian's, or the machine's PyTorch",
     .host_work = "7 kernel launches and 2 copies, with SWA 14 and 3",
     .form = RebuildForm::kTorch,
     .host_lengths = true,
     .needs_torch = true,
     .single_only = "its sequence is that of page tables",
     .no_host_backend = "needs a GPU: on the host its kernels would run inside the stamps"},
};

constexpr bool runs_fused_kernel(const MetadataPath& path) {
  return path.form == RebuildForm::kOneKernel || path.form == RebuildForm::kMergedKernel;
}

// Null: not one of this program's, as in the record of another version.
constexpr const MetadataPath* find_metadata_path(std::string_view name) {
  for (const MetadataPath& path : kMetadataPaths) {
    if (path.name == name) return &path;
  }
  return nullptr;
}

constexpr const MetadataPath& path_of_form(RebuildForm form) {
  const MetadataPath* path = kMetadataPaths;
  while (path->form != form) ++path;
  return *path;
}

inline const MetadataPath& metadata_path(const std::string& name) {
  if (const MetadataPath* path = find_metadata_path(name)) return *path;
  throw ConfigError("step.path: \"" + name + "\" is not known");
}

}  // namespace tpjitter
