// Draft trees: a backend whose draft passes and target-verify read two metadata objects, the cached
// prefix and the tree, and whose draft-extend reads page tables. Capture of the two objects only
// binds them: it has neither the draft slots nor the tree's mask, so that a replay's fill has nothing
// to read. Warm-ups run over zeroed tables, and the first replay fills them.
#include <fmt/format.h>

#include "harness/compositions/shared_parts.h"

namespace tpjitter {
namespace {

// Branches that all draft steps score, and the root.
std::int64_t nodes_of_tree(const CaseConfig& c) {
  return 1 + c.topk + (c.draft_steps - 1) * c.topk * c.topk;
}

std::string tree_problem(const CaseConfig& c) {
  if (c.topk < 2) {
    return "is for draft trees and needs step.topk = 2 or more; `single` drafts one branch";
  }
  if (c.topk > c.draft_tokens) {
    return fmt::format(
        "verifies step.draft_tokens = {} of a tree whose root has {} branches; raise "
        "it or lower step.topk",
        c.draft_tokens, c.topk);
  }
  if (c.draft_tokens > nodes_of_tree(c)) {
    return fmt::format(
        "has trees of {} tokens with step.draft_steps = {} and step.topk = {}, fewer "
        "than step.draft_tokens = {}",
        nodes_of_tree(c), c.draft_steps, c.topk, c.draft_tokens);
  }
  return {};
}

std::string tree_gap(const CaseConfig& c) {
  if (c.swa || c.draft_swa) {
    return "has no third object for sliding windows; set shape.swa and step.draft_swa to false";
  }
  if (metadata_path(c.path).form == RebuildForm::kPageTable) {
    return "has no page-table kernel for its two objects; use aten, glue_graph, fused or "
           "fused_in_graph";
  }
  return {};
}

}  // namespace

Composition tree_composition() {
  return {kTreeComposition,
          "draft trees (step.topk above 1): a prefix and an expand object for draft passes and "
          "target-verify",
          "SGLang FlashAttention backend with topk > 1; the EAGLE runner",
          false,
          true,
          [](const StepPlan& plan, LeafSource& leaves) -> std::unique_ptr<MetadataBackend> {
            std::vector<bool> drafts;
            for (const PlannedPhase& phase : plan.phases) {
              drafts.push_back(phase.inputs != PhaseInputs::kDraftExtend);
            }
            return std::make_unique<ChosenByPhase>(leaves.make({LeafKind::kTopk, 0}),
                                                   leaves.make({LeafKind::kPaged, 0}),
                                                   std::move(drafts));
          },
          eagle_plan,
          tree_problem,
          tree_gap};
}

}  // namespace tpjitter
