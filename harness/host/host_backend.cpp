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

using kernels::DecodeMetadataArgs;

constexpr int kControlSamples = 64;

class HostBackend final : public Backend {
 public:
  explicit HostBackend(const RankContext& context)
      : context_(context), device_(context, DeviceModel{}) {
    step_.slot = &context.control->rank(context.rank);
  }

  CaseChecks prepare(const CaseConfig& config) override {
    case_.emplace(config, device_.model(), context_.world_size);
    allocator_.emplace(kernels::host_block_source());
    ops_.emplace(*allocator_, device_, config.op_overhead_ns);
    step_.plan = case_->plan;
    step_.injection = Injection::of(config, context_.rank);
    step_.run_ahead_depth = config.loop == "run_ahead" ? config.run_ahead_depth : 0;
    device_.synchronize();
    device_.keep_replays((config.block_steps + config.run_ahead_depth + 2) * case_->plan.graphs);
    first_launch_ = device_.graph_launches();
    checked_steps_ = 0;
    run_steps_ = 0;

    CaseChecks checks = check_paths();
    warm_allocator();
    stage_inputs(0);
    return checks;
  }

  Json operations() const override {
    std::vector<PhaseCall> calls;
    for (const HostPhase& phase : case_->phases) {
      calls.push_back({phase.planned, phase.staged.aten, phase.staged.page_table});
    }
    return path_operations(case_->config.path, calls);
  }

  void run_step(std::int64_t step, std::span<PhaseRow> rows) override {
    tpjitter::run_step(*this, step_, step, rows);
    ++run_steps_;
  }

  // The Device of harness/step.h.
  void wait_accept(std::int64_t step) {
    if (step >= 0) device_.wait_for_graph(first_launch_ + (step + 1) * case_->plan.graphs - 1);
  }
  void copy_inputs(int phase) {
    if (phase == 0) {  // one packed H2D copy and the kernel that applies it
      device_.copy_async();
      device_.launch_kernel(device_.model().kernel_ns);
    } else if (case_->phases[phase].planned.inputs == PhaseInputs::kDraftExtend) {
      device_.launch_kernel(device_.model().kernel_ns);  // its own lengths
    }
  }
  void rebuild_metadata(int phase) {
    if (phase == 0 && case_->config.seq_lens_sync) {
      device_.copy_async();
      device_.synchronize();
    }
    rebuild(case_->phases[phase], case_->phases[phase].staged);
  }
  void launch_graph(int graph) { device_.launch_graph(case_->graphs[graph]); }
  void stage_inputs(std::int64_t) { case_->stage(case_->live.advance()); }

  CaseChecks finish_block(std::span<PhaseRow> rows) override {
    device_.synchronize();
    fill_device_stamps(rows);
    return check_steps();
  }

  RunControl controls(const CaseConfig& config) override;
  std::string device_name() const override { return "modelled device"; }
  std::string device_uuid() const override { return {}; }

 private:
  void rebuild(const HostPhase& phase, const PhaseArguments& arguments);
  void warm_allocator();
  CaseChecks check_paths();
  CaseChecks check_steps();
  void fill_device_stamps(std::span<PhaseRow> rows);

  RankContext context_;
  ModelledDevice device_;
  StepContext step_;
  std::optional<HostCase> case_;
  std::optional<kernels::TensorAllocator> allocator_;
  std::optional<ModelledTensorOps> ops_;
  std::int64_t first_launch_ = 0;  // graph launch of the case's step 0
  std::int64_t run_steps_ = 0;
  std::int64_t checked_steps_ = 0;
};

void HostBackend::rebuild(const HostPhase& phase, const PhaseArguments& arguments) {
  const std::string& path = case_->config.path;
  if (path == "aten") {
    ops_->set_scalar(arguments.longest);
    kernels::rebuild_metadata_aten(*ops_, phase.planned.rebuild, arguments.aten);
    ops_->end_rebuild();
  } else if (path == "page_table_kernel") {
    kernels::rebuild_metadata_page_table(*ops_, phase.planned.rebuild, arguments.page_table);
    ops_->end_rebuild();
  } else if (path == "fused") {
    device_.launch_kernel(device_.model().metadata_kernel_ns);
  }
}

// The allocator hands out blocks by size, so every page-table width that the steps can reach has
// its temporaries made before the first of them.
void HostBackend::warm_allocator() {
  ServingState state(case_->shape);
  StepInputs inputs = state.advance();
  for (HostPhase& phase : case_->phases) {
    PhaseArguments arguments;
    for (std::int64_t tokens = 1;; tokens *= 2) {
      // The phase adds its own tokens to the length.
      const std::int64_t most = case_->shape.max_context - 2 * phase.planned.query_len;
      const std::int64_t length = std::min(tokens, most);
      std::fill(inputs.seq_lens.begin(), inputs.seq_lens.end(), static_cast<std::int32_t>(length));
      phase.set(arguments, phase.computed, state, inputs);
      rebuild(phase, arguments);
      if (length == most) break;
    }
  }
  device_.synchronize();
}

CaseChecks HostBackend::check_paths() {
  CaseChecks checks;
  ServingState state(case_->shape);
  const StepInputs& inputs = state.advance();
  for (int i = 0; i < static_cast<int>(case_->phases.size()); ++i) {
    HostPhase& phase = case_->phases[i];
    const DecodeMetadataArgs expected = phase.expected.args(state, inputs);
    kernels::reference_decode_metadata(expected);
    for (const char* path : {"aten", "page_table_kernel", "fused"}) {
      phase.computed.poison();
      const std::string difference =
          MetadataBuffers::difference(case_->compute(path, i, state, inputs), expected);
      if (difference.empty()) continue;
      checks.bit_equal = false;
      checks.first_failure =
          fmt::format("rank {}, phase {}: path {} differs from the reference: {}", context_.rank,
                      phase_name(phase.planned.phase), path, difference);
      return checks;
    }
  }
  return checks;
}

CaseChecks HostBackend::check_steps() {
  CaseChecks checks;
  for (; checked_steps_ < run_steps_; ++checked_steps_) {
    const StepInputs& inputs = case_->verify.advance();
    ++checks.steps_checked;
    for (int g = 0; g < case_->plan.graphs; ++g) {
      const auto expected = case_->graph_checksum("", g, case_->verify, inputs);
      const auto got = case_->graph_checksum(case_->config.path, g, case_->verify, inputs);
      if (got == expected) continue;
      ++checks.checksum_failures;
      if (!checks.first_failure.empty()) continue;
      const PlannedPhase& last = case_->plan.phases[case_->plan.last_phase(g) - 1];
      checks.first_failure =
          fmt::format("rank {}, step {}, phase {}, graph {}: checksum {:016x}, expected {:016x}",
                      context_.rank, inputs.step, phase_name(last.phase), g, got, expected);
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
  if (config.pdl) return "body.pdl needs a GPU: the model has no launch latency between nodes";
  if (config.all_reduce == "nccl") {
    return "all_reduce = \"nccl\" needs GPUs; the host backend models one_shot_pull only";
  }
  return {};
}

std::optional<int> host_numa_node(int) { return std::nullopt; }

void describe_host(Json& environment, Json&) { environment["device"] = "modelled device"; }

}  // namespace tpjitter
