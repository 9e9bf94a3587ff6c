// Host and replay cost of launches on a real GPU.
//   kernel_launch                                   one empty kernel
//   graph_launch/nodes:N/param_bytes:B/busy:0|1     a chain of N kernels with B bytes of parameters
//       each; the GPU idle at each launch, or busy with the eight launched before
//   graph_first_launch/nodes:N/param_bytes:B/uploaded:0|1   the first launch of an executable, behind
//       an upload or not; counters: what instantiation, upload and the second launch take
// Floor of the host times: a graph of one empty kernel, the cheapest start that the driver has.
// Queues are drained outside the timed part, so that the host never waits inside it.
#include <benchmark/benchmark.h>
#include <cuda_runtime.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "harness/microbench/bench_launch.h"

namespace tpjitter {
namespace {

void check(cudaError_t status) {
  if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
}

template <int kBytes>
struct Parameters {
  unsigned char bytes[kBytes];
};

// Reads the last of its parameters.
template <int kBytes>
__global__ void parameter_kernel(const __grid_constant__ Parameters<kBytes> parameters) {
  asm volatile("" ::"r"(static_cast<unsigned>(parameters.bytes[kBytes - 1])));
}

__global__ void empty_kernel() {}

constexpr int kParameterBytes[] = {0, 256, 1024, 4000};

void enqueue_node(int parameter_bytes, cudaStream_t stream) {
  switch (parameter_bytes) {
    case 256:
      parameter_kernel<<<1, 32, 0, stream>>>(Parameters<256>{});
      break;
    case 1024:
      parameter_kernel<<<1, 32, 0, stream>>>(Parameters<1024>{});
      break;
    case 4000:
      parameter_kernel<<<1, 32, 0, stream>>>(Parameters<4000>{});
      break;
    default:
      empty_kernel<<<1, 32, 0, stream>>>();
  }
}

class LaunchStream {
 public:
  LaunchStream() {
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    check(cudaEventCreate(&begin_));
    check(cudaEventCreate(&end_));
  }
  ~LaunchStream() {
    cudaStreamSynchronize(stream_);
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
    cudaStreamDestroy(stream_);
  }
  LaunchStream(const LaunchStream&) = delete;
  LaunchStream& operator=(const LaunchStream&) = delete;

  cudaStream_t get() const { return stream_; }
  void drain() const { check(cudaStreamSynchronize(stream_)); }
  // GPU seconds of what `enqueue` puts on the stream, its launch on the host included in the first
  // of `count`: with several the GPU runs behind the host.
  template <class Enqueue>
  double gpu_seconds(int count, Enqueue enqueue) const {
    enqueue();
    check(cudaEventRecord(begin_, stream_));
    for (int i = 0; i < count; ++i) enqueue();
    check(cudaEventRecord(end_, stream_));
    drain();
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin_, end_));
    return static_cast<double>(milliseconds) * 1e-3 / count;
  }

 private:
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

class ChainGraph {
 public:
  ChainGraph(int nodes, int parameter_bytes, const LaunchStream& stream) : stream_(stream) {
    check(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < nodes; ++i) enqueue_node(parameter_bytes, stream.get());
    check(cudaStreamEndCapture(stream.get(), &graph_));
  }
  ~ChainGraph() {
    destroy_executable();
    cudaGraphDestroy(graph_);
  }
  ChainGraph(const ChainGraph&) = delete;
  ChainGraph& operator=(const ChainGraph&) = delete;

  void instantiate() {
    destroy_executable();
    check(cudaGraphInstantiate(&executable_, graph_, 0));
  }
  void upload() const { check(cudaGraphUpload(executable_, stream_.get())); }
  void launch() const { check(cudaGraphLaunch(executable_, stream_.get())); }
  void make_ready() {
    instantiate();
    upload();
    launch();
    stream_.drain();
  }

 private:
  void destroy_executable() {
    if (executable_ != nullptr) cudaGraphExecDestroy(executable_);
    executable_ = nullptr;
  }
  const LaunchStream& stream_;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

constexpr int kLaunches = 64;  // between two drains, of one node each
constexpr int kBusy = 8;       // graphs in a row

// One launch of an idle stream's graph of one node at a time.
double one_node_seconds(const ChainGraph& graph, const LaunchStream& stream) {
  stream.drain();
  const double seconds = host_seconds(1, [&] { graph.launch(); });
  stream.drain();
  return seconds;
}

void kernel_launch(benchmark::State& state) {
  const LaunchStream stream;
  ChainGraph one(1, 0, stream);
  one.make_ready();
  const auto timed = [&](auto launch) {
    stream.drain();
    return host_seconds(kLaunches, launch);
  };
  time_beside_floor(
      state, 1, [&] { return timed([&] { empty_kernel<<<1, 32, 0, stream.get()>>>(); }); },
      [&] { return timed([&] { one.launch(); }); });
  check(cudaGetLastError());
}

void graph_launch(benchmark::State& state) {
  const auto nodes = static_cast<int>(state.range(0));
  const auto parameter_bytes = static_cast<int>(state.range(1));
  const int batch = state.range(2) == 0 ? 1 : kBusy;
  const LaunchStream stream;
  ChainGraph graph(nodes, parameter_bytes, stream);
  graph.make_ready();
  ChainGraph one(1, 0, stream);
  one.make_ready();
  time_beside_floor(
      state, 1,
      [&] {
        stream.drain();
        if (batch > 1) graph.launch();  // the GPU is busy from the first timed launch on
        return host_seconds(batch, [&] { graph.launch(); });
      },
      [&] { return one_node_seconds(one, stream); });
  stream.drain();
  std::vector<double> replays;
  for (int i = 0; i < 11; ++i) replays.push_back(stream.gpu_seconds(4, [&] { graph.launch(); }));
  const double replay = median(replays);
  state.counters["replay_us"] = replay * 1e6;
  state.counters["replay_us_per_node"] = replay * 1e6 / nodes;
  state.counters["bytes"] = static_cast<double>(nodes) * parameter_bytes;
}

void graph_first_launch(benchmark::State& state) {
  const auto nodes = static_cast<int>(state.range(0));
  const auto parameter_bytes = static_cast<int>(state.range(1));
  const bool uploaded = state.range(2) != 0;
  const LaunchStream stream;
  ChainGraph graph(nodes, parameter_bytes, stream);
  graph.make_ready();  // its kernels are loaded
  ChainGraph one(1, 0, stream);
  one.make_ready();
  std::vector<double> instantiate, upload, second;
  time_beside_floor(
      state, 1,
      [&] {
        instantiate.push_back(host_seconds(1, [&] { graph.instantiate(); }));
        if (uploaded) {
          upload.push_back(host_seconds(1, [&] { graph.upload(); }));
          stream.drain();
        }
        const double first = host_seconds(1, [&] { graph.launch(); });
        stream.drain();
        second.push_back(host_seconds(1, [&] { graph.launch(); }));
        stream.drain();
        return first;
      },
      [&] { return one_node_seconds(one, stream); });
  state.counters["instantiate_us"] = median(instantiate) * 1e6;
  if (uploaded) state.counters["upload_us"] = median(upload) * 1e6;
  state.counters["second_us"] = median(second) * 1e6;
  state.counters["bytes"] = static_cast<double>(nodes) * parameter_bytes;
}

}  // namespace

std::string register_gpu_launch_benchmarks(bool list_only) {
  int count = 0;
  std::string gpu;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
    cudaGetLastError();
    gpu = "none: no driver or no device; host benchmarks only";
    if (!list_only) return gpu;
  } else {
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, 0));
    gpu = properties.name;
  }
  // Fixed counts: until 0.5 s of host time had passed, the queues would be drained for minutes.
  benchmark::RegisterBenchmark("kernel_launch", kernel_launch)->UseManualTime()->Iterations(300);
  auto* graphs = benchmark::RegisterBenchmark("graph_launch", graph_launch)->UseManualTime();
  graphs->ArgNames({"nodes", "param_bytes", "busy"});
  auto* first =
      benchmark::RegisterBenchmark("graph_first_launch", graph_first_launch)->UseManualTime();
  first->ArgNames({"nodes", "param_bytes", "uploaded"});
  for (const int nodes : {1, 10, 100, 500, 1000, 2000, 2900}) {
    for (const int parameter_bytes : kParameterBytes) {
      for (const int flag : {0, 1}) {
        graphs->Args({nodes, parameter_bytes, flag});
        first->Args({nodes, parameter_bytes, flag});
      }
    }
  }
  graphs->Iterations(100);
  first->Iterations(15);
  return gpu;
}

}  // namespace tpjitter
