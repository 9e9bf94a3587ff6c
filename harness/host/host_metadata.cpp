#include "harness/host/host_metadata.h"

#include <algorithm>
#include <optional>

#include "harness/compositions/captured_sizes.h"
#include "harness/tables_leaf.h"
#include "kernels/tensor_ops_recording.h"
#include "kernels/tensor_ops_reference.h"

namespace tpjitter {
namespace {

class ComputingExecution final : public HostExecution {
 public:
  kernels::TensorOps& operations(std::int64_t) override { return ops_; }
  void launch_kernel() override {}
  void launch_glue_graph(std::int64_t) override {}
  bool computes() const override { return true; }

 private:
  kernels::TensorAllocator allocator_{kernels::host_block_source()};
  kernels::ReferenceTensorOps ops_{allocator_};
};

}  // namespace

std::unique_ptr<HostExecution> make_computing_execution() {
  return std::make_unique<ComputingExecution>();
}

// One leaf: its tables, and what capture bound.
class HostMetadata::Leaf final : public TablesLeaf {
 public:
  Leaf(Leaves& leaves, const LeafId& id);

  void capture(const BatchView& view) override;
  void out_graph(const BatchView& view) override;
  void in_graph(const BatchView& view) override;
  std::int32_t query_tokens(const BatchView& view) { return captured_.find(view).max_seq_len_q; }
  void fill_by_operations(const BatchView& view, OpByOp form);
  void fill_by_kernel(const BatchView& view);
  void fill_by_merged_kernel(const BatchView& view);

 private:
  struct Bound {
    std::int64_t nodes = 0;  // of this rebuild in a graph
    // Query tokens a row, which a forward takes when it is recorded. A draft-extend with prefix sums
    // takes the longest accepted length, as its replay does.
    std::int32_t max_seq_len_q = 0;
  };
  std::int64_t count_nodes(const BatchView& view);
  std::int32_t longest_accept(const BatchView& view) const;

  Leaves& leaves_;
  CapturedSizes<Bound> captured_;
};

struct HostMetadata::Leaves final : public LeafSource {
  Leaves(const CaseConfig& config, const MetadataPath& case_path, const StepPlan& case_plan,
         const std::vector<RunnerInputs>& case_inputs, const ServingState& case_state,
         HostExecution& device)
      : path(case_path),
        plan(case_plan),
        merged(phases_ready_at_begin(case_plan)),
        inputs(case_inputs),
        state(case_state),
        execution(device),
        columns(page_columns(config)),
        recorded(static_cast<std::size_t>(case_plan.graphs)) {}

  std::unique_ptr<MetadataBackend> make(const LeafId& id) override {
    auto leaf = std::make_unique<Leaf>(*this, id);
    all.push_back(leaf.get());
    return leaf;
  }

  TableSetup setup() { return {&state.shape(), &memory, {}, {}, columns}; }
  // What the path is where it is recorded into a graph; null: one kernel.
  std::optional<OpByOp> captured_form() const {
    switch (path.form) {
      case RebuildForm::kOperations:
      case RebuildForm::kGlueGraph:
      case RebuildForm::kTorch:
        return OpByOp::kCaptured;
      case RebuildForm::kPageTable:
        return OpByOp::kPageTable;
      case RebuildForm::kOneKernel:
      case RebuildForm::kMergedKernel:
        break;
    }
    return std::nullopt;
  }
  // The rebuild is in the graph: by the path, or because the runner never calls the host's hook.
  bool records(const BatchView& view) const {
    return path.in_graph || !plan.phases[view.phase].replays_hook;
  }

  struct Rebuild {
    Leaf* leaf;
    BatchView view;
    std::int64_t nodes;
  };

  const MetadataPath& path;
  const StepPlan& plan;
  const std::vector<int> merged;  // phases that one launch of kMergedKernel fills, at the first
  const std::vector<RunnerInputs>& inputs;
  const ServingState& state;
  HostExecution& execution;
  kernels::PageColumns columns;
  HostTableMemory memory;
  std::vector<Leaf*> all;
  std::vector<std::vector<Rebuild>> recorded;  // by graph
  bool capturing = false;
  std::int64_t glue_nodes = 0;  // of the phase being rebuilt
};

HostMetadata::Leaf::Leaf(Leaves& leaves, const LeafId& id)
    : TablesLeaf(id, leaves.plan, leaves.setup(),
                 [&](std::size_t phase) { return leaves.inputs[phase].arrays(leaves.state); }),
      leaves_(leaves) {}

std::int32_t HostMetadata::Leaf::longest_accept(const BatchView& view) const {
  if (leaves_.capturing) return 1;  // the list of accepted lengths is empty
  const std::int32_t* accepts = leaves_.inputs[view.phase].accept_lens() + view.first_row;
  return *std::max_element(accepts, accepts + view.batch_size);
}

// What a rebuild is where it is captured, in a glue graph or a step's.
std::int64_t HostMetadata::Leaf::count_nodes(const BatchView& view) {
  LeafTables& to = tables(view.phase);
  if (to.filled_by_another()) return 0;
  const std::optional<OpByOp> form = leaves_.captured_form();
  if (!form) return 1;
  kernels::AddressSource addresses;
  kernels::TensorAllocator allocator(addresses.block_source());
  kernels::RecordingTensorOps ops(allocator, 0);
  to.rebuild(*form, ops, view);
  return ops.counts().kernel_launches + ops.counts().copies;
}

void HostMetadata::Leaf::capture(const BatchView& view) {
  Bound& bound = captured_.bind(view);
  bound.nodes = count_nodes(view);
  // Trees: capture has neither slots nor a mask to fill from, and only binds.
  if (id_.kind != LeafKind::kTopk) {
    leaves_.capturing = true;
    out_graph(view);
    leaves_.capturing = false;
  }
  // What the fill took from an empty list must not be baked into the graph.
  bound.max_seq_len_q = leaves_.plan.phases[view.phase].query_len;
}

void HostMetadata::Leaf::out_graph(const BatchView& view) {
  Bound& bound = captured_.find(view);
  if (leaves_.plan.phases[view.phase].rebuild == kernels::DecodePhase::kDraftExtendCumsum) {
    bound.max_seq_len_q = longest_accept(view);
  }
  if (tables(view.phase).filled_by_another() || leaves_.records(view)) return;
  switch (leaves_.path.form) {
    case RebuildForm::kOperations:
    case RebuildForm::kTorch:  // the same operations
      return fill_by_operations(view, OpByOp::kAten);
    case RebuildForm::kPageTable:
      return fill_by_operations(view, OpByOp::kPageTable);
    case RebuildForm::kGlueGraph:
      leaves_.glue_nodes += bound.nodes;
      if (leaves_.execution.computes()) fill_by_operations(view, OpByOp::kCaptured);
      return;
    case RebuildForm::kOneKernel:
      return fill_by_kernel(view);
    case RebuildForm::kMergedKernel:
      return fill_by_merged_kernel(view);
  }
}

void HostMetadata::Leaf::in_graph(const BatchView& view) {
  const Bound& bound = captured_.find(view);
  if (tables(view.phase).filled_by_another() || !leaves_.records(view)) return;
  leaves_.recorded[leaves_.plan.phases[view.phase].graph].push_back({this, view, bound.nodes});
}

void HostMetadata::Leaf::fill_by_operations(const BatchView& view, OpByOp form) {
  LeafTables& to = tables(view.phase);
  kernels::TensorOps& ops = leaves_.execution.operations(to.scalar(view));
  to.rebuild(form, ops, view);
  ops.end_rebuild();
}

void HostMetadata::Leaf::fill_by_kernel(const BatchView& view) {
  leaves_.execution.launch_kernel();
  if (leaves_.execution.computes()) tables(view.phase).reference(view);
}

void HostMetadata::Leaf::fill_by_merged_kernel(const BatchView& view) {
  const std::vector<int>& merged = leaves_.merged;
  const bool is_merged = std::find(merged.begin(), merged.end(), view.phase) != merged.end();
  if (!is_merged) return fill_by_kernel(view);
  if (view.phase != merged.front()) return;  // the first one's launch was this one's too
  leaves_.execution.launch_kernel();
  if (!leaves_.execution.computes()) return;
  for (const int phase : merged) {
    BatchView of_phase = view;
    of_phase.phase = phase;
    tables(phase).reference(of_phase);
  }
}

HostMetadata::HostMetadata(const CaseConfig& config, const MetadataPath& path,
                           const ServingState& state, HostExecution& execution,
                           const MakeComposition& make)
    : plan_(step_plan(config)),
      batch_size_(state.shape().batch_size),
      live_rows_(state.shape().live_batch) {
  for (const PlannedPhase& phase : plan_.phases) inputs_.emplace_back(state.shape(), phase);
  leaves_ = std::make_unique<Leaves>(config, path, plan_, inputs_, state, execution);
  composition_ = make(config, plan_, *leaves_);
  for (const std::int32_t size : captured_batch_sizes(config)) {
    for (int phase = 0; phase < static_cast<int>(plan_.phases.size()); ++phase) {
      composition_->capture(batch_view(phase, size, live_rows_));
    }
  }
  // Only the graphs that this batch replays.
  for (int g = 0; g < plan_.graphs; ++g) {
    for (int phase = plan_.first_phase(g); phase < plan_.last_phase(g); ++phase) {
      composition_->in_graph(batch_view(phase, batch_size_, live_rows_));
    }
    std::vector<kernels::GraphForward> forwards;
    for (const LayerRun& run : graph_layers(*composition_, plan_, g, batch_size_, live_rows_)) {
      forwards.push_back(forward_of_run(run, [&](const TableRows& rows) {
        Leaf& leaf = find_leaf(leaves_->all, rows.leaf);
        return leaf.tables(rows.view.phase).forward(rows.view, leaf.query_tokens(rows.view));
      }));
    }
    forwards_.push_back(std::move(forwards));
  }
}

HostMetadata::~HostMetadata() = default;

void HostMetadata::set_inputs(const StepInputs& inputs) {
  for (RunnerInputs& runner : inputs_) runner.set(inputs);
}

void HostMetadata::rebuild(int phase) {
  if (!plan_.phases[phase].replays_hook) return;
  leaves_->glue_nodes = 0;
  composition_->out_graph(batch_view(phase, batch_size_, live_rows_));
  // One glue graph holds what all leaves of the phase do.
  if (leaves_->glue_nodes > 0) leaves_->execution.launch_glue_graph(leaves_->glue_nodes);
}

void HostMetadata::replay(int graph) {
  const std::optional<OpByOp> form = leaves_->captured_form();
  for (const Leaves::Rebuild& rebuild : leaves_->recorded[graph]) {
    if (form) {
      rebuild.leaf->fill_by_operations(rebuild.view, *form);
    } else {
      rebuild.leaf->fill_by_kernel(rebuild.view);
    }
  }
}

std::int64_t HostMetadata::rebuild_nodes(int graph) const {
  std::int64_t nodes = 0;
  for (const Leaves::Rebuild& rebuild : leaves_->recorded[graph]) nodes += rebuild.nodes;
  return nodes;
}

LeafTables& HostMetadata::tables(const TableRows& rows) {
  return find_leaf(leaves_->all, rows.leaf).tables(rows.view.phase);
}

void HostMetadata::poison() {
  for (Leaf* leaf : leaves_->all) leaf->poison();
}

void HostMetadata::read_from(const ServingState& state) {
  for (Leaf* leaf : leaves_->all) {
    for (int phase = 0; phase < static_cast<int>(plan_.phases.size()); ++phase) {
      leaf->tables(phase).read_from(state.req_to_token().data());
    }
  }
}

}  // namespace tpjitter
