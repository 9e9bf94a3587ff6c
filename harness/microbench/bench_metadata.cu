// bench_metadata: what one metadata rebuild costs, op by op (aten) and in one launch (fused).
//   dispatch/<path>/<shape>  host time of one rebuild, no synchronisation inside
//   gpu_cold/<path>/<shape>  GPU time of one in a graph of 20 with disjoint inputs, L2 emptied
//   gpu_warm/<path>/<shape>  the same without emptying L2
// All paths over the peers' shapes, the fused forms without gpu_warm over the engines' test matrix.
// Each GPU row times a bare gather with the same accesses in turn (floor_us, ratio_to_floor), each
// dispatch row an empty kernel's launch. Without a GPU it lists its benchmarks and exits 77 instead
// of running them.
#include <benchmark/benchmark.h>
#include <cuda_runtime.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "harness/microbench/bench_flags.h"
#include "harness/microbench/bench_gpu.h"
#include "harness/microbench/bench_metadata_inputs.h"
#include "harness/microbench/beside_floor.h"
#include "harness/microbench/manual_time.h"
#include "kernels/metadata_floor.h"
#include "kernels/metadata_fused.h"
#include "kernels/tensor_ops_cuda.h"

namespace tpjitter::bench {
namespace {

using kernels::PageColumns;
using kernels::QueryMode;

// The rows of the peers' measurements (batch, context, page, SWA, query mode).
const MetadataShape kShapes[] = {
    {1, 8192, 64, false, QueryMode::kPreset},   {1, 8192, 64, true, QueryMode::kPreset},
    {8, 32768, 64, false, QueryMode::kPreset},  {8, 32768, 64, true, QueryMode::kCumsum},
    {8, 32768, 64, true, QueryMode::kStrided},  {32, 32768, 64, false, QueryMode::kPreset},
    {32, 32768, 64, true, QueryMode::kPreset},  {64, 131072, 64, false, QueryMode::kPreset},
    {64, 131072, 64, true, QueryMode::kPreset}, {256, 32768, 16, false, QueryMode::kPreset},
    {256, 32768, 16, true, QueryMode::kPreset}, {64, 131072, 16, false, QueryMode::kPreset},
    {64, 131072, 16, true, QueryMode::kPreset},
};

// The engines' test matrix (context, page, batch), contexts of a million tokens, and a long prompt.
std::vector<MetadataShape> matrix_shapes() {
  std::vector<MetadataShape> shapes;
  for (const int context : {2048, 4096, 131072}) {
    for (const int page : {1, 32, 64, 128, 256}) {
      for (const int batch : {1, 7, 32}) {
        shapes.push_back({batch, context, page, true, QueryMode::kPreset});
      }
    }
  }
  for (const int page : {1, 16, 64}) {
    for (const int batch : {1, 8}) {
      shapes.push_back({batch, 1 << 20, page, true, QueryMode::kPreset});
    }
  }
  for (const int batch : {1, 64}) {
    shapes.push_back({batch, 51200, 64, true, QueryMode::kPreset});
  }
  return shapes;
}

enum class Path { kAten, kFusedAll, kFusedLive };
constexpr const char* kPathNames[] = {"aten", "fused_all", "fused_live"};

__global__ void empty_kernel() {}

// Keeps the GPU busy while the host enqueues what is timed behind it.
__global__ void spin_kernel(unsigned long long duration_ns) {
  unsigned long long begin, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - begin < duration_ns);
}

// Reads a buffer of several times L2; the store never happens, the compiler cannot know.
__global__ void read_all_kernel(const int4* data, std::int64_t count, int* never) {
  int sum = 0;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += std::int64_t{gridDim.x} * blockDim.x) {
    const int4 value = data[i];
    sum += value.x ^ value.y ^ value.z ^ value.w;
  }
  if (sum == 0x12345678) *never = sum;
}

void* allocate_device(void*, std::size_t bytes) {
  void* block = nullptr;
  return cudaMalloc(&block, bytes) == cudaSuccess ? block : nullptr;
}

void free_device(void*, void* block) { cudaFree(block); }

// A graph of kRebuilds rebuilds, one for each input set.
class RebuildGraph {
 public:
  RebuildGraph(cudaStream_t stream, const std::function<void(int)>& enqueue) {
    cudaGraph_t graph = nullptr;
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "begin capture");
    for (int set = 0; set < kRebuilds; ++set) enqueue(set);
    check(cudaStreamEndCapture(stream, &graph), "end capture");
    check(cudaGraphInstantiate(&executable_, graph, 0), "instantiate");
    check(cudaGraphDestroy(graph), "destroy graph");
  }
  ~RebuildGraph() { cudaGraphExecDestroy(executable_); }
  RebuildGraph(const RebuildGraph&) = delete;
  RebuildGraph& operator=(const RebuildGraph&) = delete;
  void launch(cudaStream_t stream) const {
    check(cudaGraphLaunch(executable_, stream), "graph launch");
  }

 private:
  cudaGraphExec_t executable_ = nullptr;
};

// Everything on the device that the benchmarks share; made on first use, so that listing needs
// none.
class Bench {
 public:
  Bench() {
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream");
    check(cudaEventCreate(&begin_), "event");
    check(cudaEventCreate(&end_), "event");
    check(cudaMallocHost(&pinned_, sizeof(std::int64_t)), "pinned memory");
    int l2_bytes = 0;
    check(cudaDeviceGetAttribute(&l2_bytes, cudaDevAttrL2CacheSize, 0), "L2 size");
    flush_count_ = std::int64_t{4} * l2_bytes / static_cast<std::int64_t>(sizeof(int4));
    check(cudaMalloc(&flush_, static_cast<std::size_t>(flush_count_) * sizeof(int4)), "L2 buffer");
    check(cudaMemset(flush_, 0, static_cast<std::size_t>(flush_count_) * sizeof(int4)), "memset");
    allocator_ = std::make_unique<kernels::TensorAllocator>(
        kernels::BlockSource{.allocate = allocate_device, .free = free_device, .context = nullptr});
    ops_ = std::make_unique<kernels::CudaTensorOps>(*allocator_, stream_, pinned_);
  }

  MetadataInputs& inputs(const MetadataShape& shape) {
    if (inputs_ == nullptr || inputs_->shape().name() != shape.name()) {
      inputs_.reset();
      inputs_ = std::make_unique<MetadataInputs>(shape);
    }
    return *inputs_;
  }

  std::function<void(int)> rebuild(const MetadataShape& shape, Path path) {
    MetadataInputs& in = inputs(shape);
    if (path == Path::kAten) {
      return [this, &in](int set) {
        check(rebuild_metadata_aten(*ops_, in.phase(), in.aten_args(set)), "aten rebuild");
      };
    }
    const PageColumns columns = columns_of(path);
    std::vector<kernels::FusedMetadataLaunch> launches(kRebuilds);
    for (int set = 0; set < kRebuilds; ++set) {
      check(prepare_fused_metadata(in.args(set, columns), &launches[set]), "prepare");
    }
    return [this, launches](int set) {
      check(launch_fused_metadata(launches[set], stream_), "fused launch");
    };
  }

  static PageColumns columns_of(Path path) {
    return path == Path::kFusedLive ? PageColumns::kLive : PageColumns::kAll;
  }

  // Seconds a rebuild.
  double time_graph(const RebuildGraph& graph, bool cold) {
    if (cold) {
      read_all_kernel<<<1056, 256, 0, stream_>>>(flush_, flush_count_, static_cast<int*>(pinned_));
    }
    spin_kernel<<<1, 1, 0, stream_>>>(20000);
    check(cudaEventRecord(begin_, stream_), "event");
    graph.launch(stream_);
    check(cudaEventRecord(end_, stream_), "event");
    sync();
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin_, end_), "elapsed time");
    return static_cast<double>(milliseconds) * 1e-3 / kRebuilds;
  }

  void sync() { check(cudaStreamSynchronize(stream_), "synchronise"); }
  cudaStream_t stream() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  void* pinned_ = nullptr;
  int4* flush_ = nullptr;
  std::int64_t flush_count_ = 0;
  std::unique_ptr<kernels::TensorAllocator> allocator_;
  std::unique_ptr<kernels::CudaTensorOps> ops_;
  std::unique_ptr<MetadataInputs> inputs_;
};

void bench_gpu(benchmark::State& state, Bench& bench, const MetadataShape& shape, Path path,
               bool cold) {
  MetadataInputs& inputs = bench.inputs(shape);
  const auto rebuild = bench.rebuild(shape, path);
  rebuild(0);  // warms allocator and kernels before capture
  bench.sync();
  const RebuildGraph graph(bench.stream(), rebuild);
  const PageColumns columns = Bench::columns_of(path);
  const RebuildGraph floor(bench.stream(), [&](int set) {
    check(launch_metadata_floor(inputs.args(set, columns), bench.stream()), "floor launch");
  });
  const double seconds = time_beside_floor(
      state, 3, [&] { return bench.time_graph(graph, cold); },
      [&] { return bench.time_graph(floor, cold); });
  count_bytes(state, inputs.bytes_per_rebuild(columns), seconds);
  rebuild(0);  // the floor has overwritten what is summed
  bench.sync();
  state.counters["checksum"] = inputs.checksum(0);
}

void bench_dispatch(benchmark::State& state, Bench& bench, const MetadataShape& shape, Path path) {
  const auto rebuild = bench.rebuild(shape, path);
  const auto timed = [&](const std::function<void(int)>& enqueue) {
    const auto begin = std::chrono::steady_clock::now();
    for (int set = 0; set < kRebuilds; ++set) enqueue(set);
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
    bench.sync();  // outside the time: the queue starts empty
    return elapsed.count() / kRebuilds;
  };
  const auto bare = [&](int) { empty_kernel<<<1, 32, 0, bench.stream()>>>(); };
  timed(rebuild);
  timed(bare);
  std::vector<double> own_s, bare_s;
  for (auto _ : state) {
    own_s.push_back(timed(rebuild));
    state.SetIterationTime(own_s.back());
    bare_s.push_back(timed(bare));
  }
  state.counters["us"] = median(own_s) * 1e6;
  state.counters["floor_us"] = median(bare_s) * 1e6;  // an empty kernel's launch
  state.counters["ratio_to_floor"] = median(own_s) / median(bare_s);
  state.counters["bytes"] = bench.inputs(shape).bytes_per_rebuild(Bench::columns_of(path));
}

// Fixed iterations: each is 20 rebuilds, and what is not timed (emptying L2, waiting) costs far
// more than what is, which would mislead the library's own choice.
constexpr int kIterations = 100;

void register_benchmarks(std::unique_ptr<Bench>& bench) {
  const auto add = [&bench](const std::string& name, auto run) {
    register_manual_time(name, kIterations, [&bench, run](benchmark::State& state) {
      if (bench == nullptr) bench = std::make_unique<Bench>();
      run(state, *bench);
    });
  };
  const auto add_shape = [&](const MetadataShape& shape, Path path, bool also_warm) {
    const std::string tail =
        std::string("/") + kPathNames[static_cast<int>(path)] + "/" + shape.name();
    add("dispatch" + tail, [shape, path](benchmark::State& state, Bench& b) {
      bench_dispatch(state, b, shape, path);
    });
    for (const bool cold : {true, false}) {
      if (!cold && !also_warm) continue;
      add((cold ? "gpu_cold" : "gpu_warm") + tail,
          [shape, path, cold](benchmark::State& state, Bench& b) {
            bench_gpu(state, b, shape, path, cold);
          });
    }
  };
  for (const MetadataShape& shape : kShapes) {
    for (const Path path : {Path::kAten, Path::kFusedAll, Path::kFusedLive}) {
      add_shape(shape, path, true);
    }
  }
  for (const MetadataShape& shape : matrix_shapes()) {
    for (const Path path : {Path::kFusedAll, Path::kFusedLive}) add_shape(shape, path, false);
  }
}

}  // namespace
}  // namespace tpjitter::bench

int main(int argc, char** argv) {
  using namespace tpjitter::bench;
  const bool list_only = tpjitter::asks_for_list(argc, argv);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  if (tpjitter::count_gpus("bench_metadata") == 0) {
    if (!list_only) return 77;
  } else if (!list_only) {
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, 0), "device properties");
    benchmark::AddCustomContext("gpu", properties.name);
    benchmark::AddCustomContext("l2_bytes", std::to_string(properties.l2CacheSize));
  }
  std::unique_ptr<Bench> bench;
  register_benchmarks(bench);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
