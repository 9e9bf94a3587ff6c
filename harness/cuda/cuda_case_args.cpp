// Arguments of every kernel and rebuild of a case, over its buffers. Pointers are baked into the
// captured graphs: everything here must stay where it is for as long as the case lives.
#include <fmt/format.h>

#include <algorithm>

#include "harness/contract/error.h"
#include "harness/cuda/cuda_case.h"
#include "harness/metadata_buffers.h"

namespace tpjitter {

kernels::DecodeMetadataArgs CudaCase::metadata_args(int phase, std::int32_t captured,
                                                    bool for_paths) const {
  const PlannedPhase& planned = plan.phases[phase];
  const PhaseOutputs& out = outputs[phase];
  const std::int64_t tokens = std::int64_t{captured} * planned.query_len;
  const bool preset = planned.q_mode == kernels::QueryMode::kPreset;
  kernels::DecodeMetadataArgs a;
  a.req_pool_indices = req_pool_indices.data();
  a.seq_lens = seq_lens.data();
  a.req_to_token = req_to_token.data();
  a.out_cache_loc = out_cache_loc.data();
  if (planned.inputs == PhaseInputs::kDraft) {
    a.out_cache_loc = draft_cache_loc.data() + std::int64_t{max_batch} * planned.draft_pass;
  }
  if (planned.inputs == PhaseInputs::kDraftExtend) {
    a.seq_lens = extend_seq_lens.data();
    a.seq_lens_type = kernels::IntType::kInt64;
    a.q_lens = accept_lens.data();
  }
  a.cache_seqlens = out.cache_seqlens.data();
  a.cu_seqlens_k = out.cu_seqlens_k.data();
  a.cu_seqlens_q = for_paths && preset ? nullptr : out.cu_seqlens_q.data();
  a.page_table = out.page_table.data();
  a.req_to_token_stride = shape.max_context;
  a.page_table_stride = shape.max_seq_pages;
  a.num_out_tokens = tokens;
  a.batch_size = captured;
  a.seqlen_offset = planned.seqlen_offset;
  a.max_seq_pages = shape.max_seq_pages;
  a.page_size = shape.page_size;
  a.q_mode = planned.q_mode;
  a.q_stride = planned.q_mode == kernels::QueryMode::kStrided ? planned.query_len : 0;
  a.page_columns =
      config.page_columns == "live" ? kernels::PageColumns::kLive : kernels::PageColumns::kAll;
  if (planned.swa) {
    a.full_to_swa = full_to_swa.data();
    a.swa_page_table = out.swa_page_table.data();
    a.swa_page_table_stride = shape.max_seq_pages;
    a.swa_out_cache_loc = out.swa_out_cache_loc.data();
    a.swa_out_len = tokens;
  }
  return a;
}

kernels::AtenMetadataArgs CudaCase::aten_args(int phase) const {
  const bool extend = plan.phases[phase].inputs == PhaseInputs::kDraftExtend;
  kernels::AtenMetadataArgs args;
  args.metadata = metadata_args(phase, shape.batch_size, /*for_paths=*/true);
  args.seq_lens_cpu = extend ? extend_seq_lens_cpu.data() : seq_lens_cpu.data();
  args.strided_indices = strided_indices.data();
  args.pool_rows = shape.pool_rows;
  args.full_to_swa_len = static_cast<std::int64_t>(full_to_swa.size());
  args.swa_out_buffer_len = static_cast<std::int64_t>(outputs[phase].swa_out_cache_loc.size());
  return args;
}

kernels::PageTableMetadataArgs CudaCase::page_table_args(int phase) const {
  kernels::PageTableMetadataArgs args;
  args.metadata = metadata_args(phase, shape.batch_size, /*for_paths=*/true);
  args.full_to_swa_len = static_cast<std::int64_t>(full_to_swa.size());
  args.swa_out_buffer_len = static_cast<std::int64_t>(outputs[phase].swa_out_cache_loc.size());
  return args;
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

kernels::DecodeBodyArgs CudaCase::body_args(int phase, std::int32_t captured,
                                            const RankContext& context,
                                            const Communicator& communicator) const {
  kernels::DecodeBodyArgs args;
  args.metadata = metadata_args(phase, captured, /*for_paths=*/false);
  args.shape.layers = layers_of_graph(plan.phases[phase].graph);
  args.shape.world_size = world_size;
  args.shape.swa = plan.phases[phase].swa;
  args.shape.all_reduce_elements = all_reduce_bytes(phase, captured) / 2;
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

kernels::StepInputsArgs CudaCase::step_inputs_args() const {
  kernels::StepInputsArgs args;
  args.staging = device_staging.data();
  args.layout = layout;
  args.max_writes = max_writes;
  args.req_pool_indices = req_pool_indices.data();
  args.out_cache_loc = out_cache_loc.data();
  args.draft_cache_loc = draft_cache_loc.data();
  args.draft_cache_loc_stride = max_batch;
  args.accept_lens = accept_lens.data();
  args.seq_lens = seq_lens.data();
  args.req_to_token = req_to_token.data();
  return args;
}

kernels::ExtendLengthsArgs CudaCase::extend_lengths_args() const {
  kernels::ExtendLengthsArgs args;
  args.seq_lens = seq_lens.data();
  args.extended = extend_seq_lens.data();
  args.batch_size = shape.batch_size;
  args.query_len = plan.query_len;
  return args;
}

std::int32_t CudaCase::layers_of_graph(int graph) const {
  std::int32_t layers = 0;
  for (const PlannedPhase& phase : plan.phases) layers += phase.graph == graph ? phase.layers : 0;
  return layers;
}

std::int32_t CudaCase::full_attention_layers(int graph) const {
  std::int32_t layer = 0;
  std::int32_t full = 0;
  for (int p = plan.first_phase(graph); p < plan.last_phase(graph); ++p) {
    for (const int end = layer + plan.phases[p].layers; layer < end; ++layer) {
      if (!kernels::layer_is_sliding(plan.phases[p].swa, layer)) ++full;
    }
  }
  return full;
}

bool CudaCase::fills_come_first(int graph) const {
  return config.fills == "baked" &&
         !kernels::layer_is_sliding(plan.phases[plan.first_phase(graph)].swa, 0);
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
  for (const PlannedPhase& phase : plan.phases) layers += phase.layers;
  return static_cast<std::int64_t>(config.layer_us * 1000.0) * layers;
}

}  // namespace tpjitter
