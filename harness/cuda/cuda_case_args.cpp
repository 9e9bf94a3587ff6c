// Arguments of every kernel and rebuild of a case, over its buffers. Pointers are baked into the
// captured graphs: everything here must stay where it is for as long as the case lives.
#include <fmt/format.h>

#include <algorithm>

#include "harness/contract/error.h"
#include "harness/cuda/cuda_case.h"
#include "harness/leaf_tables.h"

namespace tpjitter {

PhaseArrays CudaCase::phase_arrays(int phase) const {
  const PlannedPhase& planned = plan.phases[phase];
  const RunnerRules& runner = planned.runner;
  PhaseArrays a;
  a.req_pool_indices = req_pool_indices.data();
  a.seq_lens = seq_lens.data();
  a.req_to_token = req_to_token.data();
  a.full_to_swa = full_to_swa.data();
  a.full_to_swa_len = static_cast<std::int64_t>(full_to_swa.size());
  a.seq_lens_cpu = seq_lens_cpu.data();
  if (planned.writes_slots()) a.out_cache_loc = out_cache_loc.data();
  if (planned.inputs == PhaseInputs::kDraft) {
    a.out_cache_loc =
        draft_cache_loc.data() + std::int64_t{max_batch} * shape.topk * planned.draft_pass;
    if (shape.topk > 1) a.tree_cache_loc = tree_cache_loc.data();
  }
  if (plan.masks_tree(phase)) {
    a.custom_mask = custom_mask.data();
    a.custom_mask_len = static_cast<std::int64_t>(custom_mask.size());
  }
  if (!planned.has_own_inputs()) return a;
  a.seq_lens = runner_lengths.data();
  a.seq_lens_type = runner.seq_lens_type;
  a.seq_lens_cpu = runner_seq_lens_cpu.data();
  if (runner.stale_padded_rows) a.req_pool_indices = runner_pool_rows.data();
  if (planned.inputs == PhaseInputs::kDraftExtend) {
    a.accept_lens = runner.stale_padded_rows ? runner_accepts.data() : accept_lens.data();
  }
  return a;
}

kernels::AtenMetadataArgs CudaCase::aten_args(int phase) const {
  const TableRows rows{{LeafKind::kPaged, 0}, view(phase)};
  return static_cast<const PagedTables&>(metadata->tables(rows)).aten_args(rows.view);
}

kernels::StampRing CudaCase::ring() const {
  kernels::StampRing ring;
  ring.all_reduces = all_reduce_stamps.data();
  ring.graphs = graph_stamps.data();
  ring.entry = &state.data()->ring_entry;
  ring.capacity = ring_capacity;
  for (int g = 0; g < plan.graphs; ++g) {
    ring.all_reduces_per_replay = std::max(ring.all_reduces_per_replay, all_reduces_of_graph(g));
  }
  return ring;
}

kernels::AttentionScratch CudaCase::attention_scratch(std::int64_t rows) const {
  kernels::AttentionScratch scratch;
  scratch.counters = attention_counters.data();
  scratch.counter_rows = static_cast<std::int64_t>(attention_counters.size());
  for (const int i : {0, 1}) scratch.kv_scales[i] = kv_scales.data() + i;
  if (scratch.counter_rows < rows) {
    throw ConfigError(fmt::format(
        "attention counters: the buffer has {} rows and a forward needs {}; size it once, for "
        "(max running requests + 1) * max(1, draft tokens) = {} rows",
        scratch.counter_rows, rows, kernels::attention_counter_rows(max_batch, plan.query_len)));
  }
  return scratch;
}

kernels::DecodeBodyArgs CudaCase::body_args(const LayerRun& run, const RankContext& context,
                                            const Communicator& communicator) const {
  const int phase = run.tables.view.phase;
  const kernels::GraphForward forward = metadata->forward(run);
  kernels::DecodeBodyArgs args;
  args.metadata = forward.metadata;
  args.tables = forward.tables;
  args.shape.layers = layers_of_graph(plan.phases[phase].graph);
  args.shape.world_size = world_size;
  args.shape.swa = forward.swa;
  args.shape.all_reduce_elements = all_reduce_bytes(phase, run.tables.view.batch_size) / 2;
  args.state = state.data();
  args.kv = kv.data();
  args.kv_slots = static_cast<std::int64_t>(kv.size());
  args.swa_kv = swa_kv.data();
  args.swa_kv_slots = static_cast<std::int64_t>(swa_kv.size());
  args.reduced = reduced.data();
  for (const int parity : {0, 1}) {
    args.inputs[parity] =
        config.all_reduce == "nccl" ? nccl_inputs[parity].data() : communicator.input(parity);
  }
  args.layer_ns = static_cast<std::int64_t>(config.layer_us * 1000.0);
  args.rank = context.rank;
  // With metadata or fill kernels ahead of it, a stamp node comes before them instead.
  args.stamp_begin = !begins_with_stamp(plan.phases[phase].graph);
  args.pdl = config.pdl;
  args.scratch = attention_scratch(args.metadata.num_out_tokens);
  args.ring = ring();
  args.guard = communicator.guard();
  return args;
}

kernels::AcceptArgs CudaCase::accept_args(int graph, std::int32_t captured,
                                          const Communicator& communicator) const {
  kernels::AcceptArgs args;
  args.state = state.data();
  args.seq_lens = seq_lens.data();
  args.result = config.coupling_wait == "mapped_flag" ? host_results.data() : device_result.data();
  args.seed = shape.seed;
  args.live_rows = std::min(captured, shape.live_batch);
  args.end_of_step = graph + 1 == plan.graphs;
  args.pdl = config.pdl;
  args.ring = ring();
  args.guard = communicator.guard();
  return args;
}

kernels::DelayArgs CudaCase::delay_args(const Communicator& communicator) const {
  kernels::DelayArgs args;
  args.delays_ns = delays_ns.data();
  args.steps = static_cast<std::int64_t>(delays_ns.size());
  args.step = &state.data()->step;
  args.ring = ring();
  args.guard = communicator.guard();
  return args;
}

kernels::StepInputsArgs CudaCase::step_inputs_args() const {
  kernels::StepInputsArgs args;
  args.staging = device_staging.data();
  args.layout = layout;
  args.max_writes = max_writes;
  args.req_pool_indices = req_pool_indices.data();
  args.out_cache_loc = out_cache_loc.data();
  args.draft_cache_loc = draft_cache_loc.data();
  args.draft_cache_loc_stride = std::int64_t{max_batch} * shape.topk;
  args.tree_cache_loc = tree_cache_loc.data();
  args.accept_lens = accept_lens.data();
  args.seq_lens = seq_lens.data();
  args.req_to_token = req_to_token.data();
  return args;
}

kernels::RunnerInputsArgs CudaCase::runner_inputs_args() const {
  const RunnerRules& runner = runner_phase.runner;
  kernels::RunnerInputsArgs args;
  args.seq_lens = seq_lens.data();
  args.lengths = runner_lengths.data();
  args.lengths_type = runner.seq_lens_type;
  args.batch_size = shape.batch_size;
  args.live_rows = shape.live_batch;
  args.counted = runner.counted;
  if (!runner.stale_padded_rows) return args;
  args.req_pool_indices = req_pool_indices.data();
  args.pool_rows = runner_pool_rows.data();
  args.accept_lens = accept_lens.data();
  args.accepts = runner_accepts.data();
  args.padded_accept = runner.padded_accept;
  return args;
}

kernels::TreeMaskArgs CudaCase::tree_mask_args() const {
  kernels::TreeMaskArgs args;
  args.seq_lens = seq_lens.data();
  args.step = &state.data()->step;
  args.custom_mask = custom_mask.data();
  args.mask_len = static_cast<std::int64_t>(custom_mask.size());
  args.seed = shape.seed;
  args.live_rows = shape.live_batch;
  args.draft_tokens = plan.query_len;
  return args;
}

std::int32_t CudaCase::full_attention_layers(int graph) const {
  return static_cast<std::int32_t>(
      std::count(layer_kinds[graph].begin(), layer_kinds[graph].end(), kernels::LayerKind::kFull));
}

bool CudaCase::fills_come_first(int graph) const {
  return config.fills == "baked" && layer_kinds[graph].front() == kernels::LayerKind::kFull;
}

std::int64_t CudaCase::largest_all_reduce_bytes() const {
  std::int64_t bytes = 0;
  for (int p = 0; p < static_cast<int>(plan.phases.size()); ++p) {
    bytes = std::max(bytes, all_reduce_bytes(p, max_batch));
  }
  return bytes;
}

std::int64_t CudaCase::load_ns() const {
  std::int64_t layers = 0;
  for (int graph = 0; graph < plan.graphs; ++graph) layers += layers_of_graph(graph);
  return static_cast<std::int64_t>(config.layer_us * 1000.0) * layers;
}

}  // namespace tpjitter
