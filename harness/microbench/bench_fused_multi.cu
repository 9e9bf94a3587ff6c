// bench_fused_multi: what one launch for the draft passes and target-verify of a step saves against
// a launch of the fused kernel for each.
//   dispatch/<path>/<shape>  host time of a step's rebuilds, no synchronisation inside
//   graph/<path>/<shape>     GPU time of them in a graph of 20 steps with disjoint inputs, warm L2
// Each row times the other path in turn (other_us, saved_us). The phases of a step read the same
// requests and write tables of their own.
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
#include "kernels/metadata_fused_multi.h"

namespace tpjitter::bench {
namespace {

using kernels::DecodeMetadataArgs;
using kernels::QueryMode;

constexpr int kPhases = 3;  // of a step at 3/1/4: two draft passes and target-verify
constexpr int kIterations = 200;

const MetadataShape kShapes[] = {
    {1, 8192, 64, true, QueryMode::kPreset},
    {8, 32768, 64, true, QueryMode::kPreset},
    {32, 32768, 64, true, QueryMode::kPreset},
    {64, 131072, 64, true, QueryMode::kPreset},
};

// A shape's rebuilds by step and phase, ready to launch on both paths.
class Steps {
 public:
  explicit Steps(const MetadataShape& shape) {
    for (auto& inputs : inputs_) inputs = std::make_unique<MetadataInputs>(shape);
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream");
    for (cudaEvent_t* event : {&begin_, &end_}) check(cudaEventCreate(event), "event");
    for (int set = 0; set < kRebuilds; ++set) {
      std::vector<DecodeMetadataArgs> phases;
      for (int i = 0; i < kPhases; ++i) phases.push_back(args(set, i));
      check(prepare_fused_multi(phases, &multi_[set]), "prepare");
      for (int i = 0; i < kPhases; ++i) {
        check(prepare_fused_metadata(phases[i], &single_[set][i]), "prepare");
      }
    }
  }
  ~Steps() {
    cudaStreamDestroy(stream_);
    for (cudaEvent_t event : {begin_, end_}) cudaEventDestroy(event);
  }
  Steps(const Steps&) = delete;
  Steps& operator=(const Steps&) = delete;

  void enqueue(int set, bool multi) {
    if (multi) return check(launch_fused_multi(multi_[set], stream_), "launch");
    for (const auto& launch : single_[set]) check(launch_fused_metadata(launch, stream_), "launch");
  }

  // Seconds a step on the host; the queue is empty before and after.
  double dispatch(bool multi) {
    const auto begin = std::chrono::steady_clock::now();
    for (int set = 0; set < kRebuilds; ++set) enqueue(set, multi);
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
    check(cudaStreamSynchronize(stream_), "synchronise");
    return elapsed.count() / kRebuilds;
  }

  cudaGraphExec_t capture(bool multi) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "begin capture");
    for (int set = 0; set < kRebuilds; ++set) enqueue(set, multi);
    check(cudaStreamEndCapture(stream_, &graph), "end capture");
    check(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
    check(cudaGraphDestroy(graph), "destroy graph");
    return executable;
  }

  // Seconds a step on the GPU.
  double replay(cudaGraphExec_t graph) {
    check(cudaEventRecord(begin_, stream_), "event");
    check(cudaGraphLaunch(graph, stream_), "graph launch");
    check(cudaEventRecord(end_, stream_), "event");
    check(cudaStreamSynchronize(stream_), "synchronise");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin_, end_), "elapsed time");
    return static_cast<double>(milliseconds) * 1e-3 / kRebuilds;
  }

 private:
  // Phase i reads what the first reads and writes outputs of its own.
  DecodeMetadataArgs args(int set, int phase) const {
    constexpr std::int32_t kOffsets[kPhases] = {1, 2, 4};
    DecodeMetadataArgs args = inputs_[0]->args(set, kernels::PageColumns::kAll);
    const DecodeMetadataArgs own = inputs_[phase]->args(set, kernels::PageColumns::kAll);
    args.cache_seqlens = own.cache_seqlens;
    args.cu_seqlens_k = own.cu_seqlens_k;
    args.page_table = own.page_table;
    args.swa_page_table = own.swa_page_table;
    args.swa_out_cache_loc = own.swa_out_cache_loc;
    args.seqlen_offset = kOffsets[phase];
    if (phase + 1 == kPhases) return args;
    args.full_to_swa = nullptr;  // a draft model without a window
    args.swa_page_table = nullptr;
    args.swa_out_cache_loc = nullptr;
    return args;
  }

  std::unique_ptr<MetadataInputs> inputs_[kPhases];
  kernels::FusedMultiLaunch multi_[kRebuilds];
  kernels::FusedMetadataLaunch single_[kRebuilds][kPhases];
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

void run(benchmark::State& state, const MetadataShape& shape, bool multi, bool in_graph) {
  Steps steps(shape);
  cudaGraphExec_t graphs[2] = {};
  for (const bool path : {false, true}) {
    steps.dispatch(path);
    if (in_graph) graphs[path] = steps.capture(path);
    if (in_graph) steps.replay(graphs[path]);
  }
  const auto time = [&](bool path) {
    return in_graph ? steps.replay(graphs[path]) : steps.dispatch(path);
  };
  std::vector<double> own_s, other_s;
  for (auto _ : state) {
    own_s.push_back(time(multi));
    state.SetIterationTime(own_s.back());
    other_s.push_back(time(!multi));
  }
  state.counters["us"] = median(own_s) * 1e6;
  state.counters["other_us"] = median(other_s) * 1e6;
  state.counters["saved_us"] = (median(other_s) - median(own_s)) * 1e6;
  for (cudaGraphExec_t graph : graphs) {
    if (graph != nullptr) check(cudaGraphExecDestroy(graph), "destroy");
  }
}

void register_benchmarks() {
  for (const MetadataShape& shape : kShapes) {
    for (const bool in_graph : {false, true}) {
      for (const bool multi : {false, true}) {
        const std::string name = std::string(in_graph ? "graph/" : "dispatch/") +
                                 (multi ? "fused_multi/" : "fused/") + shape.name();
        register_manual_time(name, kIterations, [shape, multi, in_graph](benchmark::State& state) {
          run(state, shape, multi, in_graph);
        });
      }
    }
  }
}

}  // namespace
}  // namespace tpjitter::bench

int main(int argc, char** argv) {
  const bool list_only = tpjitter::asks_for_list(argc, argv);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  if (!list_only && tpjitter::count_gpus("bench_fused_multi") == 0) return 77;
  tpjitter::bench::register_benchmarks();
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
