#include "harness/microbench/bench_launch.h"

namespace tpjitter {

std::string register_gpu_launch_benchmarks(bool) { return "none: built without CUDA"; }

}  // namespace tpjitter
