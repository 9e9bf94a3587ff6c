// The operations of the op-by-op paths on a GPU, each with the extra host cost that a scenario asks
// for, and the device memory of their temporaries.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <utility>

#include "harness/call_overhead.h"
#include "harness/cuda/handles.h"
#include "kernels/tensor_allocator.h"
#include "kernels/tensor_ops_cuda.h"

namespace tpjitter {

class CostedTensorOps final : public kernels::CudaTensorOps {
 public:
  CostedTensorOps(kernels::TensorAllocator& allocator, cudaStream_t stream, void* pinned_scalar,
                  CallOverhead overhead)
      : CudaTensorOps(allocator, stream, pinned_scalar), overhead_(std::move(overhead)) {}

  void begin_rebuild() { overhead_.begin_rebuild(); }

 protected:
  void on_call(const char*, kernels::CallKind kind) override { overhead_.begin(kind); }
  void on_return(const kernels::Tensor&) override { overhead_.end(); }

 private:
  CallOverhead overhead_;
};

inline kernels::BlockSource device_block_source() {
  kernels::BlockSource source;
  source.allocate = [](void*, std::size_t bytes) -> void* {
    void* block = nullptr;
    return cudaMalloc(&block, bytes) == cudaSuccess ? block : nullptr;
  };
  source.free = [](void*, void* block) { report_release_error(cudaFree(block), "temporary"); };
  return source;
}

}  // namespace tpjitter
