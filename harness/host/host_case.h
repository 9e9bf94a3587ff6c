// Everything of one prepared case on the host backend: the batch, the metadata that the case's path
// computes beside what it must be, and the modelled graphs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "harness/contract/scenario.h"
#include "harness/expected_graphs.h"
#include "harness/host/host_metadata.h"
#include "harness/host/modelled_device.h"
#include "harness/serving_state.h"
#include "harness/step_plan.h"

namespace tpjitter {

struct HostCase {
  HostCase(const CaseConfig& config, const DeviceModel& model, int world_size,
           const MakeComposition& make = make_composition);

  // Goes to the next step that is checked, 0 first.
  const StepInputs& advance();
  // Graph g of that step; its rebuilds run here, as the path does them. Empty: they give the
  // checksum of the reference. `read`: what they find in the scheduler's tables; not the step's own
  // where the order of streams is broken.
  std::string checksum_fault(int rank, int g, const ServingState& read);
  std::string checksum_fault(int rank, int g) { return checksum_fault(rank, g, expected.state()); }

  CaseConfig config;
  StepPlan plan;
  ServingShape shape;
  ServingState live;  // what is staged; `expected` follows block by block
  ExpectedGraphs expected;
  std::unique_ptr<HostExecution> computing;
  HostMetadata computed;
  std::vector<kernels::DecodeBodyShape> bodies;  // by graph
  std::vector<ModelledGraph> graphs;

 private:
  std::int64_t step_ = -1;
};

// Every path's tables against the reference, over the case's first inputs and outputs that no path
// wrote. Empty: all are equal.
std::string path_difference(const CaseConfig& config, int rank);

}  // namespace tpjitter
