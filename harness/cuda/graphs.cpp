#include "harness/cuda/graphs.h"

#include <bit>

namespace tpjitter {
namespace {

// Attention, all-reduce, load, all-reduce.
constexpr std::int64_t kNodesOfALayer = 4;
constexpr std::int64_t kGateBytes = 16;  // the least an all-reduce takes

// As an engine that makes its counters and scales anew for each call.
void enqueue_fills(const CudaCase& c, cudaStream_t stream) {
  constexpr std::uint32_t kOne = std::bit_cast<std::uint32_t>(1.0f);
  check_cuda(kernels::launch_fill(c.attention_counters.data(), 0,
                                  static_cast<std::int64_t>(c.attention_counters.size()), stream));
  for (const int i : {0, 1}) {
    check_cuda(kernels::launch_fill(c.kv_scales.data() + i, kOne, 1, stream));
  }
}

void record_read_done(cudaEvent_t event, cudaStream_t stream) {
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  check_cuda(cudaStreamIsCapturing(stream, &capturing));
  // Without the flag a captured record only orders the capture, and no replay would signal.
  const bool external = capturing == cudaStreamCaptureStatusActive;
  check_cuda(cudaEventRecordWithFlags(event, stream,
                                      external ? cudaEventRecordExternal : cudaEventRecordDefault));
}

}  // namespace

void enqueue_all_reduce(const std::string& kind, Communicator& communicator, int ordinal,
                        std::int64_t bytes, const void* nccl_input, void* output,
                        const kernels::StampRing& ring, bool bracket, bool pdl,
                        cudaStream_t stream) {
  kernels::AllReduceArgs args = communicator.all_reduce_args(ordinal, bytes, output, ring);
  args.pdl = pdl;
  if (const auto* kernel = kernels::find_all_reduce(kind, args.arena.world_size, bytes)) {
    check_cuda(kernel->launch(args, stream));
    return;
  }
  kernels::StampArgs stamp{ring, kernels::StampPoint::kAllReduceBegin, ordinal};
  if (bracket) check_cuda(kernels::launch_stamp(stamp, stream));
  communicator.nccl().all_reduce(nccl_input, output, bytes / 2, stream);
  stamp.point = kernels::StampPoint::kAllReduceEnd;
  if (bracket) check_cuda(kernels::launch_stamp(stamp, stream));
}

StepGraph make_step_graph(const CudaCase& c, int graph, std::int32_t captured,
                          const RankContext& context, const Communicator& communicator) {
  StepGraph made;
  MetadataBackend& composition = c.metadata->composition();
  for (int phase = c.plan.first_phase(graph); phase < c.plan.last_phase(graph); ++phase) {
    made.rebuilds.push_back(c.view(phase, captured));
    composition.capture(made.rebuilds.back());
    // As an engine's warm-ups: what the recording needs is made before it.
    if (c.metadata->ops() != nullptr) composition.in_graph(made.rebuilds.back());
  }
  check_cuda(c.metadata->take_status());
  for (const LayerRun& run :
       graph_layers(composition, c.plan, graph, captured, c.shape.live_batch)) {
    made.forwards.push_back({c.body_args(run, context, communicator),
                             c.all_reduce_bytes(run.tables.view.phase, captured), run.layers});
  }
  if (c.begins_with_delay(graph)) {
    // What the gate sums up is nobody's: the first real all-reduce overwrites it.
    StepGraph::Delay& delay = made.delay.emplace();
    for (const int ordinal : {0, 1}) {
      delay.gate[ordinal] = communicator.all_reduce_args(ordinal, kGateBytes, c.reduced.data(), {});
    }
    delay.delay = c.delay_args(communicator);
  }
  made.accept = c.accept_args(graph, captured, communicator);
  made.ring = c.ring();
  made.begins_with_stamp = c.begins_with_stamp(graph);
  return made;
}

void enqueue_step_graph(const CudaCase& c, const StepGraph& graph, Communicator& communicator,
                        cudaEvent_t read_done, cudaStream_t stream) {
  if (graph.delay) {
    for (const kernels::AllReduceArgs& gate : graph.delay->gate) {
      check_cuda(kernels::launch_one_shot_pull(gate, stream));
    }
    check_cuda(kernels::launch_delay(graph.delay->delay, stream));
  } else if (graph.begins_with_stamp) {
    check_cuda(kernels::launch_stamp({graph.ring, kernels::StampPoint::kGraphBegin, 0}, stream));
  }
  c.metadata->launch_on(stream, c.metadata->ops());
  for (const BatchView& view : graph.rebuilds) c.metadata->composition().in_graph(view);
  check_cuda(c.metadata->take_status());
  if (read_done != nullptr) record_read_done(read_done, stream);
  int layer = 0;  // of the graph: forwards count on
  for (const StepGraph::Forward& forward : graph.forwards) {
    const kernels::DecodeBodyArgs& body = forward.body;
    const auto all_reduce = [&](int ordinal) {
      // Brackets cost two nodes: the first all-reduce of a graph only, which the row reports.
      enqueue_all_reduce(c.config.all_reduce, communicator, ordinal, forward.all_reduce_bytes,
                         body.inputs[ordinal % 2], c.reduced.data(), graph.ring, ordinal == 0,
                         body.pdl, stream);
    };
    for (const int end = layer + forward.layers; layer < end; ++layer) {
      const kernels::LayerKind kind = kernels::layer_kind(body.tables.kind, body.shape.swa, layer);
      if (c.config.fills == "baked" && kind == kernels::LayerKind::kFull) enqueue_fills(c, stream);
      check_cuda(kernels::launch_attention(body, layer, stream));
      all_reduce(layer * kernels::kAllReducesPerLayer);
      check_cuda(kernels::launch_load(body, layer, stream));
      all_reduce(layer * kernels::kAllReducesPerLayer + 1);
      for (std::int64_t node = kNodesOfALayer; node < c.config.nodes_per_layer; ++node) {
        check_cuda(kernels::launch_empty_node(stream, c.config.pdl));
      }
    }
  }
  check_cuda(kernels::launch_head(graph.forwards.back().body, stream));
  check_cuda(kernels::launch_accept(graph.accept, stream));
}

void enqueue_step_graph(const CudaCase& c, int graph, std::int32_t captured,
                        const RankContext& context, Communicator& communicator,
                        cudaStream_t stream) {
  const StepGraph made = make_step_graph(c, graph, captured, context, communicator);
  enqueue_step_graph(c, made, communicator, nullptr, stream);
}

GraphExec capture_step_graph(const CudaCase& c, int graph, std::int32_t captured,
                             const RankContext& context, Communicator& communicator,
                             cudaStream_t stream, cudaEvent_t read_done) {
  const StepGraph made = make_step_graph(c, graph, captured, context, communicator);
  return capture_graph(stream,
                       [&] { enqueue_step_graph(c, made, communicator, read_done, stream); });
}

}  // namespace tpjitter
