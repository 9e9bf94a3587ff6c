// Elementwise kernels, gather, maximum and scan of the op-by-op metadata path.
// Source:  the kernels that PyTorch 2.11 launches for the same calls; written anew, with the same
//          number of launches and copies. The scan is CUB's DeviceScan (two kernels), as there.
// Grid:    a column block by rows, so that no element needs a division to find its place; vectors
//          are laid along the columns.
// Limits:  capturable but for item(); 64-bit offsets.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cub/device/device_scan.cuh>

#include "kernels/metadata_page_table.h"
#include "kernels/tensor_elements.cuh"
#include "kernels/tensor_ops_cuda.h"

namespace tpjitter::kernels {
namespace {

// What an elementwise kernel computes from the source's element and its place.
struct Convert {
  __device__ std::int64_t operator()(std::int64_t x, std::int64_t) const { return x; }
};
struct Add {
  std::int64_t value;
  __device__ std::int64_t operator()(std::int64_t x, std::int64_t) const { return x + value; }
};
struct FloorDivide {
  std::int64_t divisor;
  __device__ std::int64_t operator()(std::int64_t x, std::int64_t) const {
    // Slots and pages fit 32 bits; a 64-bit division costs several times as much.
    if (x == static_cast<std::int32_t>(x) && divisor == static_cast<std::int32_t>(divisor)) {
      const auto narrow = static_cast<std::int32_t>(x);
      const auto by = static_cast<std::int32_t>(divisor);
      const std::int32_t quotient = narrow / by;
      return (narrow % by != 0 && (narrow < 0) != (by < 0)) ? quotient - 1 : quotient;
    }
    const std::int64_t quotient = x / divisor;
    return (x % divisor != 0 && (x < 0) != (divisor < 0)) ? quotient - 1 : quotient;
  }
};
struct Arange {
  std::int64_t begin, step;
  __device__ std::int64_t operator()(std::int64_t, std::int64_t i) const {
    return begin + i * step;
  }
};

template <bool kHasSource, typename Function>
__global__ void elementwise_kernel(Tensor destination, Tensor source, Function function) {
  const std::int64_t column = std::int64_t{blockIdx.x} * kTensorThreads + threadIdx.x;
  if (column >= destination.sizes[1]) return;  // tail of the last column block
  for (std::int64_t row = blockIdx.y; row < destination.sizes[0]; row += gridDim.y) {
    const std::int64_t x =
        kHasSource ? load_element(source, element_offset(source, row, column)) : 0;
    store_element(destination, element_offset(destination, row, column), function(x, column));
  }
}

// source[rows, columns], or source[rows] of a vector laid along the columns. PyTorch's wrap of
// negative indices; no range check.
template <bool kTwoIndices>
__global__ void gather_kernel(Tensor destination, Tensor source, Tensor rows, Tensor columns) {
  const std::int64_t column = std::int64_t{blockIdx.x} * kTensorThreads + threadIdx.x;
  if (column >= destination.sizes[1]) return;
  for (std::int64_t row = blockIdx.y; row < destination.sizes[0]; row += gridDim.y) {
    std::int64_t first = load_element(rows, element_offset(rows, row, column));
    if (first < 0) first += source.sizes[0];
    std::int64_t second = 0;
    if (kTwoIndices) {
      second = load_element(columns, element_offset(columns, row, column));
      if (second < 0) second += source.sizes[1];
    }
    store_element(destination, element_offset(destination, row, column),
                  load_element(source, first * source.strides[0] + second * source.strides[1]));
  }
}

// One block: batches are at most a few thousand entries.
__global__ void max_kernel(Tensor destination, Tensor source) {
  __shared__ std::int64_t warp_largest[kTensorThreads / 32];
  std::int64_t largest = INT64_MIN;
  for (std::int64_t i = threadIdx.x; i < source.sizes[0]; i += kTensorThreads) {
    largest = max(largest, load_element(source, i * source.strides[0]));
  }
  for (int distance = 16; distance > 0; distance /= 2) {
    largest = max(largest, __shfl_down_sync(0xffffffffu, largest, distance));
  }
  if (threadIdx.x % 32 == 0) warp_largest[threadIdx.x / 32] = largest;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (const std::int64_t candidate : warp_largest) largest = max(largest, candidate);
  store_element(destination, 0, largest);
}

template <bool kHasSource, typename Function>
int launch_elementwise(const Tensor& destination, const Tensor& source, Function function,
                       cudaStream_t stream) {
  const bool is_vector = destination.sizes[1] == 1;
  const Tensor out = along_columns(destination, is_vector);
  elementwise_kernel<kHasSource><<<grid_of(out), kTensorThreads, 0, stream>>>(
      out, along_columns(source, is_vector), function);
  return cudaGetLastError();
}

}  // namespace

void CudaTensorOps::run_convert(const Tensor& destination, const Tensor& source) {
  keep(launch_elementwise<true>(destination, source, Convert{}, stream_));
}

void CudaTensorOps::run_add(const Tensor& destination, const Tensor& source, std::int64_t value) {
  keep(launch_elementwise<true>(destination, source, Add{value}, stream_));
}

void CudaTensorOps::run_floor_divide(const Tensor& destination, const Tensor& source,
                                     std::int64_t divisor) {
  keep(launch_elementwise<true>(destination, source, FloorDivide{divisor}, stream_));
}

void CudaTensorOps::run_arange(const Tensor& destination, std::int64_t begin, std::int64_t step) {
  keep(launch_elementwise<false>(destination, destination, Arange{begin, step}, stream_));
}

void CudaTensorOps::run_zero(const Tensor& destination) {
  keep(launch_elementwise<false>(destination, destination, Convert{}, stream_));
}

void CudaTensorOps::run_max(const Tensor& destination, const Tensor& source) {
  max_kernel<<<1, kTensorThreads, 0, stream_>>>(destination, source);
  keep(cudaGetLastError());
}

void CudaTensorOps::run_gather(const Tensor& destination, const Tensor& source, const Tensor& rows,
                               const Tensor* columns) {
  const bool is_vector = destination.sizes[1] == 1;
  const Tensor out = along_columns(destination, is_vector);
  const Tensor row_index = along_columns(rows, is_vector);
  if (columns == nullptr) {
    gather_kernel<false>
        <<<grid_of(out), kTensorThreads, 0, stream_>>>(out, source, row_index, row_index);
  } else {
    gather_kernel<true><<<grid_of(out), kTensorThreads, 0, stream_>>>(
        out, source, row_index, along_columns(*columns, is_vector));
  }
  keep(cudaGetLastError());
}

namespace {

template <typename T>
int scan(void* temporary, std::size_t* bytes, const Tensor& source, const Tensor& destination,
         cudaStream_t stream) {
  return cub::DeviceScan::InclusiveSum(temporary, *bytes, static_cast<const T*>(source.data),
                                       static_cast<T*>(destination.data),
                                       static_cast<int>(source.sizes[0]), stream);
}

int scan(IntType dtype, void* temporary, std::size_t* bytes, const Tensor& source,
         const Tensor& destination, cudaStream_t stream) {
  return dtype == IntType::kInt64
             ? scan<std::int64_t>(temporary, bytes, source, destination, stream)
             : scan<std::int32_t>(temporary, bytes, source, destination, stream);
}

}  // namespace

std::size_t CudaTensorOps::scan_temporary_bytes(std::int64_t size, IntType dtype) {
  std::size_t bytes = 0;
  const Tensor none = vector_tensor(nullptr, dtype, size);
  keep(scan(dtype, nullptr, &bytes, none, none, stream_));
  return std::max<std::size_t>(bytes, 1);
}

void CudaTensorOps::run_scan(const Tensor& destination, const Tensor& source, void* temporary,
                             std::size_t temporary_bytes) {
  keep(scan(destination.dtype, temporary, &temporary_bytes, source, destination, stream_));
}

void CudaTensorOps::run_page_table(const PageTableArgs& args) {
  keep(launch_page_table(args, stream_));
}

void CudaTensorOps::run_copy(const Tensor& destination, const Tensor& source) {
  keep(cudaMemcpyAsync(destination.data, source.data, destination.bytes(), cudaMemcpyDeviceToDevice,
                       stream_));
}

std::int64_t CudaTensorOps::read_scalar(const Tensor& scalar) {
  keep(cudaMemcpyAsync(pinned_scalar_, scalar.data,
                       static_cast<std::size_t>(scalar.element_bytes()), cudaMemcpyDeviceToHost,
                       stream_));
  keep(cudaStreamSynchronize(stream_));
  if (status_ != 0) return 0;
  return scalar.dtype == IntType::kInt64 ? *static_cast<const std::int64_t*>(pinned_scalar_)
                                         : *static_cast<const std::int32_t*>(pinned_scalar_);
}

}  // namespace tpjitter::kernels
