#include "harness/cuda/cuda_device.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>

#include "harness/contract/error.h"
#include "harness/cuda/host_wait.h"

namespace tpjitter {

CudaDevice::CudaDevice(const RankContext& context, Communicator& communicator, CudaCase& c,
                       cudaStream_t stream)
    : context_(context),
      communicator_(communicator),
      case_(c),
      stream_(stream),
      path_(metadata_path(c.config.path)),
      mapped_flag_(c.config.coupling_wait == "mapped_flag"),
      eager_(c.config.execution == "eager"),
      read_done_before_(c.config.read_done == "pre_replay"),
      // The device's own deadline comes first: it knows who was waited for.
      wait_deadline_ns_(2 * context.control->deadlines().device_ns +
                        2 * (steps_ahead(c.config) + 1) * c.load_ns()),
      writes_done_(make_event()),
      seq_lens_synced_(make_event()),
      live_(c.shape),
      step_inputs_(c.step_inputs_args()),
      token_writes_(step_inputs_),
      runner_inputs_(c.runner_inputs_args()),
      tree_mask_(c.tree_mask_args()),
      allocator_(device_block_source()),
      ops_(allocator_, stream, scalar_.data(), CallOverhead::of(c.config, context.rank)) {
  for (std::size_t i = 0; i < c.staging.size(); ++i) accepts_.push_back(make_event());
  if (has_schedule_stream(c.config)) {
    step_inputs_.req_to_token = nullptr;
    schedule_ = make_stream();
    for (std::size_t i = 0; i < c.staging.size(); ++i) reads_done_.push_back(make_event());
  }
  case_.metadata->launch_on(stream, &ops_);
  capture_metadata();
  if (eager_) {
    for (int graph = 0; graph < c.plan.graphs; ++graph) {
      eager_graphs_.push_back(make_step_graph(c, graph, c.shape.batch_size, context, communicator));
    }
  }
  wait_for_stream(context_, stream_, wait_deadline_ns_, "the first rebuilds");
}

// Largest first, as engines do.
void CudaDevice::capture_metadata() {
  const std::vector<std::int32_t> sizes = captured_batch_sizes(case_.config);
  for (auto size = sizes.rbegin(); size != sizes.rend(); ++size) {
    for (int phase = 0; phase < static_cast<int>(case_.plan.phases.size()); ++phase) {
      case_.metadata->composition().capture(case_.view(phase, *size));
    }
  }
  check_cuda(case_.metadata->take_status());
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
  if (result.abort != 0) communicator_.throw_fault(step, place_of_fault());
  if (!mapped_flag_ && result.step != step + 1) {
    throw RunError(fmt::format("rank {}, step {}, phase {}: the GPU accepted step {} instead",
                               context_.rank, step, phase_name(case_.plan.phases.back().phase),
                               result.step - 1));
  }
}

void CudaDevice::check_device(std::int64_t step) const {
  check_status();
  const std::atomic_ref abort(case_.host_results[mapped_flag_ ? 0 : case_.slot(step)].abort);
  if (communicator_.has_fault() || abort.load(std::memory_order_relaxed) != 0) {
    communicator_.throw_fault(step, place_of_fault());
  }
}

void CudaDevice::copy_inputs(int phase) {
  if (phase == 0) {
    cudaStream_t scheduler = schedule_ ? schedule_.get() : stream_;
    if (schedule_ && next_step_ > 0) {
      keep(cudaStreamWaitEvent(scheduler, reads_done_[case_.slot(next_step_ - 1)].get()));
    }
    const std::size_t slot = case_.slot(next_step_);
    keep(cudaMemcpyAsync(case_.device_staging.data(), case_.staging[slot].data(),
                         case_.staged_bytes[slot], cudaMemcpyHostToDevice, scheduler));
    if (schedule_) {
      keep(kernels::launch_token_writes(token_writes_, scheduler));
      keep(cudaEventRecord(writes_done_.get(), scheduler));
      keep(cudaStreamWaitEvent(stream_, writes_done_.get()));
    }
    keep(kernels::launch_step_inputs(step_inputs_, stream_));
  }
  const PlannedPhase& planned = case_.plan.phases[phase];
  if (planned.rotates) {  // the tokens move on to the next draft-extend
    keep(kernels::launch_empty_node(stream_));
  } else if (planned.has_own_inputs()) {
    keep(kernels::launch_runner_inputs(runner_inputs_, stream_));
  } else if (case_.plan.masks_tree(phase)) {
    keep(kernels::launch_tree_mask(tree_mask_, stream_));
  }
}

// As engines that keep a host copy of the lengths: once a step, and nothing goes on meanwhile.
void CudaDevice::sync_seq_lens() {
  keep(cudaMemcpyAsync(case_.synced_seq_lens.data(), case_.seq_lens.data(),
                       static_cast<std::size_t>(case_.shape.batch_size) * sizeof(std::int32_t),
                       cudaMemcpyDeviceToHost, stream_));
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
  if (!case_.plan.phases[phase].replays_hook) return;
  if (path_.form == RebuildForm::kGlueGraph) {
    // Empty where an earlier phase's fills this one's tables too.
    if (glue_nodes_[phase] > 0) keep(cudaGraphLaunch(glue_graphs_[phase].get(), stream_));
    return;
  }
  ops_.begin_rebuild();
  case_.metadata->composition().out_graph(case_.view(phase));
  keep(case_.metadata->take_status());
}

void CudaDevice::rebuild_with(const MetadataPath& path, int phase) {
  if (path.form == RebuildForm::kGlueGraph) {
    keep(cudaGraphLaunch(glue_graphs_[phase].get(), stream_));
    return;
  }
  const MetadataPath& before = case_.metadata->path();
  case_.metadata->set_path(path);
  MetadataBackend& composition = case_.metadata->composition();
  composition.out_graph(case_.view(phase));
  // Eagerly, as at capture: what the path leaves to the graph.
  composition.in_graph(case_.view(phase));
  case_.metadata->set_path(before);
  keep(case_.metadata->take_status());
}

void CudaDevice::launch_graph(int graph) {
  const bool last = graph + 1 == case_.plan.graphs;
  const std::size_t slot = case_.slot(next_step_);
  // The last rebuild of a step is the last of its reads, unless the graph itself reads.
  if (last && read_done_before_) keep(cudaEventRecord(reads_done_[slot].get(), stream_));
  if (eager_) {
    const bool records = last && schedule_ && !read_done_before_;
    enqueue_step_graph(case_, eager_graphs_[graph], communicator_,
                       records ? reads_done_[slot].get() : nullptr, stream_);
  } else {
    const bool own_event = last && graphs_.size() > static_cast<std::size_t>(case_.plan.graphs);
    keep(cudaGraphLaunch(graphs_[graph + (own_event ? slot : 0)], stream_));
  }
  if (last) ++next_step_;
}

std::vector<cudaEvent_t> CudaDevice::read_done_events(int graph) const {
  if (!schedule_ || read_done_before_ || graph + 1 < case_.plan.graphs) return {nullptr};
  std::vector<cudaEvent_t> events;
  for (const Event& event : reads_done_) events.push_back(event.get());
  return events;
}

void CudaDevice::capture_glue_graphs() {
  constexpr int kWarmUps = 2;
  const MetadataPath& before = case_.metadata->path();
  case_.metadata->set_path(path_of_form(RebuildForm::kGlueGraph));
  for (int phase = 0; phase < static_cast<int>(case_.plan.phases.size()); ++phase) {
    const auto rebuild = [&] {
      case_.metadata->composition().out_graph(case_.view(phase));
      case_.metadata->composition().in_graph(case_.view(phase));
      check_cuda(case_.metadata->take_status());
    };
    for (int i = 0; i < kWarmUps; ++i) {
      rebuild();
      wait_for_stream(context_, stream_, wait_deadline_ns_, "a warm-up of the glue graph");
    }
    const Graph graph = capture_nodes(stream_, rebuild);
    glue_nodes_.emplace_back();
    check_cuda(cudaGraphGetNodes(graph.get(), nullptr, &glue_nodes_.back()));
    glue_graphs_.push_back(instantiate(graph, stream_));
  }
  case_.metadata->set_path(before);
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
  const RebuildForm form = path_.form;
  if (form != RebuildForm::kOperations && form != RebuildForm::kPageTable &&
      form != RebuildForm::kTorch) {
    return;
  }
  // One rebuild a power of two of pages: sizes of temporaries grow with the longest request, and
  // the allocator keeps a list for each power of two.
  const std::vector<std::int64_t> staged = case_.seq_lens_cpu;
  const std::vector<std::int64_t> runner_staged = case_.runner_seq_lens_cpu;
  std::vector<std::int32_t> on_device(case_.seq_lens.size());
  const std::int64_t most =
      case_.shape.max_context - std::max(case_.plan.query_len, case_.plan.draft_passes);
  for (std::int64_t tokens = 1;; tokens = std::min(2 * tokens, most)) {
    const std::int64_t counted = case_.runner_phase.runner.counted;
    std::fill(case_.seq_lens_cpu.begin(), case_.seq_lens_cpu.end(), tokens);
    std::fill(case_.runner_seq_lens_cpu.begin(), case_.runner_seq_lens_cpu.end(), tokens + counted);
    // What the host asks the device for: the longest length, the length of a list.
    std::fill(on_device.begin(), on_device.end(), static_cast<std::int32_t>(tokens));
    check_cuda(cudaMemcpyAsync(case_.seq_lens.data(), on_device.data(), case_.seq_lens.size_bytes(),
                               cudaMemcpyHostToDevice, stream_));
    keep(kernels::launch_runner_inputs(runner_inputs_, stream_));
    wait_for_stream(context_, stream_, wait_deadline_ns_, "lengths for the first rebuilds");
    for (int phase = 0; phase < static_cast<int>(case_.plan.phases.size()); ++phase) {
      case_.metadata->composition().out_graph(case_.view(phase));
      check_cuda(case_.metadata->take_status());
    }
    if (tokens == most) break;
  }
  wait_for_stream(context_, stream_, wait_deadline_ns_, "the first rebuilds");
  case_.seq_lens_cpu = staged;
  case_.runner_seq_lens_cpu = runner_staged;
}

void CudaDevice::check_status() const {
  if (status_ == cudaSuccess) return;
  throw CudaError(fmt::format("rank {}, step {}: a copy or launch failed: {}", context_.rank,
                              next_step_ - 1, cuda_error_text(status_)),
                  status_);
}

}  // namespace tpjitter
