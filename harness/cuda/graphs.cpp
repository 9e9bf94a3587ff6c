#include "harness/cuda/graphs.h"

#include <bit>

#include "kernels/metadata_fused.h"

namespace tpjitter {
namespace {

// Attention, all-reduce, load, all-reduce.
constexpr std::int64_t kNodesOfALayer = 4;

// As an engine that makes its counters and scales anew for each call.
void enqueue_fills(const CudaCase& c, cudaStream_t stream) {
  constexpr std::uint32_t kOne = std::bit_cast<std::uint32_t>(1.0f);
  check_cuda(kernels::launch_fill(c.attention_counters.data(), 0,
                                  static_cast<std::int64_t>(c.attention_counters.size()), stream));
  for (const int i : {0, 1}) {
    check_cuda(kernels::launch_fill(c.kv_scales.data() + i, kOne, 1, stream));
  }
}

}  // namespace

void enqueue_all_reduce(const std::string& kind, Communicator& communicator, int ordinal,
                        std::int64_t bytes, const void* nccl_input, void* output,
                        const kernels::StampRing& ring, bool bracket, cudaStream_t stream) {
  if (kind == "one_shot_pull") {
    check_cuda(kernels::launch_one_shot_pull(
        communicator.one_shot_args(ordinal, bytes, output, ring), stream));
    return;
  }
  kernels::StampArgs stamp{ring, kernels::StampPoint::kAllReduceBegin, ordinal};
  if (bracket) check_cuda(kernels::launch_stamp(stamp, stream));
  communicator.nccl().all_reduce(nccl_input, output, bytes / 2, stream);
  stamp.point = kernels::StampPoint::kAllReduceEnd;
  if (bracket) check_cuda(kernels::launch_stamp(stamp, stream));
}

void enqueue_step_graph(const CudaCase& c, int graph, std::int32_t captured,
                        const RankContext& context, Communicator& communicator,
                        cudaStream_t stream) {
  const kernels::StampRing ring = c.ring();
  const int first = c.plan.first_phase(graph);
  const int last = c.plan.last_phase(graph);
  if (c.begins_with_stamp(graph)) {
    check_cuda(kernels::launch_stamp({ring, kernels::StampPoint::kGraphBegin, 0}, stream));
  }
  if (c.config.path == "fused_in_graph") {
    for (int phase = first; phase < last; ++phase) {
      check_cuda(kernels::launch_fused_metadata(c.metadata_args(phase, captured, true), stream));
    }
  }
  int layer = 0;  // of the graph: forwards count on
  kernels::DecodeBodyArgs body;
  for (int phase = first; phase < last; ++phase) {
    body = c.body_args(phase, captured, context, communicator);
    const auto all_reduce = [&](int ordinal) {
      // Brackets cost two nodes: the first all-reduce of a graph only, which the row reports.
      enqueue_all_reduce(c.config.all_reduce, communicator, ordinal,
                         c.all_reduce_bytes(phase, captured), body.inputs[ordinal % 2],
                         c.reduced.data(), ring, ordinal == 0, stream);
    };
    for (const int end = layer + c.plan.phases[phase].layers; layer < end; ++layer) {
      if (c.config.fills == "baked" && !kernels::layer_is_sliding(body.shape.swa, layer)) {
        enqueue_fills(c, stream);
      }
      check_cuda(kernels::launch_attention(body, layer, stream));
      all_reduce(layer * kernels::kAllReducesPerLayer);
      check_cuda(kernels::launch_load(body, layer, stream));
      all_reduce(layer * kernels::kAllReducesPerLayer + 1);
      for (std::int64_t node = kNodesOfALayer; node < c.config.nodes_per_layer; ++node) {
        check_cuda(kernels::launch_empty_node(stream, c.config.pdl));
      }
    }
  }
  check_cuda(kernels::launch_head(body, stream));
  check_cuda(kernels::launch_accept(c.accept_args(graph, captured, communicator), stream));
}

GraphExec capture_step_graph(const CudaCase& c, int graph, std::int32_t captured,
                             const RankContext& context, Communicator& communicator,
                             cudaStream_t stream) {
  return capture_graph(
      stream, [&] { enqueue_step_graph(c, graph, captured, context, communicator, stream); });
}

}  // namespace tpjitter
