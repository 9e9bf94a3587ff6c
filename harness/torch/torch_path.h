// Whether this build has the `torch` path, and how to get it.
#pragma once

#include <string>

namespace tpjitter {

#if TPJITTER_HAS_TORCH
inline constexpr bool kHasTorchPath = true;
#else
inline constexpr bool kHasTorchPath = false;
#endif

inline constexpr const char* kHowToGetTorchPath =
    "configure with -DTPJITTER_TORCH=ON and, for a GPU, "
    "-DTPJITTER_TORCH_PREFIX=$(python3 -c 'import torch; print(torch.utils.cmake_prefix_path)')";

// Why a case on that path cannot run on any backend of this build; empty: it can on a GPU.
inline std::string torch_path_gap() {
  if (kHasTorchPath) return {};
  return std::string("step.path = \"torch\" is not in this build: ") + kHowToGetTorchPath;
}

}  // namespace tpjitter
