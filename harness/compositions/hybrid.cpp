// A decode backend with page tables and a prefill backend with kv_indices: draft passes go to the
// first, target-verify and draft-extend to the second. Both hooks go where the phase goes.
#include "harness/compositions/shared_parts.h"

namespace tpjitter {

namespace {

class Hybrid final : public MetadataBackend {
 public:
  Hybrid(const StepPlan& plan, LeafSource& leaves)
      : decode_(leaves.make({LeafKind::kPaged, 0})),
        prefill_(leaves.make({LeafKind::kKvIndices, 0})) {
    for (const PlannedPhase& phase : plan.phases) {
      const bool decodes = phase.rebuild == kernels::DecodePhase::kNormalDecode ||
                           phase.rebuild == kernels::DecodePhase::kDraftDecode;
      chosen_.push_back(decodes ? decode_.get() : prefill_.get());
    }
  }

  void capture(const BatchView& view) override { chosen_[view.phase]->capture(view); }
  void out_graph(const BatchView& view) override { chosen_[view.phase]->out_graph(view); }
  void in_graph(const BatchView& view) override { chosen_[view.phase]->in_graph(view); }
  void append_layers(const BatchView& view, int layers,
                     std::vector<LayerRun>& runs) const override {
    chosen_[view.phase]->append_layers(view, layers, runs);
  }

 private:
  std::unique_ptr<MetadataBackend> decode_, prefill_;
  std::vector<MetadataBackend*> chosen_;  // by phase
};

}  // namespace

Composition hybrid_composition() {
  return {"hybrid",
          "page tables for draft passes, kv_indices for target-verify and draft-extend",
          "SGLang HybridAttnBackend with speculative_attention_mode = prefill",
          false,  // a decode step uses the decode backend only: `single`
          true,
          [](const StepPlan& plan, LeafSource& leaves) -> std::unique_ptr<MetadataBackend> {
            return std::make_unique<Hybrid>(plan, leaves);
          },
          eagle_plan,
          nullptr,
          kv_indices_gap};
}

}  // namespace tpjitter
