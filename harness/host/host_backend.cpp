#include "harness/host/host_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "harness/clock.h"
#include "harness/host/modelled_device.h"
#include "harness/host/modelled_tensor_ops.h"
#include "harness/metadata_buffers.h"
#include "harness/serving_state.h"
#include "harness/step.h"
#include "kernels/metadata_aten.h"
#include "kernels/tensor_ops_recording.h"
#include "kernels/tensor_ops_reference.h"

namespace tpjitter {
namespace {

using kernels::DecodeMetadataArgs;
using kernels::DecodePhase;

constexpr int kControlSamples = 64;

// The model of a captured body: attention, all-reduce, load, all-reduce a layer, then accept.
ModelledGraph model_graph(const CaseConfig& config, const DeviceModel& m,
                          std::int64_t all_reduce_bytes, int world_size) {
  ModelledGraph graph;
  const bool in_graph = config.path == "fused_in_graph";
  const std::int64_t nodes = config.layers * config.nodes_per_layer + 1 + (in_graph ? 1 : 0);
  graph.host_ns = m.graph_launch_host_ns + nodes * m.graph_launch_host_per_1000_nodes_ns / 1000;
  graph.lead_ns = m.attention_ns + (in_graph ? m.metadata_kernel_ns : 0);
  graph.transfer_ns = m.transfer_ns(all_reduce_bytes);
  graph.all_reduces = static_cast<std::int32_t>(config.layers * kernels::kAllReducesPerLayer);
  const std::int64_t all_reduce_ns = graph.transfer_ns + (world_size > 1 ? m.flight_ns : 0);
  const std::int64_t filler_ns =
      std::max<std::int64_t>(0, config.nodes_per_layer - 4) * m.filler_node_ns;
  const auto load_ns = static_cast<std::int64_t>(config.layer_us * 1000.0);
  const std::int64_t layer_ns = m.attention_ns + load_ns + filler_ns + 2 * all_reduce_ns;
  // Everything after the first all-reduce of the first layer.
  graph.rest_ns = layer_ns * config.layers - m.attention_ns - all_reduce_ns + m.accept_ns;
  return graph;
}

// Everything of one prepared case.
struct HostCase {
  HostCase(const CaseConfig& c, int world_size)
      : config(c),
        shape(ServingShape::of(c)),
        body(body_shape(c, world_size)),
        columns(c.page_columns == "live" ? kernels::PageColumns::kLive
                                         : kernels::PageColumns::kAll),
        live(shape),
        verify(shape),
        expected(shape, columns),
        computed(shape, columns),
        strided_indices(shape.max_seq_pages),
        staged_seq_lens(shape.batch_size),
        computed_seq_lens(shape.batch_size),
        model_allocator(kernels::host_block_source()),
        reference_allocator(kernels::host_block_source()),
        reference_ops(reference_allocator) {
    for (std::int32_t i = 0; i < shape.max_seq_pages; ++i) {
      strided_indices[i] = std::int64_t{i} * shape.page_size;
    }
  }

  // `seq_lens` holds the host copy of the lengths for as long as the arguments are used.
  kernels::AtenMetadataArgs aten_args(const DecodeMetadataArgs& metadata, const StepInputs& inputs,
                                      std::vector<std::int64_t>& seq_lens) {
    std::copy(inputs.seq_lens.begin(), inputs.seq_lens.end(), seq_lens.begin());
    kernels::AtenMetadataArgs args;
    args.metadata = metadata;
    args.seq_lens_cpu = seq_lens.data();
    args.strided_indices = strided_indices.data();
    args.pool_rows = shape.pool_rows;
    args.swa_out_buffer_len = shape.swa ? shape.max_batch : 0;
    args.full_to_swa_len = static_cast<std::int64_t>(live.full_to_swa().size());
    return args;
  }

  // Computes the step's metadata the way the path does, on host memory, outside every stamp.
  DecodeMetadataArgs compute(const std::string& path, const ServingState& state,
                             const StepInputs& inputs) {
    const DecodeMetadataArgs args = computed.args(state, inputs);
    if (path == "aten") {
      kernels::rebuild_metadata_aten(reference_ops, DecodePhase::kNormalDecode,
                                     aten_args(args, inputs, computed_seq_lens));
      reference_ops.end_rebuild();
    } else {
      kernels::reference_decode_metadata(args);
    }
    return args;
  }

  CaseConfig config;
  ServingShape shape;
  kernels::DecodeBodyShape body;
  kernels::PageColumns columns;
  ServingState live, verify;  // `verify` follows block by block
  MetadataBuffers expected, computed;
  std::vector<std::int64_t> strided_indices, staged_seq_lens, computed_seq_lens;
  kernels::TensorAllocator model_allocator, reference_allocator;
  kernels::ReferenceTensorOps reference_ops;
  DecodeMetadataArgs staged;  // of the next step
  kernels::AtenMetadataArgs staged_aten;
};

class HostBackend final : public Backend {
 public:
  explicit HostBackend(const RankContext& context)
      : context_(context), device_(context, DeviceModel{}) {
    step_.slot = &context.control->rank(context.rank);
  }

  CaseChecks prepare(const CaseConfig& config) override {
    case_.emplace(config, context_.world_size);
    ops_.emplace(case_->model_allocator, device_, config.op_overhead_ns);
    graph_ = model_graph(config, device_.model(), case_->body.all_reduce_elements * 2,
                         context_.world_size);
    step_.injection = Injection::of(config, context_.rank);
    first_launch_ = device_.graph_launches();
    checked_steps_ = 0;
    run_steps_ = 0;

    CaseChecks checks = check_paths();
    if (config.path == "aten") warm_allocator();
    stage_inputs(0);
    return checks;
  }

  Json operations() const override {
    if (case_->config.path == "aten") return aten_operations();
    const int launches = case_->config.path == "fused" ? 1 : 0;
    return {{"calls", launches}, {"kernel_launches", launches}, {"copies", 0}, {"syncs", 0}};
  }

  void run_step(std::int64_t step, std::span<PhaseRow> rows) override {
    tpjitter::run_step(*this, step_, step, rows);
    ++run_steps_;
  }

  // The Device of harness/step.h.
  void wait_accept(std::int64_t) { device_.synchronize(); }
  void copy_inputs(int) {  // one packed H2D copy and the kernel that applies it
    device_.copy_async();
    device_.launch_kernel(device_.model().kernel_ns);
  }
  void rebuild_metadata(int) {
    if (case_->config.path == "aten") {
      kernels::rebuild_metadata_aten(*ops_, DecodePhase::kNormalDecode, case_->staged_aten);
      ops_->end_rebuild();
    } else if (case_->config.path == "fused") {
      device_.launch_kernel(device_.model().metadata_kernel_ns);
    }
  }
  void launch_graph(int) { device_.launch_graph(graph_); }
  void stage_inputs(std::int64_t) {
    const StepInputs& inputs = case_->live.advance();
    case_->staged = case_->computed.args(case_->live, inputs);
    case_->staged_aten = case_->aten_args(case_->staged, inputs, case_->staged_seq_lens);
  }

  CaseChecks finish_block(std::span<PhaseRow> rows) override {
    device_.synchronize();
    fill_device_stamps(rows);
    return check_steps();
  }

  RunControl controls(const CaseConfig& config) override;
  std::string device_name() const override { return "modelled device"; }
  std::string device_uuid() const override { return {}; }

 private:
  void warm_allocator();
  CaseChecks check_paths();
  CaseChecks check_steps();
  void fill_device_stamps(std::span<PhaseRow> rows);
  Json aten_operations() const;

  RankContext context_;
  ModelledDevice device_;
  StepContext step_;
  std::optional<HostCase> case_;
  std::optional<ModelledTensorOps> ops_;
  ModelledGraph graph_;
  std::int64_t first_launch_ = 0;  // graph launch of the case's step 0
  std::int64_t run_steps_ = 0;
  std::int64_t checked_steps_ = 0;
};

// The allocator hands out blocks by size, so every page-table width that the steps can reach has
// its temporaries made before the first of them.
void HostBackend::warm_allocator() {
  ServingState state(case_->shape);
  StepInputs inputs = state.advance();
  const DecodeMetadataArgs args = case_->computed.args(state, inputs);
  for (std::int64_t tokens = 1;; tokens *= 2) {
    const std::int64_t length = std::min(tokens, case_->shape.max_context);
    std::fill(inputs.seq_lens.begin(), inputs.seq_lens.end(), static_cast<std::int32_t>(length));
    kernels::rebuild_metadata_aten(*ops_, DecodePhase::kNormalDecode,
                                   case_->aten_args(args, inputs, case_->staged_seq_lens));
    ops_->end_rebuild();
    if (length == case_->shape.max_context) break;
  }
  device_.synchronize();
}

CaseChecks HostBackend::check_paths() {
  CaseChecks checks;
  ServingState state(case_->shape);
  const StepInputs& inputs = state.advance();
  const DecodeMetadataArgs expected = case_->expected.args(state, inputs);
  kernels::reference_decode_metadata(expected);
  for (const char* path : {"aten", "fused"}) {
    case_->computed.poison();
    const std::string difference =
        MetadataBuffers::difference(case_->compute(path, state, inputs), expected);
    if (difference.empty()) continue;
    checks.bit_equal = false;
    checks.first_failure = fmt::format("rank {}: path {} differs from the reference: {}",
                                       context_.rank, path, difference);
  }
  return checks;
}

CaseChecks HostBackend::check_steps() {
  CaseChecks checks;
  for (; checked_steps_ < run_steps_; ++checked_steps_) {
    const StepInputs& inputs = case_->verify.advance();
    const DecodeMetadataArgs expected = case_->expected.args(case_->verify, inputs);
    kernels::reference_decode_metadata(expected);
    const DecodeMetadataArgs got = case_->compute(case_->config.path, case_->verify, inputs);
    const auto want = kernels::reference_step_checksum(expected, case_->body, inputs.step);
    const auto have = kernels::reference_step_checksum(got, case_->body, inputs.step);
    ++checks.steps_checked;
    if (want == have) continue;
    ++checks.checksum_failures;
    if (checks.first_failure.empty()) {
      checks.first_failure =
          fmt::format("rank {}, step {}, phase normal_decode: checksum {:016x}, expected {:016x}",
                      context_.rank, inputs.step, have, want);
    }
  }
  return checks;
}

void HostBackend::fill_device_stamps(std::span<PhaseRow> rows) {
  // The block's rows are the last steps run.
  std::int64_t launch = first_launch_ + run_steps_ - static_cast<std::int64_t>(rows.size());
  for (PhaseRow& row : rows) {
    const ModelledReplay& replay = device_.replay(launch++);
    const std::int64_t wait = replay.last_seen_ns - replay.own_ns;
    const std::int64_t flight = context_.world_size > 1 ? device_.model().flight_ns : 0;
    row.flags |= kFlagModelledDevice | kFlagWaited;
    row.gpu_begin_ns = replay.begin_ns;
    row.gpu_end_ns = replay.end_ns;
    row.first_all_reduce_own_ns = replay.own_ns;
    row.first_all_reduce_last_seen_ns = replay.last_seen_ns;
    row.first_all_reduce_end_ns = replay.all_reduce_end_ns;
    row.first_all_reduce_last_peer = replay.last_peer;
    row.all_reduce_count = graph_.all_reduces;
    // The model has no variation inside a graph: every later all-reduce waits for the flight only.
    row.all_reduce_wait_sum_ns = wait + (graph_.all_reduces - 1) * flight;
    row.all_reduce_wait_max_ns = std::max(wait, flight);
  }
}

Json HostBackend::aten_operations() const {
  kernels::AddressSource addresses;
  kernels::TensorAllocator allocator(addresses.block_source());
  const auto& lengths = case_->staged_seq_lens;
  kernels::RecordingTensorOps ops(allocator, *std::max_element(lengths.begin(), lengths.end()));
  kernels::rebuild_metadata_aten(ops, DecodePhase::kNormalDecode, case_->staged_aten);
  const kernels::OperationCounts totals = ops.counts();
  return {{"calls", totals.calls},
          {"kernel_launches", totals.kernel_launches},
          {"copies", totals.copies},
          {"syncs", totals.syncs}};
}

RunControl HostBackend::controls(const CaseConfig& config) {
  RunControl control;
  control.all_reduce = config.all_reduce;
  control.all_reduce_bytes = body_shape(config, context_.world_size).all_reduce_elements * 2;
  ModelledGraph empty;
  empty.host_ns = device_.model().graph_launch_host_ns;
  empty.lead_ns = device_.model().filler_node_ns;
  for (int i = 0; i < kControlSamples; ++i) {
    const std::int64_t begin = now_ns();
    device_.launch_graph(empty);
    control.empty_graph_launch_ns.push_back(now_ns() - begin);
    device_.synchronize();
  }
  // Ranks that arrive together: the model's constants, with no host in between.
  const std::int64_t flight = context_.world_size > 1 ? device_.model().flight_ns : 0;
  control.zero_skew_wait_ns.assign(kControlSamples, flight);
  control.zero_skew_all_reduce_ns.assign(
      kControlSamples, flight + device_.model().transfer_ns(control.all_reduce_bytes));
  return control;
}

}  // namespace

std::unique_ptr<Backend> make_host_backend(const RankContext& context) {
  return std::make_unique<HostBackend>(context);
}

int host_capacity(std::string* reason) {
  *reason = "the host backend carries that many rank processes";
  return kMaxRanks;
}

Json host_model() { return DeviceModel{}.to_json(); }

std::string host_skip_reason(const CaseConfig& config, int) {
  if (config.all_reduce == "nccl") {
    return "all_reduce = \"nccl\" needs GPUs; the host backend models one_shot_pull only";
  }
  return {};
}

std::optional<int> host_numa_node(int) { return std::nullopt; }

void describe_host(Json& environment, Json&) { environment["device"] = "modelled device"; }

}  // namespace tpjitter
