// Owners of CUDA objects: move-only, nothing beyond the handle. Functions take raw handles or
// spans; owners live in the backend and in tests.
// Caution: a destructor never throws; it reports an error once to stderr. Errors after the runtime
// has shut down are silent, and so are those of a context that has failed before: the failure
// itself was already thrown.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdio>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

#include "harness/cuda/cuda_check.h"

namespace tpjitter {

inline void report_release_error(cudaError_t status, const char* what) noexcept {
  if (status == cudaSuccess || status == cudaErrorCudartUnloading) return;
  if (cudaPeekAtLastError() != cudaSuccess) return;  // sticky: reported where it happened
  std::fprintf(stderr, "tpjitter: releasing a %s: %s\n", what, cudaGetErrorString(status));
}

template <auto kDestroy, class T>
struct HandleDeleter {
  using pointer = T;
  void operator()(T handle) const noexcept {
    report_release_error(kDestroy(handle), "CUDA handle");
  }
};
template <auto kDestroy, class T>
using Handle = std::unique_ptr<std::remove_pointer_t<T>, HandleDeleter<kDestroy, T>>;

using Stream = Handle<&cudaStreamDestroy, cudaStream_t>;
using Event = Handle<&cudaEventDestroy, cudaEvent_t>;
using Graph = Handle<&cudaGraphDestroy, cudaGraph_t>;
using GraphExec = Handle<&cudaGraphExecDestroy, cudaGraphExec_t>;

// Does not synchronise with the legacy stream.
inline Stream make_stream() {
  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return Stream(stream);
}

// For queries, without a time: cheaper to record.
inline Event make_event() {
  cudaEvent_t event = nullptr;
  check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return Event(event);
}

// cudaMalloc memory: what can be exported by CUDA IPC (pool and VMM memory cannot).
template <class T>
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(std::size_t size) : size_(size) {
    void* data = nullptr;
    if (size > 0) check_cuda(cudaMalloc(&data, size * sizeof(T)));
    data_.reset(static_cast<T*>(data));
  }
  T* data() const { return data_.get(); }
  std::size_t size() const { return size_; }
  std::size_t size_bytes() const { return size_ * sizeof(T); }
  std::span<T> span() const { return {data(), size_}; }  // device addresses

 private:
  struct Free {
    void operator()(T* data) const noexcept { report_release_error(cudaFree(data), "buffer"); }
  };
  std::unique_ptr<T, Free> data_;
  std::size_t size_ = 0;
};

// Page-locked host memory that the device can reach at the same address (UVA).
template <class T>
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  explicit PinnedBuffer(std::size_t size) : size_(size) {
    void* data = nullptr;
    if (size > 0) {
      check_cuda(cudaHostAlloc(&data, size * sizeof(T), cudaHostAllocMapped));
      __builtin_memset(data, 0, size * sizeof(T));
    }
    data_.reset(static_cast<T*>(data));
  }
  T* data() const { return data_.get(); }
  T& operator[](std::size_t i) const { return data_.get()[i]; }
  std::size_t size() const { return size_; }
  std::size_t size_bytes() const { return size_ * sizeof(T); }
  std::span<T> span() const { return {data(), size_}; }

 private:
  static_assert(std::is_trivially_copyable_v<T>);
  struct Free {
    void operator()(T* data) const noexcept {
      report_release_error(cudaFreeHost(data), "pinned buffer");
    }
  };
  std::unique_ptr<T, Free> data_;
  std::size_t size_ = 0;
};

// Another process's cudaMalloc memory, opened by its IPC handle.
class PeerMapping {
 public:
  PeerMapping() = default;
  explicit PeerMapping(cudaIpcMemHandle_t handle) {
    void* data = nullptr;
    check_cuda(cudaIpcOpenMemHandle(&data, handle, cudaIpcMemLazyEnablePeerAccess));
    data_.reset(data);
  }
  void* data() const { return data_.get(); }

 private:
  struct Close {
    void operator()(void* data) const noexcept {
      report_release_error(cudaIpcCloseMemHandle(data), "peer mapping");
    }
  };
  std::unique_ptr<void, Close> data_;
};

}  // namespace tpjitter
