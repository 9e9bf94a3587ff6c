// What launching and measuring cost the host: a stamp, a phase row, NVTX ranges, and on a GPU a
// kernel launch and a graph launch against its node count. Means only: Google Benchmark keeps no
// single samples, so jitter is `tpjitter run`'s to measure.
#include "harness/microbench/bench_launch.h"

#include <benchmark/benchmark.h>

#include <memory>
#include <vector>

#include "harness/step.h"

namespace {

using namespace tpjitter;

void host_stamp(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(now_ns());
}

struct NullDevice {
  void wait_accept(std::int64_t) {}
  void check_device(std::int64_t) {}
  void copy_inputs(int) {}
  void rebuild_metadata(int) {}
  void launch_graph(int) {}
  void stage_inputs(std::int64_t) {}
};

// One row of run_step: three stamps, three stage words, three NVTX ranges and the row's fields. Many
// rows a step, so that what a step costs once (usage call, coupling stamps) drops out.
void phase_row(benchmark::State& state) {
  constexpr int kRows = 64;
  const auto slot = std::make_unique<RankSlot>();
  StepContext context;
  context.slot = slot.get();
  context.plan.phases.resize(kRows);
  NullDevice device;
  std::vector<PhaseRow> rows(kRows);
  std::int64_t step = 0;
  for (auto _ : state) {
    const std::int64_t begin = now_ns();
    run_step(device, context, step++, std::span(rows));
    state.SetIterationTime(static_cast<double>(now_ns() - begin) * 1e-9 / kRows);
    benchmark::DoNotOptimize(rows.data());
  }
}

// Once a step, not once a row.
void step_usage_read(benchmark::State& state) {
  ThreadUsage usage;
  PhaseRow row{};
  for (auto _ : state) {
    usage.read_into(row);
    benchmark::DoNotOptimize(row);
  }
}

void nvtx_range(benchmark::State& state) {
  for (auto _ : state) {
    const NvtxRange range("bench");
    benchmark::ClobberMemory();
  }
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::RegisterBenchmark("host_stamp", host_stamp);
  benchmark::RegisterBenchmark("phase_row", phase_row)->UseManualTime();
  benchmark::RegisterBenchmark("step_usage_read", step_usage_read);
  benchmark::RegisterBenchmark("nvtx_range", nvtx_range);
  benchmark::AddCustomContext("gpu", register_gpu_launch_benchmarks());
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
