// What the halves of bench_launch share: host time of an operation, and the GPU half's entry.
#pragma once

#include <cstdint>
#include <string>

#include "harness/clock.h"
#include "harness/microbench/beside_floor.h"

namespace tpjitter {

// Host seconds of one of `batch` calls in a row.
template <class Call>
double host_seconds(int batch, Call call) {
  const std::int64_t begin = now_ns();
  for (int i = 0; i < batch; ++i) call();
  return static_cast<double>(now_ns() - begin) * 1e-9 / batch;
}

// Registers kernel_launch, graph_launch and graph_first_launch; returns the GPU's name, or why there
// are none. `list_only`: without a GPU too.
std::string register_gpu_launch_benchmarks(bool list_only);

}  // namespace tpjitter
