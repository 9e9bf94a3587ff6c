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
  if (config.path == "page_table_kernel") return CudaPath::kPageTable;
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
      wait_deadline_ns_(2 * context.control->deadlines().device_ns +
                        2 * (steps_ahead(c.config) + 1) * c.load_ns()),
      seq_lens_synced_(make_event()),
      live_(c.shape),
      step_inputs_(c.step_inputs_args()),
      extend_lengths_(c.extend_lengths_args()),
      allocator_(device_block_source()),
      ops_(allocator_, stream, scalar_.data(), c.config.op_overhead_ns) {
  for (std::size_t i = 0; i < c.staging.size(); ++i) accepts_.push_back(make_event());
  const int phases = static_cast<int>(c.plan.phases.size());
  fused_.resize(c.plan.phases.size());
  for (int p = 0; p < phases; ++p) {
    check_cuda(kernels::prepare_fused_metadata(
        c.metadata_args(p, c.shape.batch_size, /*for_paths=*/true), &fused_[p]));
    aten_.push_back(c.aten_args(p));
    page_table_.push_back(c.page_table_args(p));
  }
}

void CudaDevice::wait_for_event(cudaEvent_t event, const char* what, std::int64_t step) {
  HostWait wait(context_, wait_deadline_ns_);
  for (;;) {
    const cudaError_t status = cudaEventQuery(event);
    if (status == cudaSuccess) return;
    if (status != cudaErrorNotReady) check_cuda(status);
    wait.poll(what, step);
  }
}

void CudaDevice::wait_accept(std::int64_t step) {
  if (status_ != cudaSuccess) check_status();
  if (step < 0) return;
  kernels::AcceptResult& result = case_.host_results[mapped_flag_ ? 0 : case_.slot(step)];
  try {
    if (mapped_flag_) {
      HostWait wait(context_, wait_deadline_ns_);
      const std::atomic_ref<std::int64_t> seen(result.step);
      // Later steps write the same place: the flag may be past the awaited one.
      while (seen.load(std::memory_order_acquire) < step + 1) {
        wait.poll("the accept result", step);
      }
    } else {
      wait_for_event(accepts_[case_.slot(step)].get(), "the accept result", step);
    }
  } catch (...) {
    communicator_.abort_kernels();
    throw;
  }
  if (result.abort != 0) {
    // Which of several graphs it was the result does not say; the all-reduce is named.
    communicator_.throw_fault(
        step, case_.plan.graphs > 1 ? "a speculative step's graphs" : "phase normal_decode");
  }
  if (!mapped_flag_ && result.step != step + 1) {
    throw RunError(fmt::format("rank {}, step {}: the GPU accepted step {} instead", context_.rank,
                               step, result.step - 1));
  }
}

void CudaDevice::copy_inputs(int phase) {
  if (phase == 0) {
    const std::size_t slot = case_.slot(next_step_);
    keep(cudaMemcpyAsync(case_.device_staging.data(), case_.staging[slot].data(),
                         case_.staged_bytes[slot], cudaMemcpyHostToDevice, stream_));
    keep(kernels::launch_step_inputs(step_inputs_, stream_));
  } else if (case_.plan.phases[phase].inputs == PhaseInputs::kDraftExtend) {
    keep(kernels::launch_extend_lengths(extend_lengths_, stream_));
  }
}

// As engines that keep a host copy of the lengths: once a step, and nothing goes on meanwhile.
void CudaDevice::sync_seq_lens() {
  keep(cudaMemcpyAsync(case_.synced_seq_lens.data(), case_.seq_lens.data(),
                       case_.seq_lens_cpu.size() * sizeof(std::int32_t), cudaMemcpyDeviceToHost,
                       stream_));
  keep(cudaEventRecord(seq_lens_synced_.get(), stream_));
  try {
    if (status_ != cudaSuccess) check_status();
    wait_for_event(seq_lens_synced_.get(), "the copy of seq_lens", next_step_);
  } catch (...) {
    communicator_.abort_kernels();
    throw;
  }
}

void CudaDevice::rebuild_metadata(int phase) {
  if (phase == 0 && case_.config.seq_lens_sync) sync_seq_lens();
  if (path_ != CudaPath::kFusedInGraph) rebuild_with(path_, phase);
}

void CudaDevice::rebuild_with(CudaPath path, int phase) {
  const kernels::DecodePhase rebuild = case_.plan.phases[phase].rebuild;
  if (path == CudaPath::kAten) {
    keep(kernels::rebuild_metadata_aten(ops_, rebuild, aten_[phase]));
  } else if (path == CudaPath::kPageTable) {
    keep(kernels::rebuild_metadata_page_table(ops_, rebuild, page_table_[phase]));
  } else {
    keep(kernels::launch_fused_metadata(fused_[phase], stream_));
  }
}

void CudaDevice::launch_graph(int graph) {
  keep(cudaGraphLaunch(graphs_[graph], stream_));
  if (graph + 1 == case_.plan.graphs) ++next_step_;
}

void CudaDevice::enqueue_accept_copy(std::int64_t step) {
  if (mapped_flag_) return;
  const std::size_t slot = case_.slot(step);
  keep(cudaMemcpyAsync(case_.host_results.data() + slot, case_.device_result.data(),
                       sizeof(kernels::AcceptResult), cudaMemcpyDeviceToHost, stream_));
  keep(cudaEventRecord(accepts_[slot].get(), stream_));
}

// The slot filled here was last used by the step whose accept this step has waited for: its copy
// is over.
void CudaDevice::stage_inputs(std::int64_t step) {
  if (step > 0) enqueue_accept_copy(step - 1);
  case_.stage(live_.advance());
}

void CudaDevice::warm_temporaries() {
  if (path_ != CudaPath::kAten && path_ != CudaPath::kPageTable) return;
  // One rebuild a power of two of pages: sizes of temporaries grow with the longest request, and
  // the allocator keeps a list for each power of two.
  std::vector<std::int64_t> longest(case_.seq_lens_cpu.size());
  std::vector<std::int32_t> on_device(case_.seq_lens.size());
  const std::int64_t most = case_.shape.max_seq_pages;
  for (int phase = 0; phase < static_cast<int>(case_.plan.phases.size()); ++phase) {
    const PlannedPhase& planned = case_.plan.phases[phase];
    kernels::AtenMetadataArgs args = aten_[phase];
    args.seq_lens_cpu = longest.data();
    for (std::int64_t pages = 1;; pages = std::min(2 * pages, most)) {
      const std::int64_t tokens =
          std::max<std::int64_t>(1, pages * case_.shape.page_size - planned.seqlen_offset);
      std::fill(longest.begin(), longest.end(), tokens);
      // Draft-decode takes the longest length from the device.
      std::fill(on_device.begin(), on_device.end(), static_cast<std::int32_t>(tokens));
      check_cuda(cudaMemcpyAsync(case_.seq_lens.data(), on_device.data(),
                                 case_.seq_lens.size_bytes(), cudaMemcpyHostToDevice, stream_));
      wait_for_stream(context_, stream_, wait_deadline_ns_, "lengths for the first rebuilds");
      if (path_ == CudaPath::kAten) {
        check_cuda(kernels::rebuild_metadata_aten(ops_, planned.rebuild, args));
      } else {
        check_cuda(kernels::rebuild_metadata_page_table(ops_, planned.rebuild, page_table_[phase]));
      }
      if (pages == most) break;
    }
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
