// The `torch` path: the op-by-op rebuild with PyTorch's own operations, dispatcher, allocator and
// kernels, in a build with TPJITTER_TORCH. PyTorch's headers stay behind this one.
#pragma once

#include <memory>

#include "kernels/metadata_aten.h"

struct CUstream_st;  // *cudaStream_t

namespace tpjitter {

class TorchRebuild {
 public:
  // Tensors over the memory that the arguments name: on the host, or, with `gpu` the ordinal of the
  // device, on that one. Throws ConfigError where this build's PyTorch has no CUDA. static_pages is
  // not used: the page count comes from the lengths.
  static constexpr int kHost = -1;
  TorchRebuild(kernels::DecodePhase phase, const kernels::AtenMetadataArgs& args, int gpu = kHost);
  ~TorchRebuild();
  TorchRebuild(const TorchRebuild&) = delete;
  TorchRebuild& operator=(const TorchRebuild&) = delete;

  // One rebuild; on a GPU enqueued on the stream. Throws what PyTorch throws (std::exception).
  void run(CUstream_st* stream = nullptr);

 private:
  struct Tensors;
  std::unique_ptr<Tensors> tensors_;
};

}  // namespace tpjitter
