// GPU time of a captured graph, by events around its launch. A spin kernel before them keeps the GPU
// busy until the host has enqueued everything, so that no launch is in the time.
#pragma once

#include "harness/cuda/graphs.h"
#include "harness/cuda/handles.h"
#include "kernels/spin.h"

namespace tpjitter::bench {

class GraphTimer {
 public:
  GraphTimer() {
    for (Event* event : {&begin_, &end_}) {
      cudaEvent_t made = nullptr;
      check_cuda(cudaEventCreate(&made));
      event->reset(made);
    }
  }

  cudaStream_t stream() const { return stream_.get(); }
  void sync() { check_cuda(cudaStreamSynchronize(stream())); }

  template <class Enqueue>
  GraphExec capture(Enqueue enqueue) {
    GraphExec graph = capture_graph(stream(), enqueue);
    sync();  // the upload
    return graph;
  }

  // Seconds of one replay.
  double seconds(const GraphExec& graph) {
    kernels::SpinArgs spin;
    spin.duration_ns = 30'000;
    check_cuda(kernels::launch_spin(spin, stream()));
    check_cuda(cudaEventRecord(begin_.get(), stream()));
    check_cuda(cudaGraphLaunch(graph.get(), stream()));
    check_cuda(cudaEventRecord(end_.get(), stream()));
    sync();
    float milliseconds = 0;
    check_cuda(cudaEventElapsedTime(&milliseconds, begin_.get(), end_.get()));
    return static_cast<double>(milliseconds) * 1e-3;
  }

 private:
  Stream stream_ = make_stream();
  Event begin_, end_;
};

}  // namespace tpjitter::bench
