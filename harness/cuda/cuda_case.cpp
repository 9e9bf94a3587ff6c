#include "harness/cuda/cuda_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "harness/contract/error.h"

namespace tpjitter {
namespace {

// The staged types are the kernels' own: layers forbid them to see the harness's.
static_assert(sizeof(TokenWrite) == sizeof(kernels::StagedTokenWrite));
static_assert(offsetof(TokenWrite, slot) == offsetof(kernels::StagedTokenWrite, slot));
static_assert(sizeof(LengthReset) == sizeof(kernels::StagedLengthReset));
static_assert(offsetof(LengthReset, seq_len) == offsetof(kernels::StagedLengthReset, seq_len));

constexpr std::int64_t kMaxRingBytes = std::int64_t{1} << 30;

template <class T>
DeviceBuffer<T> uploaded(const std::vector<T>& values) {
  DeviceBuffer<T> buffer(values.size());
  check_cuda(cudaMemcpy(buffer.data(), values.data(), buffer.size_bytes(), cudaMemcpyHostToDevice));
  return buffer;
}

template <class T>
DeviceBuffer<T> zeroed(std::size_t size) {
  DeviceBuffer<T> buffer(size);
  if (size > 0) check_cuda(cudaMemset(buffer.data(), 0, buffer.size_bytes()));
  return buffer;
}

std::size_t size_of(std::int64_t n) { return static_cast<std::size_t>(n); }

PhaseOutputs outputs_of(const ServingShape& shape, const PlannedPhase& phase) {
  const std::size_t rows = size_of(shape.max_batch);
  const std::size_t table = rows * size_of(shape.max_seq_pages);
  PhaseOutputs out;
  out.cache_seqlens = zeroed<std::int32_t>(rows);
  out.cu_seqlens_k = zeroed<std::int32_t>(rows + 1);
  out.cu_seqlens_q = zeroed<std::int32_t>(rows + 1);
  out.page_table = zeroed<std::int32_t>(table);
  if (phase.swa) {
    out.swa_page_table = zeroed<std::int32_t>(table);
    out.swa_out_cache_loc = zeroed<std::int64_t>(rows * size_of(phase.query_len));
  }
  return out;
}

std::vector<std::int64_t> strided_of(const ServingShape& shape) {
  std::vector<std::int64_t> indices(size_of(shape.max_seq_pages));
  for (std::size_t i = 0; i < indices.size(); ++i) {
    indices[i] = static_cast<std::int64_t>(i) * shape.page_size;
  }
  return indices;
}

}  // namespace

std::vector<std::int32_t> captured_batch_sizes(const CaseConfig& config) {
  std::vector<std::int32_t> sizes;
  for (const std::int64_t size : config.capture_batch_sizes) {
    sizes.push_back(static_cast<std::int32_t>(size));
  }
  if (sizes.empty()) sizes.push_back(static_cast<std::int32_t>(config.batch_size));
  std::sort(sizes.begin(), sizes.end());
  return sizes;
}

std::int64_t steps_ahead(const CaseConfig& config) {
  return config.loop == "run_ahead" ? config.run_ahead_depth : 0;
}

CudaCase::CudaCase(const CaseConfig& c, const RankContext& context)
    : config(c),
      plan(step_plan(c)),
      shape(ServingShape::of(c)),
      max_batch(shape.max_batch),
      world_size(context.world_size),
      ring_capacity(std::max<std::int64_t>(1, c.block_steps) * plan.graphs) {
  const ServingState initial(shape);
  req_to_token = uploaded(initial.req_to_token());
  if (shape.needs_mapping) full_to_swa = uploaded(initial.full_to_swa());
  strided_indices = uploaded(strided_of(shape));

  const std::size_t rows = size_of(max_batch);
  seq_lens = uploaded(std::vector<std::int32_t>(rows, 1));
  req_pool_indices = zeroed<std::int64_t>(rows);
  out_cache_loc = zeroed<std::int64_t>(rows * size_of(plan.query_len));
  draft_cache_loc = zeroed<std::int64_t>(rows * size_of(plan.draft_passes));
  accept_lens = zeroed<std::int32_t>(rows);
  extend_seq_lens = zeroed<std::int64_t>(rows);
  for (const PlannedPhase& phase : plan.phases) outputs.push_back(outputs_of(shape, phase));
  kv = zeroed<std::int32_t>(size_of(shape.num_slots));
  // SWA page ids run to num_slots / page_size + 1.
  if (shape.needs_mapping) {
    swa_kv = zeroed<std::int32_t>(size_of(shape.num_slots + 2 * shape.page_size));
  }
  reduced = DeviceBuffer<std::byte>(size_of(largest_all_reduce_bytes()));
  if (config.all_reduce == "nccl") {
    for (auto& input : nccl_inputs) input = DeviceBuffer<std::byte>(reduced.size());
  }
  state = zeroed<kernels::DecodeBodyState>(1);
  // Sized once for the largest batch: a buffer that grew later would free what graphs point to.
  attention_counters =
      zeroed<std::int32_t>(size_of(kernels::attention_counter_rows(max_batch, plan.query_len)));
  kv_scales = uploaded(std::vector<float>(2, 1.0f));
  if (config.fills == "baked") {  // nothing but the fills makes these right
    check_cuda(cudaMemset(attention_counters.data(), 0x7f, attention_counters.size_bytes()));
    check_cuda(cudaMemset(kv_scales.data(), 0x7f, kv_scales.size_bytes()));
  }

  const std::int64_t stamps = ring_capacity * ring().all_reduces_per_replay;
  if (stamps * std::int64_t{sizeof(kernels::AllReduceStamp)} > kMaxRingBytes) {
    throw ConfigError(
        fmt::format("sampling.block_steps: {} steps of {} graphs with up to {} all-reduces need "
                    "more than 1 GiB "
                    "of stamps on the GPU; lower it",
                    config.block_steps, plan.graphs, ring().all_reduces_per_replay));
  }
  all_reduce_stamps = zeroed<kernels::AllReduceStamp>(size_of(stamps));
  graph_stamps = zeroed<kernels::GraphStamp>(size_of(ring_capacity));

  max_writes = initial.max_writes();
  layout = kernels::StagedLayout::of(shape.batch_size, shape.live_batch, plan.query_len,
                                     plan.draft_passes);
  // The step being staged, the one just launched and those that the host is ahead.
  const std::size_t slots = size_of(steps_ahead(config) + 2);
  for (std::size_t i = 0; i < slots; ++i) staging.emplace_back(layout.bytes(max_writes));
  staged_bytes.resize(slots);
  device_staging = DeviceBuffer<unsigned char>(layout.bytes(max_writes));
  seq_lens_cpu.assign(size_of(shape.batch_size), 1);
  extend_seq_lens_cpu = seq_lens_cpu;
  device_result = zeroed<kernels::AcceptResult>(1);
  host_results = PinnedBuffer<kernels::AcceptResult>(slots);
  synced_seq_lens = PinnedBuffer<std::int32_t>(rows);
}

void CudaCase::stage(const StepInputs& inputs) {
  const std::size_t to_slot = slot(inputs.step);
  unsigned char* to = staging[to_slot].data();
  const kernels::StagedHeader header{static_cast<std::int64_t>(inputs.writes.size()),
                                     static_cast<std::int64_t>(inputs.resets.size())};
  const auto put = [to](std::size_t offset, const auto* from, std::size_t count) {
    if (count > 0) std::memcpy(to + offset, from, count * sizeof *from);
  };
  const std::size_t live = size_of(shape.live_batch);
  put(0, &header, 1);
  put(layout.req_pool_indices, inputs.req_pool_indices.data(), live);
  put(layout.out_cache_loc, inputs.out_cache_loc.data(), live * size_of(plan.query_len));
  for (int pass = 0; pass < plan.draft_passes; ++pass) {
    put(layout.draft_cache_loc + pass * live * sizeof(std::int64_t),
        inputs.draft_cache_loc.data() + std::int64_t{pass} * shape.batch_size, live);
  }
  if (plan.draft_passes > 0) put(layout.accept_lens, inputs.accept_lens.data(), live);
  put(layout.resets, inputs.resets.data(), inputs.resets.size());
  put(layout.writes, inputs.writes.data(), inputs.writes.size());
  staged_bytes[to_slot] = layout.bytes(header.num_writes);
  for (std::size_t i = 0; i < seq_lens_cpu.size(); ++i) {
    seq_lens_cpu[i] = inputs.seq_lens[i];
    extend_seq_lens_cpu[i] = seq_lens_cpu[i] + plan.query_len;
  }
}

void CudaCase::poison_outputs(cudaStream_t stream) {
  const auto fill = [&](const auto& buffer) {
    if (buffer.size() == 0) return;
    check_cuda(cudaMemsetAsync(buffer.data(), 0x7f, buffer.size_bytes(), stream));
  };
  for (std::size_t p = 0; p < outputs.size(); ++p) {
    const PhaseOutputs& out = outputs[p];
    fill(out.cache_seqlens);
    fill(out.cu_seqlens_k);
    fill(out.cu_seqlens_q);
    fill(out.page_table);
    fill(out.swa_page_table);
    fill(out.swa_out_cache_loc);
    check_cuda(cudaMemsetAsync(out.cu_seqlens_k.data(), 0, sizeof(std::int32_t), stream));
    const bool preset = plan.phases[p].q_mode == kernels::QueryMode::kPreset;
    std::vector<std::int32_t> queries(preset ? out.cu_seqlens_q.size() : 1);
    for (std::size_t i = 0; i < queries.size(); ++i) {
      queries[i] = static_cast<std::int32_t>(i) * plan.phases[p].query_len;
    }
    check_cuda(cudaMemcpyAsync(out.cu_seqlens_q.data(), queries.data(),
                               queries.size() * sizeof(std::int32_t), cudaMemcpyHostToDevice,
                               stream));
    check_cuda(cudaStreamSynchronize(stream));  // of pageable memory; prepare() only
  }
}

std::string CudaCase::counter_fault(int rank, std::int64_t step) const {
  std::int32_t full_layers = 0;
  for (int graph = 0; graph < plan.graphs; ++graph) full_layers += full_attention_layers(graph);
  if (full_layers == 0) return {};  // nobody fills or counts
  std::vector<std::int32_t> counters(attention_counters.size());
  check_cuda(cudaMemcpy(counters.data(), attention_counters.data(), attention_counters.size_bytes(),
                        cudaMemcpyDeviceToHost));
  for (std::size_t row = 0; row < counters.size(); ++row) {
    if (counters[row] == 0) continue;
    return fmt::format(
        "rank {}, step {}: the attention counter of row {} is {} after the block, expected 0; the "
        "kernels must reset what they count",
        rank, step, row, counters[row]);
  }
  return {};
}

}  // namespace tpjitter
