// Captured graphs: those of a case's step at one batch size, and the small ones of controls and
// checks. A capture enqueues on the given stream; nothing runs until the graph is launched.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "harness/cuda/communicator.h"
#include "harness/cuda/cuda_case.h"
#include "harness/cuda/handles.h"

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

// The same, instantiated and uploaded.
template <class Enqueue>
GraphExec capture_graph(cudaStream_t stream, Enqueue enqueue) {
  const Graph graph = capture_nodes(stream, enqueue);
  cudaGraphExec_t exec = nullptr;
  check_cuda(cudaGraphInstantiate(&exec, graph.get(), 0));
  GraphExec owner(exec);
  check_cuda(cudaGraphUpload(exec, stream));
  return owner;
}

// One graph of a step at a captured batch size: the forwards of its phases, with their metadata
// kernels first when the path is in the graph, and with baked fills three fill nodes before the
// attention of each full-attention layer. Throws ConfigError where the case's buffers are too small.
// enqueue_step_graph puts the nodes on a stream that captures.
void enqueue_step_graph(const CudaCase& c, int graph, std::int32_t captured,
                        const RankContext& context, Communicator& communicator,
                        cudaStream_t stream);
GraphExec capture_step_graph(const CudaCase& c, int graph, std::int32_t captured,
                             const RankContext& context, Communicator& communicator,
                             cudaStream_t stream);

// One all-reduce of the case's kind on the stream. nccl is bracketed by stamp nodes when `bracket`.
void enqueue_all_reduce(const std::string& kind, Communicator& communicator, int ordinal,
                        std::int64_t bytes, const void* nccl_input, void* output,
                        const kernels::StampRing& ring, bool bracket, cudaStream_t stream);

}  // namespace tpjitter
