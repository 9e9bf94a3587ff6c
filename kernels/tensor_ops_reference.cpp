// Plain loops of the tensor operations. Values pass through int64 and are cut to the destination's
// type on store, which equals the GPU's wrapping arithmetic.
#include "kernels/tensor_ops_reference.h"

#include <algorithm>
#include <stdexcept>

#include "kernels/metadata_kv_indices_ops.h"
#include "kernels/metadata_page_table.h"
#include "kernels/metadata_topk.h"

namespace tpjitter::kernels {
namespace {

std::int64_t load(const Tensor& tensor, std::int64_t row, std::int64_t column) {
  const std::int64_t at = row * tensor.strides[0] + column * tensor.strides[1];
  if (tensor.dtype == IntType::kUint8) return static_cast<const std::uint8_t*>(tensor.data)[at];
  return tensor.dtype == IntType::kInt64 ? static_cast<const std::int64_t*>(tensor.data)[at]
                                         : static_cast<const std::int32_t*>(tensor.data)[at];
}

void store(const Tensor& tensor, std::int64_t row, std::int64_t column, std::int64_t value) {
  const std::int64_t at = row * tensor.strides[0] + column * tensor.strides[1];
  if (tensor.dtype == IntType::kInt64) {
    static_cast<std::int64_t*>(tensor.data)[at] = value;
  } else if (tensor.dtype == IntType::kUint8) {
    static_cast<std::uint8_t*>(tensor.data)[at] = static_cast<std::uint8_t>(value);
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

void ReferenceTensorOps::run_pointwise(const PointwiseArgs& args) {
  for_each_element(args.destination, [&](std::int64_t r, std::int64_t c) -> std::int64_t {
    switch (args.function) {
      case Pointwise::kFill:
        return args.scalar;
      case Pointwise::kAdd:
        return load(args.a, r, c) + load(args.b, r, c);
      case Pointwise::kSubtract:
        return load(args.a, r, c) - load(args.b, r, c);
      case Pointwise::kMinimum:
        return std::min(load(args.a, r, c), args.scalar);
      case Pointwise::kRemainder: {
        const std::int64_t value = load(args.a, r, c);
        return value - floor_quotient(value, args.scalar) * args.scalar;
      }
      case Pointwise::kSelect:
        return load(args.mask, r, c) != 0 ? load(args.a, r, c) : load(args.b, r, c);
    }
    return 0;
  });
}

void ReferenceTensorOps::run_rows(const Tensor& destination, const Tensor& source,
                                  const Tensor* rows, std::int64_t repeats) {
  for_each_element(destination, [&](std::int64_t r, std::int64_t c) {
    const std::int64_t row =
        rows == nullptr ? r / repeats : wrap_index(load(*rows, r, 0), source.sizes[0]);
    return load(source, row, c);
  });
}

void ReferenceTensorOps::run_gather_columns(const Tensor& destination, const Tensor& source,
                                            const Tensor& columns) {
  for_each_element(destination, [&](std::int64_t r, std::int64_t c) {
    const std::int64_t column = load(columns, r, c);  // torch.gather does not wrap
    if (column < 0 || column >= source.sizes[1]) {
      throw std::out_of_range("gather: outside of the tensor");
    }
    return load(source, r, column);
  });
}

void ReferenceTensorOps::run_row_sums(const Tensor& destination, const Tensor& source) {
  for_each_element(destination, [&](std::int64_t r, std::int64_t) {
    std::int64_t total = 0;
    for (std::int64_t c = 0; c < source.sizes[1]; ++c) total += load(source, r, c);
    return total;
  });
}

// The keys of a row differ, so a key's place is the number of smaller ones.
void ReferenceTensorOps::run_sort_rows(const Tensor& destination, const Tensor& keys) {
  for (std::int64_t r = 0; r < keys.sizes[0]; ++r) {
    for (std::int64_t c = 0; c < keys.sizes[1]; ++c) {
      std::int64_t place = 0;
      for (std::int64_t other = 0; other < keys.sizes[1]; ++other) {
        place += load(keys, r, other) < load(keys, r, c) ? 1 : 0;
      }
      store(destination, r, place, c);
    }
  }
}

void ReferenceTensorOps::run_page_table(const PageTableArgs& args) { reference_page_table(args); }

void ReferenceTensorOps::run_kv_gather(const KvGatherArgs& args) { reference_kv_gather(args); }

void ReferenceTensorOps::run_kv_draft_fills(std::span<const KvIndicesArgs> fills) {
  for (const KvIndicesArgs& fill : fills) reference_kv_indices(fill);
}

void ReferenceTensorOps::run_topk_draft_expand(const TopkDraftArgs& args) {
  reference_topk_draft_expand(args);
}

void ReferenceTensorOps::run_copy(const Tensor& destination, const Tensor& source) {
  run_convert(destination, source);
}

std::int64_t ReferenceTensorOps::read_scalar(const Tensor& scalar) { return load(scalar, 0, 0); }

}  // namespace tpjitter::kernels
