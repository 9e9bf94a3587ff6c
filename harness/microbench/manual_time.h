// A row of a bench_* program that times itself: manual time in us, a fixed number of iterations,
// and what is thrown becomes the row's error.
#pragma once

#include <benchmark/benchmark.h>

#include <exception>
#include <string>

namespace tpjitter {

// `run` takes the benchmark::State&.
template <class Run>
void register_manual_time(const std::string& name, int iterations, Run run) {
  benchmark::RegisterBenchmark(name.c_str(),
                               [run](benchmark::State& state) {
                                 try {
                                   run(state);
                                 } catch (const std::exception& error) {
                                   state.SkipWithError(error.what());
                                 }
                               })
      ->UseManualTime()
      ->Unit(benchmark::kMicrosecond)
      ->Iterations(iterations);
}

}  // namespace tpjitter
