#include "harness/cuda/cuda_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <map>
#include <optional>

#include "harness/contract/error.h"
#include "harness/cuda/controls.h"
#include "harness/cuda/cuda_case.h"
#include "harness/cuda/cuda_device.h"
#include "harness/cuda/cuda_environment.h"
#include "harness/cuda/drain.h"
#include "harness/cuda/graphs.h"
#include "harness/cuda/host_wait.h"
#include "harness/cuda/verification.h"
#include "harness/step.h"
#include "kernels/tensor_ops_recording.h"

namespace tpjitter {
namespace {

// The rank's device, chosen before anything else makes a context.
class DeviceChoice {
 public:
  explicit DeviceChoice(const RankContext& context) {
    check_device_usable(context);
    check_cuda(cudaSetDevice(context.rank));
  }
};

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(const RankContext& context)
      : context_(context), device_choice_(context_), communicator_(context_) {
    step_.slot = &context.control->rank(context.rank);
  }
  ~CudaBackend() override {
    // A failed rank frees memory next, which waits for its kernels: let them drain.
    if (std::uncaught_exceptions() > 0 || context_.control->aborted()) {
      communicator_.abort_kernels();
    }
  }

  CaseChecks prepare(const CaseConfig& config) override;
  Json operations() const override;
  void run_step(std::int64_t step, std::span<PhaseRow> rows) override;
  CaseChecks finish_block(std::span<PhaseRow> rows) override;
  RunControl controls(const CaseConfig& config) override {
    return measure_controls(context_, communicator_, config, stream_.get());
  }
  std::string device_name() const override { return gpu_name(context_.rank); }
  std::string device_uuid() const override { return gpu_uuid(context_.rank); }

 private:
  void connect_nccl();
  void barrier(const char* what) {
    context_.control->barrier(context_.rank, context_.control->deadlines().prepare_ns, what);
  }

  RankContext context_;
  StepContext step_;
  DeviceChoice device_choice_;
  Communicator communicator_;
  Stream stream_ = make_stream();
  // In the order they are made; a case is taken down in the other one.
  std::optional<CudaCase> case_;
  std::optional<CudaDevice> device_;
  std::optional<StepChecker> checker_;
  std::map<std::int32_t, GraphExec> graphs_;  // by captured batch size
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
  step_.injection = Injection::of(config, context_.rank);
  drained_.graphs.reserve(case_->graph_stamps.size());
  drained_.all_reduces.reserve(case_->all_reduce_stamps.size());

  check_cuda(cudaDeviceSynchronize());  // uploads from pageable memory, before other streams
  device_->stage_inputs(0);
  if (cuda_path(config) == CudaPath::kAten) {
    device_->copy_inputs(0);
    device_->warm_temporaries();
  }
  const CaseChecks checks = check_paths(context_, *case_, *device_, stream_.get());
  case_->poison_outputs(stream_.get());  // what the checks left must not pass for a rebuild

  if (config.all_reduce == "nccl") connect_nccl();
  // Largest first, as engines capture: later graphs find their memory already there.
  const std::vector<std::int32_t> sizes = captured_batch_sizes(config);
  for (auto size = sizes.rbegin(); size != sizes.rend(); ++size) {
    graphs_[*size] = capture_body(*case_, *size, context_, communicator_, stream_.get());
  }
  device_->set_graph(graphs_.at(case_->shape.batch_size).get());
  wait_for_stream(context_, stream_.get(), context_.control->deadlines().prepare_ns,
                  "graph upload");
  // A rank that captured longer must not cost the others their first all-reduce's deadline.
  barrier("prepared");
  return checks;
}

// NCCL connects at the first call, which cannot be captured.
void CudaBackend::connect_nccl() {
  const std::int64_t bytes = case_->all_reduce_bytes(case_->max_batch);
  communicator_.nccl().all_reduce(case_->nccl_inputs[0].data(), case_->reduced.data(), bytes / 2,
                                  stream_.get());
  wait_for_stream(context_, stream_.get(), context_.control->deadlines().prepare_ns,
                  "NCCL's first call");
}

Json CudaBackend::operations() const {
  kernels::OperationCounts counts;
  switch (cuda_path(case_->config)) {
    case CudaPath::kAten: {
      kernels::AddressSource addresses;
      kernels::TensorAllocator allocator(addresses.block_source());
      const auto& lengths = case_->seq_lens_cpu;
      kernels::RecordingTensorOps ops(allocator, *std::max_element(lengths.begin(), lengths.end()));
      kernels::rebuild_metadata_aten(ops, kernels::DecodePhase::kNormalDecode, case_->aten_args());
      counts = ops.counts();
      break;
    }
    case CudaPath::kFused:
      counts.calls = counts.kernel_launches = 1;
      break;
    case CudaPath::kFusedInGraph:
      break;
  }
  return {{"calls", counts.calls},
          {"kernel_launches", counts.kernel_launches},
          {"copies", counts.copies},
          {"syncs", counts.syncs}};
}

void CudaBackend::run_step(std::int64_t step, std::span<PhaseRow> rows) {
  for (PhaseRow& row : rows) {
    row = PhaseRow{};
    row.phase = static_cast<std::int32_t>(Phase::kNormalDecode);
    row.first_all_reduce_last_peer = -1;
  }
  tpjitter::run_step(*device_, step_, step, rows);
}

CaseChecks CudaBackend::finish_block(std::span<PhaseRow> rows) {
  const std::int64_t end = device_->steps_launched();
  const std::int64_t first = checker_->steps_checked();
  device_->wait_accept(end - 1);
  wait_for_stream(context_, stream_.get(), device_->wait_deadline_ns(), "the block");
  communicator_.check_fault(end - 1, "end of the block");
  if (end - first > case_->ring_capacity) {
    throw RunError(fmt::format("rank {}: a block of {} steps is longer than the stamp ring's {}",
                               context_.rank, end - first, case_->ring_capacity));
  }
  fetch_stamps(*case_, first, end, drained_);
  fill_device_fields(drained_, context_.rank, context_.world_size,
                     case_->config.all_reduce == "nccl", rows);
  return checker_->check(drained_.graphs, rows);
}

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(const RankContext& context) {
  load_modules_eagerly();
  return std::make_unique<CudaBackend>(context);
}

Json cuda_model() { return nullptr; }

std::string cuda_skip_reason(const CaseConfig& config, int world_size) {
  if (config.all_reduce == "nccl") {
    return NcclCommunicator::available()
               ? ""
               : "this build has no NCCL; configure where nccl.h and libnccl are found";
  }
  if (world_size > kernels::kMaxAllReduceRanks) {
    return fmt::format("{} takes up to {} ranks; use body.all_reduce = \"nccl\"", config.all_reduce,
                       kernels::kMaxAllReduceRanks);
  }
  const std::int64_t bytes = captured_batch_sizes(config).back() * config.hidden_size * 2;
  if (bytes > kernels::kMaxAllReduceBytes) {
    return fmt::format(
        "an all-reduce of {} bytes is more than the {} that {} takes; use "
        "body.all_reduce = \"nccl\" or a smaller batch",
        bytes, kernels::kMaxAllReduceBytes, config.all_reduce);
  }
  return {};
}

}  // namespace tpjitter
