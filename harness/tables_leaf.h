// What the leaves of both devices have alike: tables for each phase, made from one set-up.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "harness/compositions/metadata_backend.h"
#include "harness/leaf_tables.h"
#include "harness/step_plan.h"

namespace tpjitter {

class TablesLeaf : public MetadataBackend {
 public:
  void append_layers(const BatchView& view, int layers,
                     std::vector<LayerRun>& runs) const override {
    runs.push_back({{id_, view}, {}, layers});
  }

  const LeafId& id() const { return id_; }
  LeafTables& tables(int phase) const { return *tables_[phase]; }
  void poison() {
    for (const auto& tables : tables_) tables->poison();
  }

 protected:
  // `setup`: what all phases have alike. `arrays_of(phase)`: a phase's inputs.
  template <class ArraysOf>
  TablesLeaf(const LeafId& id, const StepPlan& plan, TableSetup setup, ArraysOf arrays_of)
      : id_(id) {
    for (std::size_t phase = 0; phase < plan.phases.size(); ++phase) {
      setup.arrays = arrays_of(phase);
      setup.phase = plan.phases[phase];
      tables_.push_back(make_tables(id.kind, setup));
    }
    link_draft_passes(tables_);
  }

  LeafId id_;
  std::vector<std::unique_ptr<LeafTables>> tables_;  // by phase
};

template <class Leaf>
Leaf& find_leaf(const std::vector<Leaf*>& leaves, const LeafId& id) {
  return **std::find_if(leaves.begin(), leaves.end(),
                        [&](const Leaf* leaf) { return leaf->id() == id; });
}

}  // namespace tpjitter
