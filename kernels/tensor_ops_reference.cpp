// Plain loops of the tensor operations. Values pass through int64 and are cut to the destination's
// type on store, which equals the GPU's wrapping arithmetic.
#include "kernels/tensor_ops_reference.h"

#include <algorithm>
#include <stdexcept>

#include "kernels/metadata_page_table.h"

namespace tpjitter::kernels {
namespace {

std::int64_t load(const Tensor& tensor, std::int64_t row, std::int64_t column) {
  const std::int64_t at = row * tensor.strides[0] + column * tensor.strides[1];
  return tensor.dtype == IntType::kInt64 ? static_cast<const std::int64_t*>(tensor.data)[at]
                                         : static_cast<const std::int32_t*>(tensor.data)[at];
}

void store(const Tensor& tensor, std::int64_t row, std::int64_t column, std::int64_t value) {
  const std::int64_t at = row * tensor.strides[0] + column * tensor.strides[1];
  if (tensor.dtype == IntType::kInt64) {
    static_cast<std::int64_t*>(tensor.data)[at] = value;
  } else {
    static_cast<std::int32_t*>(tensor.data)[at] = static_cast<std::int32_t>(value);
  }
}

template <typename Function>
void for_each_element(const Tensor& tensor, Function function) {
  for (std::int64_t row = 0; row < tensor.sizes[0]; ++row) {
    for (std::int64_t column = 0; column < tensor.sizes[1]; ++column) {
      store(tensor, row, column, function(row, column));
    }
  }
}

std::int64_t floor_quotient(std::int64_t value, std::int64_t divisor) {
  const std::int64_t quotient = value / divisor;
  return value % divisor != 0 && (value < 0) != (divisor < 0) ? quotient - 1 : quotient;
}

// PyTorch wraps a negative index once and refuses what is still outside.
std::int64_t wrap_index(std::int64_t index, std::int64_t size) {
  const std::int64_t wrapped = index < 0 ? index + size : index;
  if (wrapped < 0 || wrapped >= size) throw std::out_of_range("index: outside of the tensor");
  return wrapped;
}

}  // namespace

void ReferenceTensorOps::run_convert(const Tensor& destination, const Tensor& source) {
  for_each_element(destination, [&](std::int64_t r, std::int64_t c) { return load(source, r, c); });
}

void ReferenceTensorOps::run_add(const Tensor& destination, const Tensor& source,
                                 std::int64_t value) {
  for_each_element(destination,
                   [&](std::int64_t r, std::int64_t c) { return load(source, r, c) + value; });
}

void ReferenceTensorOps::run_floor_divide(const Tensor& destination, const Tensor& source,
                                          std::int64_t divisor) {
  for_each_element(destination, [&](std::int64_t r, std::int64_t c) {
    return floor_quotient(load(source, r, c), divisor);
  });
}

void ReferenceTensorOps::run_arange(const Tensor& destination, std::int64_t begin,
                                    std::int64_t step) {
  for_each_element(destination, [&](std::int64_t r, std::int64_t) { return begin + r * step; });
}

void ReferenceTensorOps::run_zero(const Tensor& destination) {
  for_each_element(destination, [](std::int64_t, std::int64_t) { return std::int64_t{0}; });
}

void ReferenceTensorOps::run_max(const Tensor& destination, const Tensor& source) {
  std::int64_t largest = load(source, 0, 0);
  for (std::int64_t i = 1; i < source.sizes[0]; ++i)
    largest = std::max(largest, load(source, i, 0));
  store(destination, 0, 0, largest);
}

void ReferenceTensorOps::run_gather(const Tensor& destination, const Tensor& source,
                                    const Tensor& rows, const Tensor* columns) {
  for_each_element(destination, [&](std::int64_t r, std::int64_t c) {
    const std::int64_t row = wrap_index(load(rows, r, c), source.sizes[0]);
    const std::int64_t column =
        columns == nullptr ? 0 : wrap_index(load(*columns, r, c), source.sizes[1]);
    return load(source, row, column);
  });
}

std::size_t ReferenceTensorOps::scan_temporary_bytes(std::int64_t, IntType) { return 1; }

void ReferenceTensorOps::run_scan(const Tensor& destination, const Tensor& source, void*,
                                  std::size_t) {
  // Unsigned, so that sums wrap as on the GPU.
  std::uint64_t sum = 0;
  for_each_element(destination, [&](std::int64_t r, std::int64_t) {
    sum += static_cast<std::uint64_t>(load(source, r, 0));
    return static_cast<std::int64_t>(sum);
  });
}

void ReferenceTensorOps::run_page_table(const PageTableArgs& args) { reference_page_table(args); }

void ReferenceTensorOps::run_copy(const Tensor& destination, const Tensor& source) {
  run_convert(destination, source);
}

std::int64_t ReferenceTensorOps::read_scalar(const Tensor& scalar) { return load(scalar, 0, 0); }

}  // namespace tpjitter::kernels
