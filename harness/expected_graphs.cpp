#include "harness/expected_graphs.h"

namespace tpjitter {

ExpectedGraphs::ExpectedGraphs(const CaseConfig& config, int world_size,
                               kernels::PageColumns columns)
    : plan_(step_plan(config)), state_(ServingShape::of(config)), columns_(columns) {
  const ServingShape& shape = state_.shape();
  for (const PlannedPhase& phase : plan_.phases) inputs_.emplace_back(shape, phase);
  for (const auto& runs : layers_by_graph(config, plan_, shape.batch_size, shape.live_batch)) {
    std::vector<kernels::GraphForward> forwards;
    for (const LayerRun& run : runs) {
      forwards.push_back(forward_of_run(run, [&](const TableRows& rows) {
        return tables_of(rows).forward(rows.view, plan_.phases[rows.view.phase].query_len);
      }));
    }
    forwards_.push_back(std::move(forwards));
  }
  for (int g = 0; g < plan_.graphs; ++g) {
    bodies_.push_back(body_shape(config, plan_.phases[plan_.first_phase(g)], world_size));
  }
}

TableSetup ExpectedGraphs::setup(int phase, TableMemory& memory) const {
  TableSetup setup;
  setup.shape = &state_.shape();
  setup.memory = &memory;
  setup.arrays = inputs_[phase].arrays(state_);
  setup.phase = plan_.phases[phase];
  setup.columns = columns_;
  return setup;
}

LeafTables& ExpectedGraphs::tables_of(const TableRows& rows) {
  for (const Expected& expected : tables_) {
    if (expected.rows == rows) return *expected.tables;
  }
  tables_.push_back({rows, make_tables(rows.leaf.kind, setup(rows.view.phase, memory_))});
  return *tables_.back().tables;
}

const StepInputs& ExpectedGraphs::advance() {
  const StepInputs& inputs = state_.advance();
  step_ = inputs.step;
  for (RunnerInputs& runner : inputs_) runner.set(inputs);
  for (const Expected& expected : tables_) expected.tables->reference(expected.rows.view);
  return inputs;
}

std::uint64_t ExpectedGraphs::checksum(int graph) const {
  return kernels::reference_graph_checksum(forwards_[graph], bodies_[graph], step_);
}

}  // namespace tpjitter
