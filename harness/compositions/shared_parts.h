// What more than one composition is made of.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "harness/compositions/composition.h"

namespace tpjitter {

// Every phase and layer reads page tables from one leaf.
inline std::unique_ptr<MetadataBackend> one_paged_leaf(const StepPlan&, LeafSource& leaves) {
  return leaves.make({LeafKind::kPaged, 0});
}

// Two backends, of which each phase uses one. Every hook goes where the phase goes.
class ChosenByPhase final : public MetadataBackend {
 public:
  // `first`: by phase, whether it uses the first one.
  ChosenByPhase(std::unique_ptr<MetadataBackend> one, std::unique_ptr<MetadataBackend> two,
                std::vector<bool> first)
      : one_(std::move(one)), two_(std::move(two)), first_(std::move(first)) {}

  void capture(const BatchView& view) override { chosen(view).capture(view); }
  void out_graph(const BatchView& view) override { chosen(view).out_graph(view); }
  void in_graph(const BatchView& view) override { chosen(view).in_graph(view); }
  void append_layers(const BatchView& view, int layers,
                     std::vector<LayerRun>& runs) const override {
    chosen(view).append_layers(view, layers, runs);
  }

 private:
  MetadataBackend& chosen(const BatchView& view) const {
    return *(first_[view.phase] ? one_ : two_);
  }

  std::unique_ptr<MetadataBackend> one_, two_;
  std::vector<bool> first_;
};

// A draft-extend of the multi-layer runner, in both of its forms (multi_layer.cpp).
PlannedPhase multi_layer_extend(const CaseConfig& config);
std::string multi_layer_gap(const CaseConfig& config);

// What the form of Pattern B lacks, alone and in `hybrid` (pattern_b.cpp).
std::string kv_indices_gap(const CaseConfig& config);

}  // namespace tpjitter
