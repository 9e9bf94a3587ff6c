// The table of backends. Add one: a class over Backend and a row here.
#include <fmt/format.h>

#include "harness/backend.h"
#include "harness/contract/error.h"
#include "harness/host/host_backend.h"
#if TPJITTER_HAS_CUDA
#include "harness/cuda/cuda_backend.h"
#endif

namespace tpjitter {

std::span<const BackendEntry> backends() {
  static constexpr BackendEntry kBackends[] = {
#if TPJITTER_HAS_CUDA
    {"cuda", "one NVIDIA GPU a rank", cuda_capacity, make_cuda_backend, cuda_model,
     cuda_skip_reason, cuda_numa_node, describe_cuda},
#endif
    {"host", "real rank processes over a modelled device; needs no GPU", host_capacity,
     make_host_backend, host_model, host_skip_reason, host_numa_node, describe_host},
  };
  return kBackends;
}

const BackendEntry& find_backend(const std::string& name) {
  std::string why;
  for (const BackendEntry& entry : backends()) {
    if (name == entry.name) return entry;
    if (name == "auto" && entry.capacity(&why) > 0) return entry;
  }
  if (name == "cuda") {
    throw ConfigError(
        "backend `cuda` is not in this build: configure it with -DTPJITTER_CUDA=ON on a machine "
        "with "
        "nvcc, or use --backend host");
  }
  throw ConfigError(fmt::format("--backend {}: no such backend; allowed: auto, cuda, host", name));
}

}  // namespace tpjitter
