// Captured graphs: those of a case's step at one batch size, and the small ones of controls and
// checks. A capture enqueues on the given stream; nothing runs until the graph is launched.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "harness/cuda/communicator.h"
#include "harness/cuda/cuda_case.h"
#include "harness/cuda/handles.h"
#include "kernels/delay.h"

namespace tpjitter {

// What `enqueue` puts on the stream, as a graph.
template <class Enqueue>
Graph capture_nodes(cudaStream_t stream, Enqueue enqueue) {
  // Thread-local: NCCL's threads may call the runtime meanwhile.
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  cudaGraph_t captured = nullptr;
  try {
    enqueue();
  } catch (...) {
    cudaStreamEndCapture(stream, &captured);
    const Graph ended(captured);
    throw;
  }
  check_cuda(cudaStreamEndCapture(stream, &captured));
  return Graph(captured);
}

// Instantiated, and uploaded on the stream.
inline GraphExec instantiate(const Graph& graph, cudaStream_t stream) {
  cudaGraphExec_t exec = nullptr;
  check_cuda(cudaGraphInstantiate(&exec, graph.get(), 0));
  GraphExec owner(exec);
  check_cuda(cudaGraphUpload(exec, stream));
  return owner;
}

template <class Enqueue>
GraphExec capture_graph(cudaStream_t stream, Enqueue enqueue) {
  return instantiate(capture_nodes(stream, enqueue), stream);
}

// One graph of a step at a captured batch size, its arguments ready: the forwards of its phases,
// with their metadata kernels first when the path is in the graph.
struct StepGraph {
  struct Forward {
    kernels::DecodeBodyArgs body;
    std::int64_t all_reduce_bytes = 0;
    std::int32_t layers = 0;
  };
  // An injected delay, behind a gate of two small all-reduces: the ordinals of a communicator's
  // calls must alternate between even and odd.
  struct Delay {
    kernels::AllReduceArgs gate[2];
    kernels::DelayArgs delay;
  };
  std::optional<Delay> delay;       // the first node: marks the graph's begin
  std::vector<BatchView> rebuilds;  // of each phase, through the composition's in-graph hook
  std::vector<Forward> forwards;
  kernels::AcceptArgs accept;
  kernels::StampRing ring;
  bool begins_with_stamp = false;
};

// Captures the metadata of that size first: binds it and, with a stream to launch on, fills it. Throws
// ConfigError where the case's buffers are too small.
StepGraph make_step_graph(const CudaCase& c, int graph, std::int32_t captured,
                          const RankContext& context, const Communicator& communicator);
// Puts its kernels on a stream, which captures them or, in eager execution, runs them. With baked
// fills three fill nodes come before the attention of each full-attention layer. `read_done`, if
// any, is recorded behind the metadata kernels: in a capture as a node that each replay records.
void enqueue_step_graph(const CudaCase& c, const StepGraph& graph, Communicator& communicator,
                        cudaEvent_t read_done, cudaStream_t stream);
void enqueue_step_graph(const CudaCase& c, int graph, std::int32_t captured,
                        const RankContext& context, Communicator& communicator,
                        cudaStream_t stream);
GraphExec capture_step_graph(const CudaCase& c, int graph, std::int32_t captured,
                             const RankContext& context, Communicator& communicator,
                             cudaStream_t stream, cudaEvent_t read_done = nullptr);

// One all-reduce of the case's kind on the stream. nccl is bracketed by stamp nodes when `bracket`;
// ours are launched programmatically with `pdl`.
void enqueue_all_reduce(const std::string& kind, Communicator& communicator, int ordinal,
                        std::int64_t bytes, const void* nccl_input, void* output,
                        const kernels::StampRing& ring, bool bracket, bool pdl,
                        cudaStream_t stream);

}  // namespace tpjitter
