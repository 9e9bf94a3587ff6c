// Element access of the tensor operations' kernels, and the grid that covers a tensor: a column
// block by rows, so that no element needs a division to find its place.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "kernels/tensor.h"

namespace tpjitter::kernels {

inline constexpr int kTensorThreads = 256;
inline constexpr int kTensorMaxGridY = 65535;

__device__ __forceinline__ std::int64_t element_offset(const Tensor& tensor, std::int64_t row,
                                                       std::int64_t column) {
  return row * tensor.strides[0] + column * tensor.strides[1];
}

__device__ __forceinline__ std::int64_t load_element(const Tensor& tensor, std::int64_t at) {
  if (tensor.dtype == IntType::kUint8) return static_cast<const std::uint8_t*>(tensor.data)[at];
  return tensor.dtype == IntType::kInt64 ? static_cast<const std::int64_t*>(tensor.data)[at]
                                         : static_cast<const std::int32_t*>(tensor.data)[at];
}

__device__ __forceinline__ void store_element(const Tensor& tensor, std::int64_t at,
                                              std::int64_t value) {
  if (tensor.dtype == IntType::kInt64) {
    static_cast<std::int64_t*>(tensor.data)[at] = value;
  } else if (tensor.dtype == IntType::kUint8) {
    static_cast<std::uint8_t*>(tensor.data)[at] = static_cast<std::uint8_t>(value);
  } else {
    static_cast<std::int32_t*>(tensor.data)[at] = static_cast<std::int32_t>(value);
  }
}

// A vector as one row, so that its entries spread over the threads.
inline Tensor along_columns(Tensor tensor, bool is_vector) {
  if (!is_vector) return tensor;
  std::swap(tensor.sizes[0], tensor.sizes[1]);
  std::swap(tensor.strides[0], tensor.strides[1]);
  return tensor;
}

inline dim3 grid_of(const Tensor& tensor) {
  return dim3(static_cast<unsigned>((tensor.sizes[1] + kTensorThreads - 1) / kTensorThreads),
              static_cast<unsigned>(std::min<std::int64_t>(tensor.sizes[0], kTensorMaxGridY)));
}

}  // namespace tpjitter::kernels
