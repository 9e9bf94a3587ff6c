// Whether this build has the `torch` path, and how to get it.
#pragma once

namespace tpjitter {

#if TPJITTER_HAS_TORCH
inline constexpr bool kHasTorchPath = true;
#else
inline constexpr bool kHasTorchPath = false;
#endif

inline constexpr const char* kHowToGetTorchPath =
    "configure with -DTPJITTER_TORCH=ON and, for a GPU, "
    "-DTPJITTER_TORCH_PREFIX=$(python3 -c 'import torch; print(torch.utils.cmake_prefix_path)')";

}  // namespace tpjitter
