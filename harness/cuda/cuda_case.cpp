#include "harness/cuda/cuda_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "harness/contract/error.h"
#include "harness/injection.h"
#include "harness/runner_inputs.h"

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

std::vector<std::int32_t> delays_of(const CaseConfig& config, const RankContext& context) {
  const Injection injection = Injection::of(config, context.rank, context.world_size);
  std::vector<std::int32_t> delays(size_of(config.warmup_steps + config.steps));
  for (std::size_t step = 0; step < delays.size(); ++step) {
    delays[step] = static_cast<std::int32_t>(injection.delay_ns(static_cast<std::int64_t>(step)));
  }
  return delays;
}

PlannedPhase runner_phase_of(const StepPlan& plan) {
  for (const PlannedPhase& phase : plan.phases) {
    if (phase.has_own_inputs()) return phase;
  }
  return {};
}

// Lengths of 1 in the runner's type, int32 two to a word.
std::int64_t one_of(const RunnerRules& runner) {
  return runner.seq_lens_type == kernels::IntType::kInt64 ? 1 : (std::int64_t{1} << 32) + 1;
}

}  // namespace

std::int64_t steps_ahead(const CaseConfig& config) {
  return config.loop == "run_ahead" ? config.run_ahead_depth : 0;
}

CudaCase::CudaCase(const CaseConfig& c, const RankContext& context)
    : config(c),
      plan(step_plan(c)),
      runner_phase(runner_phase_of(plan)),
      shape(ServingShape::of(c)),
      max_batch(shape.max_batch),
      world_size(context.world_size),
      ring_capacity(std::max<std::int64_t>(1, c.block_steps) * plan.graphs) {
  for (const auto& runs : layers_by_graph(c, plan, shape.batch_size, shape.live_batch)) {
    layer_kinds.push_back(tpjitter::layer_kinds(plan, runs));
  }
  const ServingState initial(shape);
  req_to_token = uploaded(initial.req_to_token());
  if (shape.needs_mapping) full_to_swa = uploaded(initial.full_to_swa());

  const std::size_t rows = size_of(max_batch);
  seq_lens = uploaded(std::vector<std::int32_t>(rows, 1));
  req_pool_indices = zeroed<std::int64_t>(rows);
  out_cache_loc = zeroed<std::int64_t>(rows * size_of(plan.query_len));
  draft_cache_loc = zeroed<std::int64_t>(rows * size_of(plan.draft_passes * shape.topk));
  if (shape.topk > 1) {
    tree_cache_loc = zeroed<std::int64_t>(rows * size_of(shape.topk * shape.draft_steps));
    custom_mask =
        uploaded(std::vector<std::uint8_t>(size_of(shape.custom_mask_bytes()), std::uint8_t{1}));
  }
  accept_lens = zeroed<std::int32_t>(rows);
  runner_lengths = uploaded(std::vector<std::int64_t>(rows, one_of(runner_phase.runner)));
  runner_pool_rows = uploaded(std::vector<std::int64_t>(rows, kStalePoolRow));
  runner_accepts = uploaded(std::vector<std::int32_t>(rows, runner_phase.runner.padded_accept));
  kv = zeroed<std::int32_t>(size_of(shape.num_slots));
  // SWA page ids run to num_slots / page_size + 1.
  if (shape.needs_mapping) {
    swa_kv = zeroed<std::int32_t>(size_of(shape.num_slots + 2 * shape.page_size));
  }
  reduced = DeviceBuffer<std::byte>(size_of(largest_all_reduce_bytes()));
  if (config.inject_where == "gpu") delays_ns = uploaded(delays_of(config, context));
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
                                     plan.draft_passes, shape.topk, shape.draft_steps);
  // The step being staged, the one just launched and those that the host is ahead.
  const std::size_t slots = size_of(steps_ahead(config) + 2);
  for (std::size_t i = 0; i < slots; ++i) staging.emplace_back(layout.bytes(max_writes));
  staged_bytes.resize(slots);
  device_staging = DeviceBuffer<unsigned char>(layout.bytes(max_writes));
  seq_lens_cpu.assign(rows, 1);
  runner_seq_lens_cpu = seq_lens_cpu;
  accept_lens_cpu.assign(rows, plan.query_len);
  device_result = zeroed<kernels::AcceptResult>(1);
  host_results = PinnedBuffer<kernels::AcceptResult>(slots);
  synced_seq_lens = PinnedBuffer<std::int32_t>(rows);
  for (int phase = 0; phase < static_cast<int>(plan.phases.size()); ++phase) {
    arrays.push_back(phase_arrays(phase));
  }
  metadata = std::make_unique<CudaMetadata>(config, plan, shape, arrays, accept_lens_cpu.data());
  check_cuda(cudaDeviceSynchronize());  // uploads, before streams that do not wait for them
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
  put(layout.draft_cache_loc, inputs.tree_cache_loc.data(),
      shape.topk > 1 ? live * size_of(shape.topk * shape.draft_steps) : 0);
  for (int pass = 0; pass < plan.draft_passes && shape.topk == 1; ++pass) {
    put(layout.draft_cache_loc + pass * live * sizeof(std::int64_t),
        inputs.draft_cache_loc.data() + std::int64_t{pass} * shape.batch_size, live);
  }
  if (plan.draft_passes > 0) put(layout.accept_lens, inputs.accept_lens.data(), live);
  put(layout.resets, inputs.resets.data(), inputs.resets.size());
  put(layout.writes, inputs.writes.data(), inputs.writes.size());
  staged_bytes[to_slot] = layout.bytes(header.num_writes);
  const std::int32_t counted = runner_phase.runner.counted;
  for (std::size_t i = 0; i < live; ++i) {
    seq_lens_cpu[i] = inputs.seq_lens[i];
    runner_seq_lens_cpu[i] = seq_lens_cpu[i] + counted;
    accept_lens_cpu[i] = inputs.accept_lens[i];
  }
}

void CudaCase::poison_outputs(cudaStream_t stream) {
  check_cuda(cudaStreamSynchronize(stream));  // prepare() only
  metadata->poison();
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
