// What each ATen operation of the metadata path costs on a GPU, after PyTorch 2.11: a copy_ between
// contiguous tensors of one dtype is a memcpy, any other a kernel; cumsum is a two-kernel scan;
// index makes its index tensors int64 and contiguous first. Counts checked against a profiler.
#include "kernels/tensor_ops.h"

#include <algorithm>
#include <stdexcept>

#include "kernels/metadata_page_table.h"

namespace tpjitter::kernels {
namespace {

constexpr std::size_t kExpectedTemporaries = 64;  // a rebuild makes about 10

std::int64_t load_element(const Tensor& tensor, std::int64_t i) {
  const std::int64_t at = i * tensor.strides[0];
  return tensor.dtype == IntType::kInt64 ? static_cast<const std::int64_t*>(tensor.data)[at]
                                         : static_cast<const std::int32_t*>(tensor.data)[at];
}

}  // namespace

TensorOps::TensorOps(TensorAllocator& allocator) : allocator_(allocator) {
  temporaries_.reserve(kExpectedTemporaries);
  index_blocks_.reserve(4);
}

TensorOps::Block TensorOps::allocate_block(std::size_t bytes) {
  return {allocator_.allocate(bytes), bytes};
}

Tensor TensorOps::make_temporary(std::int64_t rows, std::int64_t columns, int dims, IntType dtype) {
  Tensor result = matrix_tensor(nullptr, dtype, rows, columns, columns);
  result.dims = dims;
  temporaries_.push_back(allocate_block(result.bytes()));
  result.data = temporaries_.back().data;
  return result;
}

void TensorOps::end_rebuild() {
  for (const Block& block : temporaries_) allocator_.release(block.data, block.bytes);
  temporaries_.clear();
}

Tensor TensorOps::slice(const Tensor& tensor, int dim, std::int64_t begin, std::int64_t end) {
  on_call("slice", CallKind::kView);
  const Tensor view = slice_view(tensor, dim, begin, end);
  on_return(view);
  return view;
}

Tensor TensorOps::unsqueeze(const Tensor& tensor, int dim) {
  on_call("unsqueeze", CallKind::kView);
  const Tensor view = unsqueeze_view(tensor, dim);
  on_return(view);
  return view;
}

Tensor TensorOps::reshape(const Tensor& tensor, std::int64_t rows, std::int64_t columns) {
  on_call("reshape", CallKind::kView);
  const Tensor view = reshape_view(tensor, rows, columns);
  on_return(view);
  return view;
}

Tensor TensorOps::add(const Tensor& tensor, std::int64_t value) {
  on_call("add", CallKind::kKernel);
  const Tensor result = make_temporary(tensor.sizes[0], tensor.sizes[1], tensor.dims, tensor.dtype);
  if (result.numel() > 0) run_add(result, tensor, value);
  on_return(result);
  return result;
}

Tensor TensorOps::floor_divide(const Tensor& tensor, std::int64_t divisor) {
  on_call("floor_divide", CallKind::kKernel);
  const Tensor result = make_temporary(tensor.sizes[0], tensor.sizes[1], tensor.dims, tensor.dtype);
  if (result.numel() > 0) run_floor_divide(result, tensor, divisor);
  on_return(result);
  return result;
}

Tensor TensorOps::to(const Tensor& tensor, IntType dtype) {
  on_call("to", CallKind::kKernel);
  if (tensor.dtype == dtype) {
    on_return(tensor);
    return tensor;
  }
  const Tensor result = make_temporary(tensor.sizes[0], tensor.sizes[1], tensor.dims, dtype);
  if (result.numel() > 0) run_convert(result, tensor);
  on_return(result);
  return result;
}

Tensor TensorOps::cumsum(const Tensor& tensor, IntType dtype) {
  on_call("cumsum", CallKind::kScan);
  const Tensor result = make_temporary(tensor.sizes[0], 1, 1, dtype);
  if (result.numel() > 0) {
    Tensor source = tensor;
    Block converted{nullptr, 0};
    if (tensor.dtype != dtype || !is_contiguous(tensor)) {
      source = vector_tensor(nullptr, dtype, tensor.sizes[0]);
      converted = allocate_block(source.bytes());
      source.data = converted.data;
      run_convert(source, tensor);
    }
    const std::size_t scan_bytes = scan_temporary_bytes(source.sizes[0], dtype);
    const Block scan = allocate_block(scan_bytes);
    run_scan(result, source, scan.data, scan_bytes);
    allocator_.release(scan.data, scan.bytes);
    if (converted.data != nullptr) allocator_.release(converted.data, converted.bytes);
  }
  on_return(result);
  return result;
}

Tensor TensorOps::arange(std::int64_t begin, std::int64_t end, std::int64_t step, IntType dtype) {
  on_call("arange", CallKind::kKernel);
  const std::int64_t size = end > begin ? (end - begin + step - 1) / step : 0;
  const Tensor result = make_temporary(size, 1, 1, dtype);
  if (size > 0) run_arange(result, begin, step);
  on_return(result);
  return result;
}

Tensor TensorOps::prepare_index(const Tensor& index, std::int64_t rows, std::int64_t columns,
                                std::vector<Block>* blocks) {
  Tensor prepared = index;
  const auto replace_by_copy = [&](const Tensor& source) {
    Tensor copy =
        matrix_tensor(nullptr, IntType::kInt64, source.sizes[0], source.sizes[1], source.sizes[1]);
    copy.dims = source.dims;
    blocks->push_back(allocate_block(copy.bytes()));
    copy.data = blocks->back().data;
    run_convert(copy, source);
    return copy;
  };
  if (prepared.dtype != IntType::kInt64) prepared = replace_by_copy(prepared);
  if (columns > 0) prepared = expand_view(prepared, rows, columns);
  if (!is_contiguous(prepared)) prepared = replace_by_copy(prepared);
  return prepared;
}

Tensor TensorOps::index(const Tensor& source, const Tensor& indices) {
  on_call("index", indices.dtype == IntType::kInt64 ? CallKind::kIndex : CallKind::kIndexCast);
  const Tensor result = make_temporary(indices.sizes[0], 1, 1, source.dtype);
  if (result.numel() > 0) {
    const Tensor prepared = prepare_index(indices, indices.sizes[0], 0, &index_blocks_);
    run_gather(result, source, prepared, nullptr);
    for (const Block& block : index_blocks_) allocator_.release(block.data, block.bytes);
    index_blocks_.clear();
  }
  on_return(result);
  return result;
}

Tensor TensorOps::index(const Tensor& source, const Tensor& rows, const Tensor& columns) {
  on_call("index", CallKind::kIndexRows);
  const std::int64_t num_rows = rows.sizes[0];
  const std::int64_t num_columns = columns.dims == 1 ? columns.sizes[0] : columns.sizes[1];
  const Tensor result = make_temporary(num_rows, num_columns, 2, source.dtype);
  if (result.numel() > 0) {
    const Tensor row_index = prepare_index(rows, num_rows, num_columns, &index_blocks_);
    const Tensor column_index = prepare_index(columns, num_rows, num_columns, &index_blocks_);
    run_gather(result, source, row_index, &column_index);
    for (const Block& block : index_blocks_) allocator_.release(block.data, block.bytes);
    index_blocks_.clear();
  }
  on_return(result);
  return result;
}

Tensor TensorOps::max(const Tensor& tensor) {
  on_call("max", tensor.on_host ? CallKind::kHost : CallKind::kKernel);
  if (tensor.numel() == 0) throw std::invalid_argument("max: tensor has no elements");
  Tensor result;
  if (tensor.on_host) {
    result = host_scalar(host_max(tensor));
  } else {
    result = make_temporary(1, 1, 0, tensor.dtype);
    run_max(result, tensor);
  }
  on_return(result);
  return result;
}

std::int64_t TensorOps::item(const Tensor& scalar) {
  on_call("item", scalar.on_host ? CallKind::kHost : CallKind::kRead);
  const std::int64_t value = scalar.on_host ? host_item(scalar) : read_scalar(scalar);
  on_return(scalar);
  return value;
}

void TensorOps::copy_(const Tensor& destination, const Tensor& source) {
  const bool plain =
      destination.dtype == source.dtype && is_contiguous(destination) && is_contiguous(source);
  on_call("copy_", plain ? CallKind::kCopy : CallKind::kKernel);
  if (destination.numel() != source.numel() || destination.sizes[0] != source.sizes[0]) {
    throw std::invalid_argument("copy_: source and destination differ in shape");
  }
  if (destination.numel() > 0) {
    if (plain) {
      run_copy(destination, source);
    } else {
      run_convert(destination, source);
    }
  }
  on_return(destination);
}

void TensorOps::zero_(const Tensor& tensor) {
  on_call("zero_", CallKind::kKernel);
  if (tensor.numel() > 0) run_zero(tensor);
  on_return(tensor);
}

void TensorOps::page_table(const PageTableArgs& args) {
  on_call("page_table_kernel", CallKind::kKernel);
  if (args.batch_size > 0 && args.max_seq_pages > 0) run_page_table(args);
  on_return(matrix_tensor(args.page_table, IntType::kInt32, args.batch_size, args.max_seq_pages,
                          args.page_table_stride));
}

std::int64_t TensorOps::host_max(const Tensor& tensor) {
  if (tensor.data == nullptr) throw std::invalid_argument("max: the host tensor is absent");
  std::int64_t largest = load_element(tensor, 0);
  for (std::int64_t i = 1; i < tensor.sizes[0]; ++i) {
    largest = std::max(largest, load_element(tensor, i));
  }
  return largest;
}

std::int64_t TensorOps::host_sum(const Tensor& tensor) {
  if (tensor.data == nullptr) throw std::invalid_argument("sum: the host tensor is absent");
  std::int64_t total = 0;
  for (std::int64_t i = 0; i < tensor.sizes[0]; ++i) total += load_element(tensor, i);
  return total;
}

Tensor TensorOps::host_scalar(std::int64_t value) {
  host_scalar_ = value;
  Tensor result = vector_tensor(&host_scalar_, IntType::kInt64, 1);
  result.on_host = true;
  result.dims = 0;
  return result;
}

std::int64_t TensorOps::host_item(const Tensor& scalar) { return load_element(scalar, 0); }

}  // namespace tpjitter::kernels
