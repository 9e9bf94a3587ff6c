#include "harness/cuda/cuda_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <map>
#include <optional>
#include <type_traits>
#include <vector>

#include "harness/contract/error.h"
#include "harness/cuda/clock_calibration.h"
#include "harness/cuda/controls.h"
#include "harness/cuda/cuda_case.h"
#include "harness/cuda/cuda_device.h"
#include "harness/cuda/cuda_environment.h"
#include "harness/cuda/drain.h"
#include "harness/cuda/graphs.h"
#include "harness/cuda/host_wait.h"
#include "harness/cuda/verification.h"
#include "harness/path_operations.h"
#include "harness/step.h"

namespace tpjitter {
namespace {

// The rank's device, chosen before anything else makes a context.
class DeviceChoice {
 public:
  explicit DeviceChoice(const RankContext& context) : device_(usable_device(context)) {
    check_cuda(cudaSetDevice(device_));
  }
  int device() const { return device_; }

 private:
  int device_;
};

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(const RankContext& context)
      : context_(context), device_choice_(context_), communicator_(context_) {
    step_.slot = &context.control->rank(context.rank);
    step_.coupling = Coupling(*context.control, context.rank);
  }
  ~CudaBackend() override {
    if (std::uncaught_exceptions() > 0 || context_.control->aborted()) {
      communicator_.leave_after_failure(stream_.get());
    }
  }

  CaseChecks prepare(const CaseConfig& config) override;
  Json operations() const override;
  void run_step(std::int64_t step, std::span<PhaseRow> rows) override;
  CaseChecks finish_block(std::span<PhaseRow> rows) override;
  RunControl controls(const CaseConfig& config) override {
    return naming_fault(-1, "controls", [&] {
      return measure_controls(context_, communicator_, config, stream_.get());
    });
  }
  Json calibrate_clocks(bool with_host) override {
    return naming_fault(-1, "clock calibration",
                        [&] { return calibrator_.measure(stream_.get(), with_host); });
  }
  std::string device_name() const override { return gpu_name(device_choice_.device()); }
  std::string device_uuid() const override { return gpu_uuid(device_choice_.device()); }

 private:
  // Where `work` fails the GPU may know more than the host, which has only noticed an abort or
  // waited too long: whose flag did not come.
  template <class Work>
  std::invoke_result_t<Work> naming_fault(std::int64_t step, const char* what, Work work) {
    try {
      return work();
    } catch (const PeerTimeout&) {
      throw;  // names it already
    } catch (const CudaError&) {
      throw;  // this rank's own
    } catch (const Error&) {
      if (communicator_.has_fault()) communicator_.throw_fault(step, what);
      throw;
    }
  }
  CaseChecks check_block(std::span<PhaseRow> rows);
  void capture_graphs(const CaseConfig& config);
  void connect_nccl();
  void barrier(const char* what) {
    context_.control->barrier(context_.rank, context_.control->deadlines().prepare_ns, what);
  }

  RankContext context_;
  StepContext step_;
  DeviceChoice device_choice_;
  Communicator communicator_;
  ClockCalibrator calibrator_{context_, communicator_};
  Stream stream_ = make_stream();
  // In the order they are made; a case is taken down in the other one.
  std::optional<CudaCase> case_;
  std::optional<CudaDevice> device_;
  std::optional<StepChecker> checker_;
  std::map<std::int32_t, std::vector<GraphExec>> graphs_;  // by captured batch size, then graph
  DrainedStamps drained_;
};

CaseChecks CudaBackend::prepare(const CaseConfig& config) {
  graphs_.clear();
  checker_.reset();
  device_.reset();
  case_.reset();
  case_.emplace(config, context_);
  device_.emplace(context_, communicator_, *case_, stream_.get());
  checker_.emplace(context_, config);
  step_.plan = case_->plan;
  step_.run_ahead_depth = steps_ahead(config);
  step_.injection = Injection::of(config, context_.rank, context_.world_size);
  step_.coupling.prepare(config, device_->wait_deadline_ns());
  drained_.graphs.reserve(case_->graph_stamps.size());
  drained_.all_reduces.reserve(case_->all_reduce_stamps.size());

  check_cuda(cudaDeviceSynchronize());  // uploads from pageable memory, before other streams
  device_->stage_inputs(0);
  const int phases = static_cast<int>(case_->plan.phases.size());
  for (int phase = 0; phase < phases; ++phase) device_->copy_inputs(phase);
  device_->warm_temporaries();
  if (case_->shape.live_batch == case_->shape.batch_size) {
    device_->capture_glue_graphs();
  } else if (!metadata_path(config.path).padded_rows) {
    throw ConfigError("step.path: " + config.path + " is for batches without padded rows");
  }
  const CaseChecks checks = check_paths(context_, *case_, *device_, stream_.get());

  if (config.all_reduce == "nccl") connect_nccl();
  if (config.execution == "graph") capture_graphs(config);
  wait_for_stream(context_, stream_.get(), context_.control->deadlines().prepare_ns,
                  "graph upload");
  // What checks and captures left must not pass for a rebuild.
  case_->poison_outputs(stream_.get());
  // A rank that captured longer must not cost the others their first all-reduce's deadline.
  barrier("prepared");
  return checks;
}

void CudaBackend::capture_graphs(const CaseConfig& config) {
  // Largest first, as engines capture: later graphs find their memory already there.
  const std::vector<std::int32_t> sizes = captured_batch_sizes(config);
  for (auto size = sizes.rbegin(); size != sizes.rend(); ++size) {
    for (int graph = 0; graph < case_->plan.graphs; ++graph) {
      for (cudaEvent_t read_done : device_->read_done_events(graph)) {
        graphs_[*size].push_back(capture_step_graph(*case_, graph, *size, context_, communicator_,
                                                    stream_.get(), read_done));
      }
    }
  }
  std::vector<cudaGraphExec_t> step_graphs;
  for (const GraphExec& graph : graphs_.at(case_->shape.batch_size)) {
    step_graphs.push_back(graph.get());
  }
  device_->set_graphs(std::move(step_graphs));
}

// NCCL connects at the first call, which cannot be captured.
void CudaBackend::connect_nccl() {
  const std::int64_t bytes = case_->largest_all_reduce_bytes();
  communicator_.nccl().all_reduce(case_->nccl_inputs[0].data(), case_->reduced.data(), bytes / 2,
                                  stream_.get());
  wait_for_stream(context_, stream_.get(), context_.control->deadlines().prepare_ns,
                  "NCCL's first call");
}

Json CudaBackend::operations() const { return path_operations(case_->config); }

void CudaBackend::run_step(std::int64_t step, std::span<PhaseRow> rows) {
  for (PhaseRow& row : rows) {
    row = PhaseRow{};
    row.first_all_reduce_last_peer = -1;
  }
  naming_fault(step, "a step", [&] { tpjitter::run_step(*device_, step_, step, rows); });
}

CaseChecks CudaBackend::finish_block(std::span<PhaseRow> rows) {
  return naming_fault(device_->steps_launched() - 1, "end of the block",
                      [&] { return check_block(rows); });
}

CaseChecks CudaBackend::check_block(std::span<PhaseRow> rows) {
  const std::int64_t end = device_->steps_launched();
  const std::int64_t first = checker_->steps_checked();
  device_->wait_accept(end - 1);
  wait_for_stream(context_, stream_.get(), device_->wait_deadline_ns(), "the block");
  communicator_.check_fault(end - 1, "end of the block");
  if ((end - first) * case_->plan.graphs > case_->ring_capacity) {
    throw RunError(fmt::format("rank {}: a block of {} steps is longer than the stamp ring's {}",
                               context_.rank, end - first,
                               case_->ring_capacity / case_->plan.graphs));
  }
  fetch_stamps(*case_, first, end, drained_);
  fill_device_fields(*case_, drained_, context_.rank, rows);
  CaseChecks checks = checker_->check(drained_.graphs, rows);
  const std::string counters = end > first ? case_->counter_fault(context_.rank, end - 1) : "";
  if (!counters.empty()) {
    ++checks.checksum_failures;
    if (checks.first_failure.empty()) checks.first_failure = counters;
  }
  return checks;
}

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(const RankContext& context) {
  load_modules_eagerly();
  return std::make_unique<CudaBackend>(context);
}

Json cuda_model() { return nullptr; }

std::string cuda_skip_reason(const CaseConfig& config, int world_size) {
  if (config.inject_where == "gpu" && world_size > kernels::kMaxAllReduceRanks) {
    return fmt::format("the gate before a delay on the GPU takes up to {} ranks",
                       kernels::kMaxAllReduceRanks);
  }
  if (config.all_reduce == "nccl") {
    return NcclCommunicator::available()
               ? ""
               : "this build has no NCCL; configure where nccl.h and libnccl are found";
  }
  if (world_size > kernels::kMaxAllReduceRanks) {
    return fmt::format("{} takes up to {} ranks; use body.all_reduce = \"nccl\"", config.all_reduce,
                       kernels::kMaxAllReduceRanks);
  }
  const std::int64_t bytes =
      captured_batch_sizes(config).back() * step_plan(config).query_len * config.hidden_size * 2;
  if (bytes > kernels::kMaxAllReduceBytes) {
    return fmt::format(
        "an all-reduce of {} bytes is more than the {} that {} takes; use "
        "body.all_reduce = \"nccl\" or a smaller batch",
        bytes, kernels::kMaxAllReduceBytes, config.all_reduce);
  }
  return {};
}

}  // namespace tpjitter
