// Everything of one prepared case on the host backend: the batch, each phase's metadata on host
// memory, and the modelled graphs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "harness/contract/scenario.h"
#include "harness/host/modelled_device.h"
#include "harness/metadata_buffers.h"
#include "harness/serving_state.h"
#include "harness/step_plan.h"
#include "kernels/metadata_page_table.h"
#include "kernels/tensor_ops_reference.h"

namespace tpjitter {

// How a path rebuilds a phase's metadata: arguments over a step's inputs, ready for the ops.
struct PhaseArguments {
  kernels::DecodeMetadataArgs metadata;
  std::vector<std::int64_t> seq_lens_cpu;  // what the op-by-op path takes its page count from
  std::int64_t longest = 0;  // cached length of the longest row, the phase's offset included
  kernels::AtenMetadataArgs aten;
  kernels::PageTableMetadataArgs page_table;
};

class HostPhase {
 public:
  HostPhase(const ServingShape& shape, const PlannedPhase& phase, kernels::PageColumns columns);

  void set(PhaseArguments& arguments, MetadataBuffers& buffers, const ServingState& state,
           const StepInputs& inputs);

  PlannedPhase planned;
  MetadataBuffers expected, computed;
  PhaseArguments staged;  // of the next step, over `computed`

 private:
  ServingShape shape_;
  std::vector<std::int64_t> strided_indices_;
};

struct HostCase {
  HostCase(const CaseConfig& config, const DeviceModel& model, int world_size);

  // Computes phase i's metadata the way `path` does, on host memory, outside every stamp.
  kernels::DecodeMetadataArgs compute(const std::string& path, int i, const ServingState& state,
                                      const StepInputs& inputs);
  // Checksum of graph g's replay, with each phase's metadata from compute(path) or, with an empty
  // path, from the reference.
  std::uint64_t graph_checksum(const std::string& path, int g, const ServingState& state,
                               const StepInputs& inputs);
  void stage(const StepInputs& inputs);

  CaseConfig config;
  StepPlan plan;
  ServingShape shape;
  int world_size;
  ServingState live, verify;  // `verify` follows block by block
  std::vector<HostPhase> phases;
  std::vector<ModelledGraph> graphs;

 private:
  PhaseArguments computed_;  // scratch of compute()
  kernels::TensorAllocator allocator_;
  kernels::ReferenceTensorOps ops_;
};

}  // namespace tpjitter
