#include "harness/host/host_case.h"

#include <algorithm>

namespace tpjitter {
namespace {

using kernels::DecodeMetadataArgs;

// Baked fills of a full-attention layer: counters, scales of k and v.
constexpr std::int64_t kFillsOfALayer = 3;

// The model of a captured body: attention, all-reduce, load, all-reduce a layer of each forward;
// then the node that ends the graph. A baked fill
// is a filler node.
ModelledGraph model_graph(const CaseConfig& config, const StepPlan& plan, int g,
                          const DeviceModel& m, int world_size) {
  const PlannedPhase& first = plan.phases[plan.first_phase(g)];
  const int forwards = plan.last_phase(g) - plan.first_phase(g);
  std::int64_t layers = 0;
  std::int64_t full_layers = 0;
  for (int i = plan.first_phase(g); i < plan.last_phase(g); ++i) {
    for (int end = static_cast<int>(layers) + plan.phases[i].layers; layers < end; ++layers) {
      full_layers += !kernels::layer_is_sliding(plan.phases[i].swa, static_cast<int>(layers));
    }
  }
  const bool baked = config.fills == "baked";
  const std::int64_t fills = baked ? full_layers * kFillsOfALayer : 0;
  // Those before the first all-reduce.
  const std::int64_t first_fills =
      baked && !kernels::layer_is_sliding(first.swa, 0) ? kFillsOfALayer : 0;
  const std::int64_t rebuilds = config.path == "fused_in_graph" ? forwards : 0;
  const std::int64_t nodes = layers * config.nodes_per_layer + 1 + rebuilds + fills;
  const std::int64_t bytes = body_shape(config, first, world_size).all_reduce_elements * 2;

  ModelledGraph graph;
  graph.host_ns = m.graph_launch_host_ns + nodes * m.graph_launch_host_per_1000_nodes_ns / 1000;
  graph.lead_ns = m.attention_ns + rebuilds * m.metadata_kernel_ns + first_fills * m.filler_node_ns;
  graph.transfer_ns = m.transfer_ns(bytes);
  graph.all_reduces = static_cast<std::int32_t>(layers * kernels::kAllReducesPerLayer);
  const std::int64_t all_reduce_ns = graph.transfer_ns + (world_size > 1 ? m.flight_ns : 0);
  const std::int64_t filler_ns =
      std::max<std::int64_t>(0, config.nodes_per_layer - 4) * m.filler_node_ns;
  const auto load_ns = static_cast<std::int64_t>(config.layer_us * 1000.0);
  const std::int64_t layer_ns = m.attention_ns + load_ns + filler_ns + 2 * all_reduce_ns;
  // Everything after the first all-reduce of the first layer.
  graph.rest_ns = layer_ns * layers - m.attention_ns - all_reduce_ns + m.accept_ns +
                  (fills - first_fills) * m.filler_node_ns;
  return graph;
}

}  // namespace

HostPhase::HostPhase(const ServingShape& shape, const PlannedPhase& phase,
                     kernels::PageColumns columns)
    : planned(phase),
      expected(shape, phase, columns),
      computed(shape, phase, columns),
      shape_(shape),
      strided_indices_(shape.max_seq_pages) {
  for (std::int32_t i = 0; i < shape.max_seq_pages; ++i) {
    strided_indices_[i] = std::int64_t{i} * shape.page_size;
  }
}

void HostPhase::set(PhaseArguments& arguments, MetadataBuffers& buffers, const ServingState& state,
                    const StepInputs& inputs) {
  arguments.metadata = buffers.args(state, inputs);
  const std::int64_t counted = planned.inputs == PhaseInputs::kDraftExtend ? planned.query_len : 0;
  arguments.seq_lens_cpu.resize(inputs.seq_lens.size());
  for (std::size_t i = 0; i < inputs.seq_lens.size(); ++i) {
    arguments.seq_lens_cpu[i] = inputs.seq_lens[i] + counted;
  }
  arguments.longest =
      *std::max_element(arguments.seq_lens_cpu.begin(), arguments.seq_lens_cpu.end()) +
      planned.seqlen_offset;
  kernels::AtenMetadataArgs& aten = arguments.aten;
  aten.metadata = arguments.metadata;
  aten.seq_lens_cpu = arguments.seq_lens_cpu.data();
  aten.strided_indices = strided_indices_.data();
  aten.pool_rows = shape_.pool_rows;
  aten.full_to_swa_len = static_cast<std::int64_t>(state.full_to_swa().size());
  aten.swa_out_buffer_len = planned.swa ? std::int64_t{shape_.max_batch} * planned.query_len : 0;
  arguments.page_table.metadata = arguments.metadata;
  arguments.page_table.full_to_swa_len = aten.full_to_swa_len;
  arguments.page_table.swa_out_buffer_len = aten.swa_out_buffer_len;
}

HostCase::HostCase(const CaseConfig& c, const DeviceModel& model, int ranks)
    : config(c),
      plan(step_plan(c)),
      shape(ServingShape::of(c)),
      world_size(ranks),
      live(shape),
      verify(shape),
      allocator_(kernels::host_block_source()),
      ops_(allocator_) {
  const auto columns =
      c.page_columns == "live" ? kernels::PageColumns::kLive : kernels::PageColumns::kAll;
  for (const PlannedPhase& phase : plan.phases) phases.emplace_back(shape, phase, columns);
  for (int g = 0; g < plan.graphs; ++g) {
    graphs.push_back(model_graph(c, plan, g, model, world_size));
  }
}

DecodeMetadataArgs HostCase::compute(const std::string& path, int i, const ServingState& state,
                                     const StepInputs& inputs) {
  HostPhase& phase = phases[i];
  phase.set(computed_, phase.computed, state, inputs);
  if (path == "aten") {
    kernels::rebuild_metadata_aten(ops_, phase.planned.rebuild, computed_.aten);
    ops_.end_rebuild();
  } else if (path == "page_table_kernel") {
    kernels::rebuild_metadata_page_table(ops_, phase.planned.rebuild, computed_.page_table);
    ops_.end_rebuild();
  } else {
    kernels::reference_decode_metadata(computed_.metadata);
  }
  return computed_.metadata;
}

std::uint64_t HostCase::graph_checksum(const std::string& path, int g, const ServingState& state,
                                       const StepInputs& inputs) {
  std::vector<kernels::GraphForward> forwards;
  for (int i = plan.first_phase(g); i < plan.last_phase(g); ++i) {
    kernels::GraphForward forward;
    if (path.empty()) {
      forward.metadata = phases[i].expected.args(state, inputs);
      kernels::reference_decode_metadata(forward.metadata);
    } else {
      forward.metadata = compute(path, i, state, inputs);
    }
    forward.layers = plan.phases[i].layers;
    forward.swa = plan.phases[i].swa;
    forwards.push_back(forward);
  }
  const kernels::DecodeBodyShape body =
      body_shape(config, plan.phases[plan.first_phase(g)], world_size);
  return kernels::reference_graph_checksum(forwards, body, inputs.step);
}

void HostCase::stage(const StepInputs& inputs) {
  for (HostPhase& phase : phases) phase.set(phase.staged, phase.computed, live, inputs);
}

}  // namespace tpjitter
