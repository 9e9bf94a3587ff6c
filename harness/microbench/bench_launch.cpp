// What launching and measuring cost the host: a stamp, a phase row, NVTX ranges, and on a GPU a
// kernel launch and graph launches (bench_launch_gpu.cu). Each beside the floor of its kind, in turn:
// the least that the machine could do in its place. No jitter: that is `tpjitter run`'s to measure.
#include "harness/microbench/bench_launch.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <memory>
#include <vector>

#include "harness/microbench/bench_flags.h"
#include "harness/overhead.h"
#include "harness/step.h"

namespace {

using namespace tpjitter;

constexpr int kBatch = 1000;  // of operations that cost nanoseconds

// Floor: the counter behind the clock, without its scale and offset.
void host_stamp(benchmark::State& state) {
  time_beside_floor(
      state, 1, [] { return host_seconds(kBatch, [] { benchmark::DoNotOptimize(now_ns()); }); },
      [] {
        return host_seconds(kBatch, [] {
#if defined(__x86_64__)
          benchmark::DoNotOptimize(__builtin_ia32_rdtsc());
#elif defined(__aarch64__)
          std::uint64_t ticks;
          asm volatile("mrs %0, cntvct_el0" : "=r"(ticks));
          benchmark::DoNotOptimize(ticks);
#endif
        });
      });
}

// One row of run_step: three stamps, three stage words, three NVTX ranges and the row's fields. Many
// rows a step, so that what a step costs once (usage call, coupling stamps) drops out. Floor: its
// stamps alone.
void phase_row(benchmark::State& state) {
  constexpr int kRows = 64;
  const auto slot = std::make_unique<RankSlot>();
  StepContext context;
  context.slot = slot.get();
  context.plan.phases.resize(kRows);
  NullDevice device;
  std::vector<PhaseRow> rows(kRows);
  std::int64_t step = 0;
  time_beside_floor(
      state, 1,
      [&] {
        const double seconds =
            host_seconds(1, [&] { run_step(device, context, step++, std::span(rows)); });
        benchmark::DoNotOptimize(rows.data());
        return seconds / kRows;
      },
      [] { return 3 * host_seconds(3 * kRows, [] { benchmark::DoNotOptimize(now_ns()); }); });
}

// Once a step, not once a row. Floor: a call of the kernel that does nothing.
void step_usage_read(benchmark::State& state) {
  ThreadUsage usage;
  PhaseRow row{};
  time_beside_floor(
      state, 1,
      [&] {
        return host_seconds(kBatch, [&] {
          usage.read_into(row);
          benchmark::DoNotOptimize(row);
        });
      },
      [] { return host_seconds(kBatch, [] { syscall(SYS_getppid); }); });
}

// Floor: the loop without the range.
void nvtx_range(benchmark::State& state) {
  time_beside_floor(
      state, 1,
      [] {
        return host_seconds(kBatch, [] {
          const NvtxRange range("bench");
          benchmark::ClobberMemory();
        });
      },
      [] { return host_seconds(kBatch, [] { benchmark::ClobberMemory(); }); });
}

}  // namespace

int main(int argc, char** argv) {
  // Fixed counts: a sample is a batch, of which the library would take millions.
  const auto add = [](const char* name, void (*run)(benchmark::State&)) {
    benchmark::RegisterBenchmark(name, run)->UseManualTime()->Iterations(500);
  };
  add("host_stamp", host_stamp);
  add("phase_row", phase_row);
  add("step_usage_read", step_usage_read);
  add("nvtx_range", nvtx_range);
  const std::string gpu = register_gpu_launch_benchmarks(asks_for_list(argc, argv));
  benchmark::AddCustomContext("gpu", gpu);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
