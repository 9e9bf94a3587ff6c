// What the halves of bench_launch share: host time of an operation beside that of its floor, in turn;
// and the GPU half's entry.
#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "harness/clock.h"

namespace tpjitter {

inline double median_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Host seconds of one of `batch` calls in a row.
template <class Call>
double host_seconds(int batch, Call call) {
  const std::int64_t begin = now_ns();
  for (int i = 0; i < batch; ++i) call();
  return static_cast<double>(now_ns() - begin) * 1e-9 / batch;
}

// Each sample is the mean of a batch: `own()` and `floor()` return one of theirs. The time that the
// library prints is the mean; the counters are medians.
template <class Own, class Floor>
void time_beside_floor(benchmark::State& state, Own own, Floor floor) {
  own();
  floor();
  std::vector<double> own_s, floor_s;
  for (auto _ : state) {
    own_s.push_back(own());
    state.SetIterationTime(own_s.back());
    floor_s.push_back(floor());
  }
  const double floor_seconds = median_of(floor_s);
  state.counters["us"] = median_of(own_s) * 1e6;
  state.counters["floor_us"] = floor_seconds * 1e6;
  state.counters["ratio_to_floor"] = median_of(own_s) / floor_seconds;
}

// Registers kernel_launch, graph_launch and graph_first_launch; returns the GPU's name, or why there
// are none. `list_only`: without a GPU too.
std::string register_gpu_launch_benchmarks(bool list_only);

}  // namespace tpjitter
