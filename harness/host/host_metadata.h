// The metadata of a case in host memory: its composition over leaves that keep LeafTables, on one
// path. What a rebuild costs or computes is the HostExecution's: the same leaves serve the timed
// loop over the modelled device, the check of each step, and the count of a path's operations.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "harness/compositions/captured_sizes.h"
#include "harness/compositions/composition.h"
#include "harness/leaf_tables.h"
#include "harness/runner_inputs.h"

namespace tpjitter {

class HostExecution {
 public:
  virtual ~HostExecution() = default;
  // For one op-by-op rebuild; `scalar`: LeafTables::scalar.
  virtual kernels::TensorOps& operations(std::int64_t scalar) = 0;
  virtual void launch_kernel() = 0;                        // of one fused rebuild
  virtual void launch_glue_graph(std::int64_t nodes) = 0;  // a rebuild captured op by op
  virtual bool computes() const = 0;                       // tables are written
};

// Really computes, on the host.
std::unique_ptr<HostExecution> make_computing_execution();

class HostMetadata {
 public:
  // Captures every batch size of the case. `state` and `execution` outlive it.
  HostMetadata(const CaseConfig& config, const MetadataPath& path, const ServingState& state,
               HostExecution& execution, const MakeComposition& make = make_composition);
  ~HostMetadata();
  HostMetadata(const HostMetadata&) = delete;  // leaves point into it
  HostMetadata& operator=(const HostMetadata&) = delete;

  void set_inputs(const StepInputs& inputs);
  // The runner's call before a replay: nothing where it never makes one.
  void rebuild(int phase);
  // What the replay of a graph does itself before its forwards.
  void replay(int graph);
  // Nodes of the rebuilds that were recorded into a graph.
  std::int64_t rebuild_nodes(int graph) const;
  // As recorded: a later change of the leaves does not reach them.
  const std::vector<kernels::GraphForward>& forwards(int graph) const { return forwards_[graph]; }

  MetadataBackend& composition() { return *composition_; }
  LeafTables& tables(const TableRows& rows);
  RunnerInputs& inputs(int phase) { return inputs_[phase]; }
  void poison();
  void read_from(const ServingState& state);

 private:
  class Leaf;
  struct Leaves;

  StepPlan plan_;
  std::int32_t batch_size_, live_rows_;
  std::vector<RunnerInputs> inputs_;  // by phase
  std::unique_ptr<Leaves> leaves_;
  std::unique_ptr<MetadataBackend> composition_;
  std::vector<std::vector<kernels::GraphForward>> forwards_;  // by graph
};

}  // namespace tpjitter
