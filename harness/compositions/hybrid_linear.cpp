// Full attention and linear attention in one model: both backends' hooks run, the full one's first.
// Every fourth layer of the target model and its last one have full attention; the draft model has
// no linear layers, and neither hook of its phases reaches the linear backend, which knows decode
// and target-verify only.
#include "harness/compositions/composition.h"

namespace tpjitter {
namespace {

constexpr int kFullEvery = 4;  // as in Qwen3-Next and Qwen3.5

class HybridLinear final : public MetadataBackend {
 public:
  HybridLinear(const StepPlan& plan, LeafSource& leaves)
      : full_(leaves.make({LeafKind::kPaged, 0})),
        linear_(leaves.make({LeafKind::kLinearState, 0})) {
    for (const PlannedPhase& phase : plan.phases) has_linear_.push_back(!phase.draft_model);
  }

  void capture(const BatchView& view) override {
    full_->capture(view);
    if (has_linear_[view.phase]) linear_->capture(view);
  }
  void out_graph(const BatchView& view) override {
    full_->out_graph(view);
    if (has_linear_[view.phase]) linear_->out_graph(view);
  }
  void in_graph(const BatchView& view) override {
    full_->in_graph(view);
    if (has_linear_[view.phase]) linear_->in_graph(view);
  }
  void append_layers(const BatchView& view, int layers,
                     std::vector<LayerRun>& runs) const override {
    if (!has_linear_[view.phase]) return full_->append_layers(view, layers, runs);
    for (int layer = 0; layer < layers; ++layer) {
      const bool full = layer % kFullEvery == kFullEvery - 1 || layer + 1 == layers;
      (full ? full_ : linear_)->append_layers(view, 1, runs);
    }
  }

 private:
  std::unique_ptr<MetadataBackend> full_, linear_;
  std::vector<bool> has_linear_;  // by phase
};

}  // namespace

Composition hybrid_linear_composition() {
  return {"hybrid_linear",
          "page tables of full attention, then state slots of linear attention, every fourth layer "
          "full",
          "SGLang HybridLinearAttnBackend",
          true,
          true,
          [](const StepPlan& plan, LeafSource& leaves) -> std::unique_ptr<MetadataBackend> {
            return std::make_unique<HybridLinear>(plan, leaves);
          },
          eagle_plan,
          [](const CaseConfig& config) -> std::string {
            if (config.layers >= 2) return {};
            return "needs shape.layers = 2 or more: one of full and one of linear attention";
          },
          nullptr};
}

}  // namespace tpjitter
