// The GPU half of bench_launch: registered where the build has CUDA and the machine a GPU.
#pragma once

#include <string>

namespace tpjitter {

// Registers kernel_launch and graph_launch/nodes; returns the GPU's name, or why there are none.
std::string register_gpu_launch_benchmarks();

}  // namespace tpjitter
