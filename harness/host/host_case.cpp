#include "harness/host/host_case.h"

#include <fmt/format.h>

#include <algorithm>

namespace tpjitter {
namespace {

// Baked fills of a full-attention layer: counters, scales of k and v.
constexpr std::int64_t kFillsOfALayer = 3;

// The model of a captured body: attention, all-reduce, load, all-reduce a layer of each forward;
// then the node that ends the graph. A baked fill is a filler node.
ModelledGraph model_graph(const CaseConfig& config, const HostMetadata& metadata, int g,
                          const kernels::DecodeBodyShape& body, const DeviceModel& m) {
  std::int64_t layers = 0;
  std::int64_t full_layers = 0;
  bool fills_first = false;
  for (const kernels::GraphForward& forward : metadata.forwards(g)) {
    for (const std::int64_t end = layers + forward.layers; layers < end; ++layers) {
      const bool full = kernels::layer_kind(forward.tables.kind, forward.swa,
                                            static_cast<int>(layers)) == kernels::LayerKind::kFull;
      full_layers += full;
      if (layers == 0) fills_first = full;
    }
  }
  const bool baked = config.fills == "baked";
  const std::int64_t fills = baked ? full_layers * kFillsOfALayer : 0;
  const std::int64_t first_fills = baked && fills_first ? kFillsOfALayer : 0;
  const std::int64_t rebuilds = metadata.rebuild_nodes(g);
  const std::int64_t rebuild_ns =
      rebuilds *
      (runs_fused_kernel(metadata_path(config.path)) ? m.metadata_kernel_ns : m.kernel_ns);
  const std::int64_t nodes = layers * config.nodes_per_layer + 1 + rebuilds + fills;

  ModelledGraph graph;
  graph.host_ns = m.graph_launch_ns(nodes);
  if (config.execution == "eager") {
    graph.eager_nodes = nodes;
    graph.lead_nodes = rebuilds + first_fills + 2;  // attention and all-reduce
  }
  graph.lead_ns = m.attention_ns + rebuild_ns + first_fills * m.filler_node_ns;
  if (config.read_done == "in_replay") graph.read_ns = rebuild_ns;
  graph.transfer_ns = m.transfer_ns(body.all_reduce_elements * 2);
  graph.all_reduces = static_cast<std::int32_t>(layers * kernels::kAllReducesPerLayer);
  const std::int64_t all_reduce_ns = graph.transfer_ns + (body.world_size > 1 ? m.flight_ns : 0);
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

HostCase::HostCase(const CaseConfig& c, const DeviceModel& model, int world_size,
                   const MakeComposition& make)
    : config(c),
      plan(step_plan(c)),
      shape(ServingShape::of(c)),
      live(shape),
      expected(c, world_size),
      computing(make_computing_execution()),
      computed(c, metadata_path(c.path), expected.state(), *computing, make) {
  for (int g = 0; g < plan.graphs; ++g) {
    bodies.push_back(body_shape(c, plan.phases[plan.first_phase(g)], world_size));
    graphs.push_back(model_graph(c, computed, g, bodies.back(), model));
  }
  computed.poison();  // what capture filled must not pass for a rebuild
}

const StepInputs& HostCase::advance() {
  const StepInputs& inputs = expected.advance();
  computed.set_inputs(inputs);
  step_ = inputs.step;
  return inputs;
}

std::string HostCase::checksum_fault(int rank, int g, const ServingState& read) {
  computed.read_from(read);
  for (int phase = plan.first_phase(g); phase < plan.last_phase(g); ++phase) {
    computed.rebuild(phase);
  }
  computed.replay(g);
  const std::uint64_t got =
      kernels::reference_graph_checksum(computed.forwards(g), bodies[g], step_);
  const std::uint64_t wanted = expected.checksum(g);
  if (got == wanted) return {};
  const PlannedPhase& last = plan.phases[plan.last_phase(g) - 1];
  return fmt::format("rank {}, step {}, phase {}, graph {}: checksum {:016x}, expected {:016x}",
                     rank, step_, phase_name(last.phase), g, got, wanted);
}

std::string path_difference(const CaseConfig& config, int rank) {
  ExpectedGraphs expected(config, 1, page_columns(config));
  const StepInputs& inputs = expected.advance();
  const std::unique_ptr<HostExecution> computing = make_computing_execution();
  for (const MetadataPath& path : kMetadataPaths) {
    if (path.no_host_backend != nullptr || !path_exists(config, path)) continue;
    HostMetadata computed(config, path, expected.state(), *computing);
    computed.poison();
    computed.set_inputs(inputs);
    for (int phase = 0; phase < static_cast<int>(expected.plan().phases.size()); ++phase) {
      computed.rebuild(phase);
    }
    for (int g = 0; g < expected.plan().graphs; ++g) computed.replay(g);
    for (const ExpectedGraphs::Expected& tables : expected.tables()) {
      const std::string difference =
          computed.tables(tables.rows).difference(*tables.tables, tables.rows.view, false);
      if (difference.empty()) continue;
      const Phase phase = expected.plan().phases[tables.rows.view.phase].phase;
      return fmt::format("rank {}, phase {}: path {} differs from the reference: {}", rank,
                         phase_name(phase), path.name, difference);
    }
  }
  return {};
}

}  // namespace tpjitter
