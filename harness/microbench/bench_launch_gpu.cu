// Host time of launches on a real GPU. Each batch is drained outside the timed part, so that the
// queue never fills and the host never waits inside it.
#include <benchmark/benchmark.h>
#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

#include "harness/clock.h"
#include "harness/microbench/bench_launch.h"

namespace tpjitter {
namespace {

__global__ void empty_kernel() {}

void check(cudaError_t status) {
  if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
}

constexpr int kBatch = 64;  // launches between two drains

// Mean host time of one `launch()` on an idle stream's queue.
template <class Launch>
void time_launches(benchmark::State& state, cudaStream_t stream, int batch, Launch launch) {
  for (auto _ : state) {
    check(cudaStreamSynchronize(stream));
    const std::int64_t begin = now_ns();
    for (int i = 0; i < batch; ++i) launch();
    const std::int64_t end = now_ns();
    state.SetIterationTime(static_cast<double>(end - begin) * 1e-9 / batch);
  }
  check(cudaStreamSynchronize(stream));
}

void kernel_launch(benchmark::State& state) {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  time_launches(state, stream, kBatch, [&] { empty_kernel<<<1, 32, 0, stream>>>(); });
  check(cudaGetLastError());
  check(cudaStreamDestroy(stream));
}

// state.range(0) nodes in a chain. state.range(1): 0 the GPU is idle at each launch, 1 it is busy
// with the graphs before.
void graph_launch(benchmark::State& state) {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  cudaGraph_t graph = nullptr;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < state.range(0); ++i) empty_kernel<<<1, 32, 0, stream>>>();
  check(cudaStreamEndCapture(stream, &graph));
  cudaGraphExec_t exec = nullptr;
  check(cudaGraphInstantiate(&exec, graph, 0));
  check(cudaGraphUpload(exec, stream));
  check(cudaGraphLaunch(exec, stream));
  const int batch = state.range(1) == 0 ? 1 : 8;
  time_launches(state, stream, batch, [&] { check(cudaGraphLaunch(exec, stream)); });
  check(cudaGraphExecDestroy(exec));
  check(cudaGraphDestroy(graph));
  check(cudaStreamDestroy(stream));
}

}  // namespace

std::string register_gpu_launch_benchmarks() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
    cudaGetLastError();
    return "none: no driver or no device; host benchmarks only";
  }
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, 0));
  benchmark::RegisterBenchmark("kernel_launch", kernel_launch)->UseManualTime();
  auto* graphs = benchmark::RegisterBenchmark("graph_launch", graph_launch)->UseManualTime();
  graphs->ArgNames({"nodes", "busy"});
  for (const int nodes : {1, 10, 100, 500, 1000, 2000, 2900}) {
    for (const int busy : {0, 1}) graphs->Args({nodes, busy});
  }
  // Until 0.1 s of host time had passed, the large graphs would keep the GPU busy for minutes.
  graphs->Iterations(400);
  return properties.name;
}

}  // namespace tpjitter
