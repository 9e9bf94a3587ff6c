#include "harness/host/host_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "harness/clock.h"
#include "harness/host/host_case.h"
#include "harness/host/modelled_device.h"
#include "harness/host/modelled_tensor_ops.h"
#include "harness/path_operations.h"
#include "harness/step.h"

namespace tpjitter {
namespace {

constexpr int kControlSamples = 64;

// What a rebuild costs on the modelled device; nothing is computed.
class ModelledExecution final : public HostExecution {
 public:
  ModelledExecution(ModelledDevice& device, CallOverhead overhead)
      : device_(device), ops_(allocator_, device, std::move(overhead)) {}

  kernels::TensorOps& operations(std::int64_t scalar) override {
    ops_.set_scalar(scalar);
    ops_.begin_rebuild();
    return ops_;
  }
  void launch_kernel() override { device_.launch_kernel(device_.model().metadata_kernel_ns); }
  void launch_glue_graph(std::int64_t nodes) override { device_.launch_glue_graph(nodes); }
  bool computes() const override { return false; }

 private:
  ModelledDevice& device_;
  kernels::TensorAllocator allocator_{kernels::host_block_source()};
  ModelledTensorOps ops_;
};

class HostBackend final : public Backend {
 public:
  explicit HostBackend(const RankContext& context)
      : context_(context), device_(context, DeviceModel{}) {
    step_.slot = &context.control->rank(context.rank);
    step_.coupling = Coupling(*context.control, context.rank);
  }

  CaseChecks prepare(const CaseConfig& config) override {
    timed_.reset();
    case_.emplace(config, device_.model(), context_.world_size);
    execution_.emplace(device_, CallOverhead::of(config, context_.rank));
    timed_.emplace(config, metadata_path(config.path), case_->live, *execution_);
    step_.plan = case_->plan;
    step_.injection = Injection::of(config, context_.rank, context_.world_size);
    step_.coupling.prepare(config, context_.control->deadlines().launcher_ns);
    step_.run_ahead_depth = config.loop == "run_ahead" ? config.run_ahead_depth : 0;
    device_.synchronize();
    device_.keep_replays((config.block_steps + config.run_ahead_depth + 2) * case_->plan.graphs);
    first_launch_ = device_.graph_launches();
    checked_steps_ = 0;
    run_steps_ = 0;

    CaseChecks checks;
    checks.first_failure = path_difference(config, context_.rank);
    checks.bit_equal = checks.first_failure.empty();
    warm_allocator();
    stage_inputs(0);
    // A rank that prepared longer must not cost the others their first all-reduce's deadline.
    context_.control->barrier(context_.rank, context_.control->deadlines().prepare_ns, "prepared");
    return checks;
  }

  Json operations() const override { return path_operations(case_->config); }

  void run_step(std::int64_t step, std::span<PhaseRow> rows) override {
    tpjitter::run_step(*this, step_, step, rows);
    ++run_steps_;
  }

  // The Device of harness/step.h.
  void wait_accept(std::int64_t step) {
    if (step >= 0) device_.wait_for_graph(first_launch_ + (step + 1) * case_->plan.graphs - 1);
  }
  void check_device(std::int64_t step) {
    device_.resolve_graph_launch(first_launch_ + (step + 1) * case_->plan.graphs - 1);
  }
  void copy_inputs(int phase) {
    if (phase == 0) {  // one packed H2D copy and the kernel that applies it
      if (has_schedule_stream(case_->config)) {
        device_.write_scheduled();
      } else {
        device_.copy_async();
      }
      device_.launch_kernel(device_.model().kernel_ns);
    }
    const PlannedPhase& planned = case_->plan.phases[phase];
    // A runner's own buffers, its move from one draft-extend to the next, or a tree's mask.
    if (planned.has_own_inputs() || case_->plan.masks_tree(phase)) {
      device_.launch_kernel(device_.model().kernel_ns);
    }
  }
  void rebuild_metadata(int phase) {
    if (phase == 0 && case_->config.seq_lens_sync) {
      device_.copy_async();
      device_.synchronize();
    }
    timed_->rebuild(phase);
  }
  void launch_graph(int graph) {
    const bool last = graph + 1 == case_->plan.graphs;
    if (last && case_->config.read_done == "pre_replay") device_.call_event();
    ModelledDelay delay;
    if (graph == 0 && step_.injection.where == InjectWhere::kGpu) {
      delay = {true, step_.injection.victim(run_steps_), step_.injection.amount_ns};
    }
    device_.launch_graph(case_->graphs[graph], delay);
  }
  void stage_inputs(std::int64_t) { timed_->set_inputs(case_->live.advance()); }

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
  CaseChecks check_steps();
  void fill_device_stamps(std::span<PhaseRow> rows);

  RankContext context_;
  ModelledDevice device_;
  StepContext step_;
  std::optional<HostCase> case_;
  std::optional<ModelledExecution> execution_;
  std::optional<HostMetadata> timed_;  // over case_->live
  std::int64_t first_launch_ = 0;      // graph launch of the case's step 0
  std::int64_t run_steps_ = 0;
  std::int64_t checked_steps_ = 0;
};

// The allocator hands out blocks by size, so every page-table width that the steps can reach has
// its temporaries made before the first of them.
void HostBackend::warm_allocator() {
  ServingState state(case_->shape);
  StepInputs inputs = state.advance();
  // A phase adds its own tokens to the length.
  const std::int64_t most =
      case_->shape.max_context - std::max(case_->plan.query_len, case_->plan.draft_passes);
  for (std::int64_t tokens = 1;; tokens = std::min(2 * tokens, most)) {
    std::fill(inputs.seq_lens.begin(), inputs.seq_lens.end(), static_cast<std::int32_t>(tokens));
    timed_->set_inputs(inputs);
    for (int phase = 0; phase < static_cast<int>(case_->plan.phases.size()); ++phase) {
      timed_->rebuild(phase);
    }
    if (tokens == most) break;
  }
  device_.synchronize();
}

CaseChecks HostBackend::check_steps() {
  CaseChecks checks;
  for (; checked_steps_ < run_steps_; ++checked_steps_) {
    case_->advance();
    ++checks.steps_checked;
    for (int g = 0; g < case_->plan.graphs; ++g) {
      const std::string fault = case_->checksum_fault(context_.rank, g);
      if (fault.empty()) continue;
      ++checks.checksum_failures;
      if (checks.first_failure.empty()) checks.first_failure = fault;
    }
  }
  return checks;
}

void HostBackend::fill_device_stamps(std::span<PhaseRow> rows) {
  const auto phases = case_->plan.phases.size();
  const std::int64_t flight = context_.world_size > 1 ? device_.model().flight_ns : 0;
  // The block's rows are those of the last steps run.
  const std::int64_t first_step = run_steps_ - static_cast<std::int64_t>(rows.size() / phases);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    PhaseRow& row = rows[i];
    const PlannedPhase& phase = case_->plan.phases[i % phases];
    row.flags |= kFlagModelledDevice;
    row.first_all_reduce_last_peer = -1;
    if (!phase.launches) continue;
    const std::int64_t step = first_step + static_cast<std::int64_t>(i / phases);
    const ModelledReplay& replay =
        device_.replay(first_launch_ + step * case_->plan.graphs + phase.graph);
    const std::int32_t all_reduces = case_->graphs[phase.graph].all_reduces;
    const std::int64_t wait = replay.last_seen_ns - replay.own_ns;
    row.flags |= kFlagWaited;
    row.gpu_begin_ns = replay.begin_ns;
    row.gpu_end_ns = replay.end_ns;
    row.first_all_reduce_own_ns = replay.own_ns;
    row.first_all_reduce_last_seen_ns = replay.last_seen_ns;
    row.first_all_reduce_end_ns = replay.all_reduce_end_ns;
    row.first_all_reduce_last_peer = replay.last_peer;
    row.all_reduce_count = all_reduces;
    // The model has no variation inside a graph: every later all-reduce waits for the flight only.
    row.all_reduce_wait_sum_ns = wait + (all_reduces - 1) * flight;
    row.all_reduce_wait_max_ns = std::max(wait, flight);
  }
}

RunControl HostBackend::controls(const CaseConfig& config) {
  RunControl control;
  control.all_reduce = config.all_reduce;
  const PlannedPhase last = step_plan(config).phases.back();
  control.all_reduce_bytes = body_shape(config, last, context_.world_size).all_reduce_elements * 2;
  ModelledGraph empty;
  empty.host_ns = device_.model().graph_launch_host_ns;
  empty.lead_ns = device_.model().filler_node_ns;
  device_.keep_replays(kControlSamples);
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
  return kMaxWorldSize;
}

Json host_model() { return DeviceModel{}.to_json(); }

std::string host_skip_reason(const CaseConfig& config, int) {
  if (const char* why = metadata_path(config.path).no_host_backend) {
    return "step.path = \"" + config.path + "\" " + why;
  }
  if (config.pdl) return "body.pdl needs a GPU: the model has no launch latency between nodes";
  if (config.all_reduce == "nccl") {
    return "all_reduce = \"nccl\" needs GPUs; the host backend models only the others";
  }
  if (config.execution == "eager" && config.inject_where == "gpu") {
    return "inject.where = \"gpu\" with eager execution needs GPUs: behind the modelled gate no "
           "kernel is launched late";
  }
  return {};
}

std::optional<int> host_numa_node(int) { return std::nullopt; }

void describe_host(Json& environment, Json&) { environment["device"] = "modelled device"; }

}  // namespace tpjitter
