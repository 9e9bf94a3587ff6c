// What more than one composition is made of.
#pragma once

#include <string>

#include "harness/compositions/composition.h"

namespace tpjitter {

// Every phase and layer reads page tables from one leaf.
inline std::unique_ptr<MetadataBackend> one_paged_leaf(const StepPlan&, LeafSource& leaves) {
  return leaves.make({LeafKind::kPaged, 0});
}

// A draft-extend of the multi-layer runner, in both of its forms (multi_layer.cpp).
PlannedPhase multi_layer_extend(const CaseConfig& config);
std::string multi_layer_gap(const CaseConfig& config);

// What the form of Pattern B lacks, alone and in `hybrid` (pattern_b.cpp).
std::string kv_indices_gap(const CaseConfig& config);

}  // namespace tpjitter
