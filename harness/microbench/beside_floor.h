// What a bench_* program makes of its samples: medians, and an operation's beside those of its floor,
// taken in turn, so that both see the same clocks and the same machine.
#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <vector>

namespace tpjitter {

inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// `own()` and `floor()` return seconds of one sample. The time that the library prints is the mean;
// the counters are medians. Returns own's median.
template <class Own, class Floor>
double time_beside_floor(benchmark::State& state, int warm_ups, Own own, Floor floor) {
  for (int i = 0; i < warm_ups; ++i) {
    own();
    floor();
  }
  std::vector<double> own_s, floor_s;
  for (auto _ : state) {
    own_s.push_back(own());
    state.SetIterationTime(own_s.back());
    floor_s.push_back(floor());
  }
  const double own_seconds = median(own_s), floor_seconds = median(floor_s);
  state.counters["us"] = own_seconds * 1e6;
  state.counters["floor_us"] = floor_seconds * 1e6;
  state.counters["ratio_to_floor"] = own_seconds / floor_seconds;
  return own_seconds;
}

inline void count_bytes(benchmark::State& state, double bytes, double seconds) {
  state.counters["bytes"] = bytes;
  state.counters["GB_per_s"] = bytes / seconds * 1e-9;
}

}  // namespace tpjitter
