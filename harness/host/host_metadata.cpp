#include "harness/host/host_metadata.h"

#include <algorithm>

#include "harness/compositions/captured_sizes.h"
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

// One leaf: tables by phase, and what capture bound.
class HostMetadata::Leaf final : public MetadataBackend {
 public:
  Leaf(Leaves& leaves, const LeafId& id);

  void capture(const BatchView& view) override;
  void out_graph(const BatchView& view) override;
  void in_graph(const BatchView& view) override;
  void append_layers(const BatchView& view, int layers,
                     std::vector<LayerRun>& runs) const override {
    runs.push_back({{id_, view}, {}, layers});
  }

  const LeafId& id() const { return id_; }
  LeafTables& tables(int phase) { return *tables_[phase]; }
  std::int32_t query_tokens(const BatchView& view) { return captured_.find(view).max_seq_len_q; }
  void fill(const BatchView& view, OpByOp form);

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
  LeafId id_;
  std::vector<std::unique_ptr<LeafTables>> tables_;  // by phase
  CapturedSizes<Bound> captured_;
};

struct HostMetadata::Leaves final : public LeafSource {
  Leaves(const CaseConfig& config, const std::string& case_path, const StepPlan& case_plan,
         const std::vector<RunnerInputs>& case_inputs, const ServingState& case_state,
         HostExecution& device)
      : path(case_path),
        plan(case_plan),
        merged(case_path == "fused_multi" ? phases_ready_at_begin(case_plan) : std::vector<int>{}),
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

  Leaf& leaf(const LeafId& id) {
    return **std::find_if(all.begin(), all.end(),
                          [&](const Leaf* leaf) { return leaf->id() == id; });
  }

  bool fused() const {
    return path == "fused" || path == "fused_in_graph" || path == "fused_multi";
  }
  OpByOp captured_form() const {
    return path == "page_table_kernel" ? OpByOp::kPageTable : OpByOp::kCaptured;
  }
  // The rebuild is in the graph: by the path, or because the runner never calls the host's hook.
  bool records(const BatchView& view) const {
    return path == "fused_in_graph" || !plan.phases[view.phase].replays_hook;
  }

  struct Rebuild {
    Leaf* leaf;
    BatchView view;
    std::int64_t nodes;
  };

  const std::string path;
  const StepPlan& plan;
  const std::vector<int> merged;  // phases that one launch of fused_multi fills, at the first
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

HostMetadata::Leaf::Leaf(Leaves& leaves, const LeafId& id) : leaves_(leaves), id_(id) {
  const std::size_t phases = leaves.plan.phases.size();
  for (std::size_t phase = 0; phase < phases; ++phase) {
    TableSetup setup;
    setup.shape = &leaves.state.shape();
    setup.memory = &leaves.memory;
    setup.arrays = leaves.inputs[phase].arrays(leaves.state);
    setup.phase = leaves.plan.phases[phase];
    setup.columns = leaves.columns;
    tables_.push_back(make_tables(id.kind, setup));
  }
  link_draft_passes(tables_);
}

std::int32_t HostMetadata::Leaf::longest_accept(const BatchView& view) const {
  if (leaves_.capturing) return 1;  // the list of accepted lengths is empty
  const std::int32_t* accepts = leaves_.inputs[view.phase].accept_lens() + view.first_row;
  return *std::max_element(accepts, accepts + view.batch_size);
}

// What a rebuild is where it is captured, in a glue graph or a step's.
std::int64_t HostMetadata::Leaf::count_nodes(const BatchView& view) {
  LeafTables& to = tables(view.phase);
  if (to.filled_by_another()) return 0;
  if (leaves_.fused()) return 1;
  kernels::AddressSource addresses;
  kernels::TensorAllocator allocator(addresses.block_source());
  kernels::RecordingTensorOps ops(allocator, 0);
  to.rebuild(leaves_.captured_form(), ops, view);
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
  if (leaves_.path == "glue_graph") leaves_.glue_nodes += bound.nodes;
  if (leaves_.path == "glue_graph" && !leaves_.execution.computes()) return;
  fill(view,
       leaves_.path == "aten" || leaves_.path == "torch" ? OpByOp::kAten : leaves_.captured_form());
}

void HostMetadata::Leaf::in_graph(const BatchView& view) {
  const Bound& bound = captured_.find(view);
  if (tables(view.phase).filled_by_another() || !leaves_.records(view)) return;
  leaves_.recorded[leaves_.plan.phases[view.phase].graph].push_back({this, view, bound.nodes});
}

void HostMetadata::Leaf::fill(const BatchView& view, OpByOp form) {
  LeafTables& to = tables(view.phase);
  HostExecution& execution = leaves_.execution;
  if (!leaves_.fused()) {
    kernels::TensorOps& ops = execution.operations(to.scalar(view));
    to.rebuild(form, ops, view);
    ops.end_rebuild();
    return;
  }
  const std::vector<int>& merged = leaves_.merged;
  const bool is_merged = std::find(merged.begin(), merged.end(), view.phase) != merged.end();
  if (is_merged && view.phase != merged.front()) return;  // the first one's launch was this one's
  execution.launch_kernel();
  if (!execution.computes()) return;
  if (!is_merged) return to.reference(view);
  for (const int phase : merged) {
    BatchView of_phase = view;
    of_phase.phase = phase;
    tables(phase).reference(of_phase);
  }
}

HostMetadata::HostMetadata(const CaseConfig& config, const std::string& path,
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
        Leaf& leaf = leaves_->leaf(rows.leaf);
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
  for (const Leaves::Rebuild& rebuild : leaves_->recorded[graph]) {
    rebuild.leaf->fill(rebuild.view, leaves_->captured_form());
  }
}

std::int64_t HostMetadata::rebuild_nodes(int graph) const {
  std::int64_t nodes = 0;
  for (const Leaves::Rebuild& rebuild : leaves_->recorded[graph]) nodes += rebuild.nodes;
  return nodes;
}

LeafTables& HostMetadata::tables(const TableRows& rows) {
  return leaves_->leaf(rows.leaf).tables(rows.view.phase);
}

void HostMetadata::poison() {
  for (Leaf* leaf : leaves_->all) {
    for (int phase = 0; phase < static_cast<int>(plan_.phases.size()); ++phase) {
      leaf->tables(phase).poison();
    }
  }
}

void HostMetadata::read_from(const ServingState& state) {
  for (Leaf* leaf : leaves_->all) {
    for (int phase = 0; phase < static_cast<int>(plan_.phases.size()); ++phase) {
      leaf->tables(phase).read_from(state.req_to_token().data());
    }
  }
}

}  // namespace tpjitter
