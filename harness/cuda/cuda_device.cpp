#include "harness/cuda/cuda_device.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>

#include "harness/contract/error.h"
#include "harness/cuda/host_wait.h"

namespace tpjitter {
namespace {

kernels::BlockSource device_block_source() {
  kernels::BlockSource source;
  source.allocate = [](void*, std::size_t bytes) -> void* {
    void* block = nullptr;
    return cudaMalloc(&block, bytes) == cudaSuccess ? block : nullptr;
  };
  source.free = [](void*, void* block) { report_release_error(cudaFree(block), "temporary"); };
  return source;
}

}  // namespace

CudaPath cuda_path(const CaseConfig& config) {
  if (config.path == "aten") return CudaPath::kAten;
  if (config.path == "fused") return CudaPath::kFused;
  if (config.path == "fused_in_graph") return CudaPath::kFusedInGraph;
  throw ConfigError(fmt::format("step.path: {} is not built for the cuda backend", config.path));
}

CudaDevice::CudaDevice(const RankContext& context, Communicator& communicator, CudaCase& c,
                       cudaStream_t stream)
    : context_(context),
      communicator_(communicator),
      case_(c),
      stream_(stream),
      path_(cuda_path(c.config)),
      mapped_flag_(c.config.coupling_wait == "mapped_flag"),
      // The device's own deadline comes first: it knows who was waited for.
      wait_deadline_ns_(2 * context.control->deadlines().device_ns + 2 * c.load_ns()),
      accept_(make_event()),
      live_(c.shape),
      step_inputs_(c.step_inputs_args()),
      aten_(c.aten_args()),
      allocator_(device_block_source()),
      ops_(allocator_, stream, scalar_.data(), c.config.op_overhead_ns) {
  check_cuda(kernels::prepare_fused_metadata(
      c.metadata_args(c.shape.batch_size, /*for_paths=*/true), &fused_));
}

void CudaDevice::wait_accept(std::int64_t step) {
  if (step < 0) return;
  if (status_ != cudaSuccess) check_status();
  HostWait wait(context_, wait_deadline_ns_);
  kernels::AcceptResult& result = case_.host_result[0];
  try {
    if (mapped_flag_) {
      const std::atomic_ref<std::int64_t> seen(result.step);
      while (seen.load(std::memory_order_acquire) != step + 1) {
        wait.poll("the accept result", step);
      }
    } else {
      for (;;) {
        const cudaError_t status = cudaEventQuery(accept_.get());
        if (status == cudaSuccess) break;
        if (status != cudaErrorNotReady) check_cuda(status);
        wait.poll("the accept result", step);
      }
    }
  } catch (...) {
    communicator_.abort_kernels();
    throw;
  }
  if (result.abort != 0) communicator_.throw_fault(step, "phase normal_decode");
  if (result.step != step + 1) {
    throw RunError(fmt::format("rank {}, step {}: the GPU accepted step {} instead", context_.rank,
                               step, result.step - 1));
  }
}

void CudaDevice::copy_inputs(int) {
  const auto parity = static_cast<std::size_t>(next_step_ % 2);
  keep(cudaMemcpyAsync(case_.device_staging.data(), case_.staging[parity].data(),
                       case_.staged_bytes[parity], cudaMemcpyHostToDevice, stream_));
  keep(kernels::launch_step_inputs(step_inputs_, stream_));
}

void CudaDevice::rebuild_metadata(int) {
  if (path_ != CudaPath::kFusedInGraph) rebuild_with(path_);
}

void CudaDevice::rebuild_with(CudaPath path) {
  if (path == CudaPath::kAten) {
    keep(kernels::rebuild_metadata_aten(ops_, kernels::DecodePhase::kNormalDecode, aten_));
    ops_.end_rebuild();
  } else {
    keep(kernels::launch_fused_metadata(fused_, stream_));
  }
}

void CudaDevice::launch_graph(int) {
  keep(cudaGraphLaunch(exec_, stream_));
  ++next_step_;
}

void CudaDevice::enqueue_accept_copy() {
  if (mapped_flag_) return;
  keep(cudaMemcpyAsync(case_.host_result.data(), case_.device_result.data(),
                       sizeof(kernels::AcceptResult), cudaMemcpyDeviceToHost, stream_));
  keep(cudaEventRecord(accept_.get(), stream_));
}

// The pinned buffers are two: the copy out of the one that is filled here belongs to the step
// before the one just launched, whose accept has been seen.
void CudaDevice::stage_inputs(std::int64_t step) {
  if (step > 0) enqueue_accept_copy();
  case_.stage(live_.advance());
}

void CudaDevice::warm_temporaries() {
  // One rebuild a power of two of pages: sizes of temporaries grow with the longest request, and
  // the allocator keeps a list for each power of two.
  std::vector<std::int64_t> longest(case_.seq_lens_cpu.size());
  kernels::AtenMetadataArgs args = aten_;
  args.seq_lens_cpu = longest.data();
  const std::int64_t most = case_.shape.max_seq_pages;
  for (std::int64_t pages = 1;; pages = std::min(2 * pages, most)) {
    std::fill(longest.begin(), longest.end(), pages * case_.shape.page_size);
    check_cuda(kernels::rebuild_metadata_aten(ops_, kernels::DecodePhase::kNormalDecode, args));
    ops_.end_rebuild();
    if (pages == most) break;
  }
  wait_for_stream(context_, stream_, wait_deadline_ns_, "the first rebuilds");
}

void CudaDevice::check_status() const {
  if (status_ == cudaSuccess) return;
  throw CudaError(fmt::format("rank {}, step {}: a copy or launch failed: {}", context_.rank,
                              next_step_ - 1, cuda_error_text(status_)),
                  status_);
}

}  // namespace tpjitter
