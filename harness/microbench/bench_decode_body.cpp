// bench_decode_body: GPU time of the decode body in a captured graph, one rank, no load.
//   body/layers:L/nodes:N/batch:B[/pdl]   a whole forward: L layers of N nodes each, head and
//       accept; pdl: launched programmatically, as body.pdl
//   attention|load|head|accept/batch:B    one kernel of it, in a graph of 100
//   metadata+attention/batch:B[/pdl]      the fused rebuild and its first consumer, 100 pairs
// Floor: as many empty nodes in a graph, launched the same way and timed in turn; medians over the
// replays. Without a GPU it lists its benchmarks and exits 77 instead of running them.
#include <benchmark/benchmark.h>
#include <cuda_runtime_api.h>

#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "harness/cuda/cuda_environment.h"
#include "harness/microbench/bench_flags.h"
#include "harness/microbench/bench_gpu.h"
#include "harness/microbench/bench_metadata_inputs.h"
#include "harness/microbench/beside_floor.h"
#include "harness/microbench/graph_timer.h"
#include "harness/microbench/manual_time.h"
#include "kernels/all_reduce.h"
#include "kernels/decode_body.h"
#include "kernels/metadata_fused.h"

namespace tpjitter::bench {
namespace {

constexpr int kReplays = 100;
constexpr int kChain = 100;  // of one kernel in a graph
constexpr int kNodesOfALayer = 4;
constexpr std::int64_t kHidden = 2880;
constexpr std::int64_t kKvSlots = 1 << 22;
constexpr int kContextTokens = 32768;
constexpr int kPageSize = 64;

// Tables of one batch, rebuilt once, and what the body's kernels take besides.
class Body {
 public:
  Body(int batch, int layers, bool pdl, GraphTimer& timer)
      : inputs_({batch, kContextTokens, kPageSize, true, kernels::QueryMode::kStrided}) {
    args_.metadata = inputs_.args(0, kernels::PageColumns::kAll);
    metadata(timer.stream());
    timer.sync();
    const std::int64_t elements = batch * kHidden;
    args_.shape = {layers, 1, elements, true};
    arena_.max_bytes = elements * 2;
    memory_ = zeroed<std::byte>(arena_.bytes());
    reduced_ = zeroed<std::byte>(static_cast<std::size_t>(elements) * 2);
    args_.state = state_.data();
    args_.kv = kv_.data();
    args_.swa_kv = swa_kv_.data();
    args_.kv_slots = args_.swa_kv_slots = kKvSlots;
    args_.reduced = reduced_.data();
    for (const int parity : {0, 1}) args_.inputs[parity] = memory_.data() + arena_.input(parity);
    args_.pdl = pdl;
    accept_.state = state_.data();
    accept_.seq_lens = seq_lens_.data();
    accept_.result = result_.data();
    accept_.live_rows = batch;
    accept_.pdl = args_.pdl;
  }

  void metadata(cudaStream_t s) { check_cuda(kernels::launch_fused_metadata(args_.metadata, s)); }
  double metadata_bytes() const { return inputs_.bytes_per_rebuild(kernels::PageColumns::kAll); }
  void attention(int layer, cudaStream_t s) {
    check_cuda(kernels::launch_attention(args_, layer, s));
  }
  void load(int layer, cudaStream_t s) { check_cuda(kernels::launch_load(args_, layer, s)); }
  void head(cudaStream_t s) { check_cuda(kernels::launch_head(args_, s)); }
  void accept(cudaStream_t s) { check_cuda(kernels::launch_accept(accept_, s)); }
  void all_reduce(int ordinal, cudaStream_t s) {
    kernels::AllReduceArgs args;
    args.arenas[0] = memory_.data();
    args.arena = arena_;
    args.output = reduced_.data();
    args.bytes = arena_.max_bytes;
    args.ordinal = ordinal;
    args.pdl = args_.pdl;
    check_cuda(kernels::launch_one_shot_pull(args, s));
  }
  void forward(int nodes, cudaStream_t s) {
    for (int layer = 0; layer < args_.shape.layers; ++layer) {
      attention(layer, s);
      all_reduce(2 * layer, s);
      load(layer, s);
      all_reduce(2 * layer + 1, s);
      for (int node = kNodesOfALayer; node < nodes; ++node) {
        check_cuda(kernels::launch_empty_node(s, args_.pdl));
      }
    }
    head(s);
    accept(s);
  }
  // Bytes that each kernel moves: inputs read and written, without what the caches save.
  double all_reduce_bytes() const { return static_cast<double>(arena_.max_bytes); }
  double table_bytes() const {  // of a layer, one of both page tables
    return inputs_.live_pages(0) * 4 + static_cast<double>(args_.metadata.batch_size) * (4 + 4 + 8);
  }

 private:
  template <class T>
  static DeviceBuffer<T> zeroed(std::size_t size) {
    DeviceBuffer<T> buffer(size);
    check_cuda(cudaMemset(buffer.data(), 0, buffer.size_bytes()));
    return buffer;
  }

  MetadataInputs inputs_;
  kernels::AllReduceArena arena_;
  DeviceBuffer<std::byte> memory_, reduced_;
  DeviceBuffer<std::int32_t> kv_ = zeroed<std::int32_t>(kKvSlots);
  DeviceBuffer<std::int32_t> swa_kv_ = zeroed<std::int32_t>(kKvSlots);
  DeviceBuffer<std::int32_t> seq_lens_ = zeroed<std::int32_t>(1024);
  DeviceBuffer<kernels::DecodeBodyState> state_ = zeroed<kernels::DecodeBodyState>(1);
  DeviceBuffer<kernels::AcceptResult> result_ = zeroed<kernels::AcceptResult>(1);
  kernels::DecodeBodyArgs args_;
  kernels::AcceptArgs accept_;
};

// `per`: what the time is divided by, 1 or the length of a chain.
void time_beside_nodes(benchmark::State& state, GraphTimer& timer, const GraphExec& own,
                       int floor_nodes, bool pdl, double per, double bytes) {
  const GraphExec floor = timer.capture([&] {
    for (int n = 0; n < floor_nodes; ++n) {
      check_cuda(kernels::launch_empty_node(timer.stream(), pdl));
    }
  });
  const double seconds = time_beside_floor(
      state, 3, [&] { return timer.seconds(own) / per; },
      [&] { return timer.seconds(floor) / per; });
  count_bytes(state, bytes, seconds);
}

void bench_body(benchmark::State& state, GraphTimer& timer, int layers, int nodes, int batch,
                bool pdl) {
  Body body(batch, layers, pdl, timer);
  const GraphExec graph = timer.capture([&] { body.forward(nodes, timer.stream()); });
  // A layer: its tables; the values that two kernels fold and write; two all-reduces of one rank.
  const double bytes = layers * (body.table_bytes() + 8 * body.all_reduce_bytes());
  time_beside_nodes(state, timer, graph, layers * nodes + 2, pdl, 1, bytes);
  state.counters["nodes"] = layers * nodes + 2;
}

enum class Kernel { kAttention, kLoad, kHead, kAccept, kMetadataAttention };
constexpr const char* kKernelNames[] = {"attention", "load", "head", "accept",
                                        "metadata+attention"};

void bench_kernel(benchmark::State& state, GraphTimer& timer, Kernel kernel, int batch, bool pdl) {
  Body body(batch, 1, pdl, timer);
  double bytes = 0;
  const GraphExec graph = timer.capture([&] {
    for (int n = 0; n < kChain; ++n) {
      switch (kernel) {
        case Kernel::kAttention:
          body.attention(0, timer.stream());
          bytes = body.table_bytes() + body.all_reduce_bytes();
          break;
        case Kernel::kLoad:
          body.load(0, timer.stream());
          bytes = 2 * body.all_reduce_bytes();
          break;
        case Kernel::kHead:
          body.head(timer.stream());
          bytes = body.all_reduce_bytes();
          break;
        case Kernel::kAccept:
          body.accept(timer.stream());
          bytes = 8.0 * batch;
          break;
        case Kernel::kMetadataAttention:
          body.metadata(timer.stream());
          body.attention(0, timer.stream());
          bytes = body.metadata_bytes() + body.table_bytes() + body.all_reduce_bytes();
      }
    }
  });
  const int nodes = kernel == Kernel::kMetadataAttention ? 2 * kChain : kChain;
  time_beside_nodes(state, timer, graph, nodes, pdl, kChain, bytes);
}

void register_benchmarks(std::unique_ptr<GraphTimer>& timer) {
  const auto add = [&timer](const std::string& name, auto run) {
    register_manual_time(name, kReplays, [&timer, run](benchmark::State& state) {
      if (timer == nullptr) timer = std::make_unique<GraphTimer>();
      run(state, *timer);
    });
  };
  const auto add_kernel = [&](Kernel kernel, int batch, bool pdl) {
    add(std::string(kKernelNames[static_cast<int>(kernel)]) + "/batch:" + std::to_string(batch) +
            (pdl ? "/pdl" : ""),
        [=](benchmark::State& state, GraphTimer& t) {
          bench_kernel(state, t, kernel, batch, pdl);
        });
  };
  for (const int batch : {1, 8, 32, 64}) {
    for (const Kernel kernel :
         {Kernel::kAttention, Kernel::kLoad, Kernel::kHead, Kernel::kAccept}) {
      add_kernel(kernel, batch, false);
    }
    for (const bool pdl : {false, true}) add_kernel(Kernel::kMetadataAttention, batch, pdl);
  }
  for (const int layers : {1, 12, 36, 80}) {
    for (const int nodes : {4, 8, 16}) {
      for (const int batch : {1, 32}) {
        for (const bool pdl : {false, true}) {
          add("body/layers:" + std::to_string(layers) + "/nodes:" + std::to_string(nodes) +
                  "/batch:" + std::to_string(batch) + (pdl ? "/pdl" : ""),
              [=](benchmark::State& state, GraphTimer& t) {
                bench_body(state, t, layers, nodes, batch, pdl);
              });
        }
      }
    }
  }
}

int run(int argc, char** argv) {
  const bool list_only = asks_for_list(argc, argv);
  load_modules_eagerly();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  if (count_gpus("bench_decode_body") == 0) {
    if (!list_only) return 77;
  } else if (!list_only) {
    benchmark::AddCustomContext("gpu", gpu_name(0));
  }
  std::unique_ptr<GraphTimer> timer;
  register_benchmarks(timer);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

}  // namespace
}  // namespace tpjitter::bench

int main(int argc, char** argv) {
  try {
    return tpjitter::bench::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_decode_body: %s\n", error.what());
    return 2;
  }
}
