// What each graph of a case must have read, step by step: the reference over a ServingState of its
// own, without any composition's hooks, so that a hook which one forgets shows. Both backends check
// against it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "harness/compositions/composition.h"
#include "harness/leaf_tables.h"
#include "harness/runner_inputs.h"

namespace tpjitter {

class ExpectedGraphs {
 public:
  // `columns`: what the references write; kLive is all that a checksum reads.
  ExpectedGraphs(const CaseConfig& config, int world_size,
                 kernels::PageColumns columns = kernels::PageColumns::kLive);

  ExpectedGraphs(const ExpectedGraphs&) = delete;  // tables point into it
  ExpectedGraphs& operator=(const ExpectedGraphs&) = delete;

  // Goes to the next step, 0 first, and computes its tables.
  const StepInputs& advance();
  std::uint64_t checksum(int graph) const;  // of the current step

  const ServingState& state() const { return state_; }
  const StepPlan& plan() const { return plan_; }
  // For tables of another device over the same inputs.
  TableSetup setup(int phase, TableMemory& memory) const;
  // Everything that a graph reads, each once.
  struct Expected {
    TableRows rows;
    std::unique_ptr<LeafTables> tables;
  };
  const std::vector<Expected>& tables() const { return tables_; }

 private:
  LeafTables& tables_of(const TableRows& rows);

  StepPlan plan_;
  ServingState state_;
  std::vector<RunnerInputs> inputs_;  // by phase
  kernels::PageColumns columns_;
  HostTableMemory memory_;
  std::vector<Expected> tables_;
  std::vector<std::vector<kernels::GraphForward>> forwards_;  // by graph
  std::vector<kernels::DecodeBodyShape> bodies_;              // by graph
  std::int64_t step_ = -1;
};

}  // namespace tpjitter
