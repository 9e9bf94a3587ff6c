#include "harness/cuda/cuda_metadata.h"

#include <algorithm>
#include <optional>

#include "harness/compositions/captured_sizes.h"
#include "harness/contract/error.h"
#include "harness/leaf_forms.h"
#include "harness/leaf_topk.h"
#include "harness/tables_leaf.h"
#include "harness/torch/torch_path.h"
#include "kernels/metadata_fused_multi.h"
#if TPJITTER_HAS_TORCH
#include "harness/torch/torch_rebuild.h"
#endif

namespace tpjitter {

void* DeviceTableMemory::allocate(std::size_t bytes) {
  DeviceBuffer<std::byte>& block = blocks_.emplace_back(std::max<std::size_t>(bytes, 1));
  check_cuda(cudaMemset(block.data(), 0, block.size()));
  return block.data();
}

// Streams of a case do not wait for the legacy stream.
void DeviceTableMemory::fill(void* to, unsigned char value, std::size_t bytes) {
  if (bytes > 0) check_cuda(cudaMemset(to, value, bytes));
  check_cuda(cudaStreamSynchronize(nullptr));
}

void DeviceTableMemory::write(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) check_cuda(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice));
  check_cuda(cudaStreamSynchronize(nullptr));
}

void DeviceTableMemory::read(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) check_cuda(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost));
}

// One leaf: its tables, and what capture bound.
class CudaMetadata::Leaf final : public TablesLeaf {
 public:
  Leaf(CudaMetadata& metadata, Leaves& leaves, const LeafId& id);

  void capture(const BatchView& view) override;
  void out_graph(const BatchView& view) override;
  void in_graph(const BatchView& view) override;
  std::int32_t query_tokens(const BatchView& view) { return captured_.find(view).max_seq_len_q; }

 private:
  // Made at capture: a replay of the one-kernel path only launches.
  struct Bound {
    kernels::FusedMetadataLaunch paged;
    kernels::FusedMultiLaunch paged_multi;  // at the first of multi_ only
    KvIndicesTables::Fills lists;
    kernels::LinearStateArgs linear;
#if TPJITTER_HAS_TORCH
    std::shared_ptr<TorchRebuild> torch;
#endif
    kernels::TopkDraftArgs tree_draft;
    kernels::TopkVerifyArgs tree_verify;
    // Query tokens a row, which a forward takes when it is recorded. A draft-extend with prefix sums
    // takes the longest accepted length, as its replay does.
    std::int32_t max_seq_len_q = 0;
  };
  void prepare(const BatchView& view, Bound& bound);
  int launch_kernel(const BatchView& view, const Bound& bound) const;
  int launch_merged_kernel(const BatchView& view, const Bound& bound) const;
  void prepare_torch(const BatchView& view, Bound& bound) const;
  void rebuild(const BatchView& view, const Bound& bound);
  bool records(const BatchView& view) const {
    return metadata_.path_->in_graph || !metadata_.plan_.phases[view.phase].replays_hook;
  }

  CudaMetadata& metadata_;
  Leaves& leaves_;
  std::vector<int> multi_;  // phases of one launch of kMergedKernel
  CapturedSizes<Bound> captured_;
  bool capturing_ = false;
};

struct CudaMetadata::Leaves final : public LeafSource {
  Leaves(CudaMetadata& owner, const CaseConfig& config, const ServingShape& case_shape,
         const std::vector<PhaseArrays>& case_arrays, const std::int32_t* accepts)
      : metadata(owner),
        shape(case_shape),
        arrays(case_arrays),
        accept_lens_cpu(accepts),
        columns(page_columns(config)) {}

  std::unique_ptr<MetadataBackend> make(const LeafId& id) override {
    auto leaf = std::make_unique<Leaf>(metadata, *this, id);
    all.push_back(leaf.get());
    return leaf;
  }
  TableSetup setup() { return {&shape, &metadata.memory_, {}, {}, columns}; }

  CudaMetadata& metadata;
  const ServingShape& shape;
  const std::vector<PhaseArrays>& arrays;
  const std::int32_t* accept_lens_cpu;
  kernels::PageColumns columns;
  std::vector<Leaf*> all;
};

CudaMetadata::Leaf::Leaf(CudaMetadata& metadata, Leaves& leaves, const LeafId& id)
    : TablesLeaf(id, metadata.plan_, leaves.setup(),
                 [&](std::size_t phase) { return leaves.arrays[phase]; }),
      metadata_(metadata),
      leaves_(leaves),
      multi_(phases_ready_at_begin(metadata.plan_)) {}

void CudaMetadata::Leaf::prepare(const BatchView& view, Bound& bound) {
  const LeafTables& tables = *tables_[view.phase];
  if (id_.kind == LeafKind::kPaged) {
    const auto args = [&](int phase) {
      BatchView of_phase = view;
      of_phase.phase = phase;
      return static_cast<const PagedTables&>(*tables_[phase]).args(of_phase);
    };
    check_cuda(kernels::prepare_fused_metadata(args(view.phase), &bound.paged));
    prepare_torch(view, bound);
    if (multi_.empty() || view.phase != multi_.front()) return;
    std::vector<kernels::DecodeMetadataArgs> all;
    for (const int phase : multi_) all.push_back(args(phase));
    check_cuda(kernels::prepare_fused_multi(all, &bound.paged_multi));
  } else if (id_.kind == LeafKind::kKvIndices) {
    bound.lists = static_cast<const KvIndicesTables&>(tables).fills(view);
  } else if (id_.kind == LeafKind::kTopk) {
    const auto& tree = static_cast<const TopkTables&>(tables);
    if (tree.verifies()) {
      bound.tree_verify = tree.verify_args(view);
    } else {
      bound.tree_draft = tree.draft_args(view);
    }
  } else {
    bound.linear = static_cast<const LinearStateTables&>(tables).args(view);
  }
}

void CudaMetadata::Leaf::prepare_torch([[maybe_unused]] const BatchView& view,
                                       [[maybe_unused]] Bound& bound) const {
#if TPJITTER_HAS_TORCH
  if (!metadata_.has_torch_) return;
  int device = 0;
  check_cuda(cudaGetDevice(&device));
  const auto& tables = static_cast<const PagedTables&>(*tables_[view.phase]);
  bound.torch =
      std::make_shared<TorchRebuild>(tables.phase().rebuild, tables.aten_args(view), device);
#endif
}

void CudaMetadata::Leaf::capture(const BatchView& view) {
  Bound& bound = captured_.bind(view);
  prepare(view, bound);
  // Trees: capture has neither slots nor a mask to fill from, and only binds.
  if (metadata_.ops_ != nullptr && id_.kind != LeafKind::kTopk) {
    capturing_ = true;
    out_graph(view);
    capturing_ = false;
  }
  // What the fill took from an empty list must not be baked into the graph.
  bound.max_seq_len_q = metadata_.plan_.phases[view.phase].query_len;
}

void CudaMetadata::Leaf::out_graph(const BatchView& view) {
  Bound& bound = captured_.find(view);
  if (metadata_.plan_.phases[view.phase].rebuild == kernels::DecodePhase::kDraftExtendCumsum) {
    const std::int32_t* accepts = leaves_.accept_lens_cpu + view.first_row;
    // At capture the list of accepted lengths is empty.
    bound.max_seq_len_q = capturing_ ? 1 : *std::max_element(accepts, accepts + view.batch_size);
  }
  if (!records(view)) rebuild(view, bound);
}

void CudaMetadata::Leaf::in_graph(const BatchView& view) {
  const Bound& bound = captured_.find(view);
  if (records(view)) rebuild(view, bound);
}

int CudaMetadata::Leaf::launch_kernel(const BatchView& view, const Bound& bound) const {
  const cudaStream_t stream = metadata_.stream_;
  switch (id_.kind) {
    case LeafKind::kPaged:
      return kernels::launch_fused_metadata(bound.paged, stream);
    case LeafKind::kKvIndices:
      return kernels::launch_kv_indices(bound.lists.span(), stream);
    case LeafKind::kLinearState:
      return kernels::launch_linear_state(bound.linear, stream);
    case LeafKind::kTopk:
      return static_cast<const TopkTables&>(*tables_[view.phase]).verifies()
                 ? kernels::launch_topk_verify(bound.tree_verify, stream)
                 : kernels::launch_topk_draft(bound.tree_draft, stream);
  }
  return cudaErrorInvalidValue;
}

int CudaMetadata::Leaf::launch_merged_kernel(const BatchView& view, const Bound& bound) const {
  const bool merged = std::find(multi_.begin(), multi_.end(), view.phase) != multi_.end();
  if (!merged || id_.kind != LeafKind::kPaged) return launch_kernel(view, bound);
  if (view.phase != multi_.front())
    return cudaSuccess;  // the first one's launch was this one's too
  return kernels::launch_fused_multi(bound.paged_multi, metadata_.stream_);
}

void CudaMetadata::Leaf::rebuild(const BatchView& view, const Bound& bound) {
  LeafTables& tables = *tables_[view.phase];
  if (tables.filled_by_another()) return;
  int status = cudaSuccess;
  switch (metadata_.path_->form) {
    case RebuildForm::kOperations: {
      // Where the runner never calls the host, what can be captured of the path is in the graph.
      const OpByOp form = records(view) ? OpByOp::kCaptured : OpByOp::kAten;
      status = tables.rebuild(form, *metadata_.ops_, view);
      break;
    }
    case RebuildForm::kPageTable:
      status = tables.rebuild(OpByOp::kPageTable, *metadata_.ops_, view);
      break;
    case RebuildForm::kGlueGraph:
      status = tables.rebuild(OpByOp::kCaptured, *metadata_.ops_, view);
      break;
    case RebuildForm::kOneKernel:
      status = launch_kernel(view, bound);
      break;
    case RebuildForm::kMergedKernel:
      status = launch_merged_kernel(view, bound);
      break;
    case RebuildForm::kTorch:
#if TPJITTER_HAS_TORCH
      bound.torch->run(metadata_.stream_);
#endif
      break;
  }
  if (metadata_.status_ == cudaSuccess) metadata_.status_ = status;
}

CudaMetadata::CudaMetadata(const CaseConfig& config, const StepPlan& plan,
                           const ServingShape& shape, const std::vector<PhaseArrays>& arrays,
                           const std::int32_t* accept_lens_cpu)
    : plan_(plan),
      path_(&metadata_path(config.path)),
      has_torch_(path_->needs_torch && path_exists(config, *path_)) {
  if (path_->needs_torch && !kHasTorchPath) {
    throw ConfigError("step.path: " + config.path + " is not built for the cuda backend");
  }
  leaves_ = std::make_unique<Leaves>(*this, config, shape, arrays, accept_lens_cpu);
  composition_ = make_composition(config, plan, *leaves_);
}

CudaMetadata::~CudaMetadata() = default;

void CudaMetadata::launch_on(cudaStream_t stream, kernels::TensorOps* ops) {
  stream_ = stream;
  ops_ = ops;
}

kernels::GraphForward CudaMetadata::forward(const LayerRun& run) {
  return forward_of_run(run, [&](const TableRows& rows) {
    Leaf& leaf = find_leaf(leaves_->all, rows.leaf);
    return leaf.tables(rows.view.phase).forward(rows.view, leaf.query_tokens(rows.view));
  });
}

LeafTables& CudaMetadata::tables(const TableRows& rows) {
  return find_leaf(leaves_->all, rows.leaf).tables(rows.view.phase);
}

void CudaMetadata::poison() {
  for (Leaf* leaf : leaves_->all) leaf->poison();
}

int CudaMetadata::take_status() {
  const int status = status_;
  status_ = cudaSuccess;
  return status;
}

}  // namespace tpjitter
