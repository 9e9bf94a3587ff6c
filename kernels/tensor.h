// A view of integer memory with at most two dimensions: what the op-by-op metadata path passes
// between its operations. Plain data, owns nothing; strides may be 0 (an expanded dimension).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/decode_metadata.h"

namespace tpjitter::kernels {

struct Tensor {
  void* data = nullptr;
  std::int64_t sizes[2] = {1, 1};    // elements; unused dimensions are 1
  std::int64_t strides[2] = {1, 1};  // elements
  std::int32_t dims = 0;             // 0 (scalar), 1 or 2
  IntType dtype = IntType::kInt32;
  bool on_host = false;  // memory that the host may read without a copy

  std::int64_t numel() const { return sizes[0] * sizes[1]; }
  std::int64_t element_bytes() const { return static_cast<std::int64_t>(dtype); }
  std::size_t bytes() const { return static_cast<std::size_t>(numel() * element_bytes()); }
};

// Inputs are const in DecodeMetadataArgs; the operations never write to them.
inline Tensor vector_tensor(const void* data, IntType dtype, std::int64_t size) {
  Tensor tensor;
  tensor.data = const_cast<void*>(data);
  tensor.sizes[0] = size;
  tensor.dims = 1;
  tensor.dtype = dtype;
  return tensor;
}

inline Tensor matrix_tensor(const void* data, IntType dtype, std::int64_t rows,
                            std::int64_t columns, std::int64_t row_stride) {
  Tensor tensor = vector_tensor(data, dtype, rows);
  tensor.sizes[1] = columns;
  tensor.strides[0] = row_stride;
  tensor.dims = 2;
  return tensor;
}

inline const char* int_type_name(IntType type) {
  return type == IntType::kInt64 ? "int64" : type == IntType::kInt32 ? "int32" : "uint8";
}

// Strides of dimensions of size 1 do not matter, as in PyTorch.
inline bool is_contiguous(const Tensor& tensor) {
  if (tensor.numel() <= 1) return true;
  if (tensor.dims == 1) return tensor.strides[0] == 1;
  const bool columns_dense = tensor.sizes[1] == 1 || tensor.strides[1] == 1;
  return columns_dense && (tensor.sizes[0] == 1 || tensor.strides[0] == tensor.sizes[1]);
}

// Entries [begin, end) of dimension `dim`, cut to its size.
inline Tensor slice_view(const Tensor& tensor, int dim, std::int64_t begin, std::int64_t end) {
  Tensor view = tensor;
  const std::int64_t size = tensor.sizes[dim];
  const std::int64_t first = begin < size ? begin : size;
  const std::int64_t last = end < size ? end : size;
  view.sizes[dim] = last > first ? last - first : 0;
  // Integer arithmetic: a recorder's tensors have no memory behind them.
  view.data = reinterpret_cast<void*>(
      reinterpret_cast<std::uintptr_t>(tensor.data) +
      static_cast<std::uintptr_t>(first * tensor.strides[dim] * tensor.element_bytes()));
  return view;
}

// [n] to [1, n] (dim 0) or [n, 1] (dim 1).
inline Tensor unsqueeze_view(const Tensor& tensor, int dim) {
  Tensor view = tensor;
  view.dims = 2;
  view.sizes[dim] = 1;
  view.sizes[1 - dim] = tensor.sizes[0];
  view.strides[dim] = 1;
  view.strides[1 - dim] = tensor.strides[0];
  return view;
}

inline constexpr std::int64_t kOneDimension = -1;

// A contiguous tensor read with another shape. kOneDimension as columns: a vector of `rows`
// entries.
inline Tensor reshape_view(const Tensor& tensor, std::int64_t rows, std::int64_t columns) {
  Tensor view = columns == kOneDimension
                    ? vector_tensor(tensor.data, tensor.dtype, rows)
                    : matrix_tensor(tensor.data, tensor.dtype, rows, columns, columns);
  view.on_host = tensor.on_host;
  return view;
}

// Dimensions of size 1 repeated, without memory, to [rows, columns].
inline Tensor expand_view(const Tensor& tensor, std::int64_t rows, std::int64_t columns) {
  Tensor view = tensor.dims == 1 ? unsqueeze_view(tensor, 0) : tensor;
  if (view.sizes[0] == 1 && rows != 1) view.strides[0] = 0;
  if (view.sizes[1] == 1 && columns != 1) view.strides[1] = 0;
  view.sizes[0] = rows;
  view.sizes[1] = columns;
  return view;
}

}  // namespace tpjitter::kernels
