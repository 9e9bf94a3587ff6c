// Tensor operations on a stream, with the device memory and the pinned scalar that they need.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/tensor_ops_cuda.h"
#include "tests/gpu/gpu_test_main.h"

namespace tpjitter::test {

inline void* allocate_device(void*, std::size_t bytes) {
  void* block = nullptr;
  return cudaMalloc(&block, bytes) == cudaSuccess ? block : nullptr;
}

inline void free_device(void*, void* block) { cudaFree(block); }

inline kernels::BlockSource device_block_source() {
  return {.allocate = allocate_device, .free = free_device, .context = nullptr};
}

class DeviceOps {
 public:
  explicit DeviceOps(cudaStream_t stream) : ops_(allocator_, stream, pinned_.data) {}
  DeviceOps(const DeviceOps&) = delete;
  DeviceOps& operator=(const DeviceOps&) = delete;

  kernels::CudaTensorOps& operator*() { return ops_; }
  kernels::TensorAllocator& allocator() { return allocator_; }

 private:
  struct Pinned {
    Pinned() { check_cuda(cudaMallocHost(&data, sizeof(std::int64_t))); }
    ~Pinned() { cudaFreeHost(data); }
    Pinned(const Pinned&) = delete;
    Pinned& operator=(const Pinned&) = delete;
    void* data = nullptr;
  };

  Pinned pinned_;
  kernels::TensorAllocator allocator_{device_block_source()};
  kernels::CudaTensorOps ops_;
};

}  // namespace tpjitter::test
