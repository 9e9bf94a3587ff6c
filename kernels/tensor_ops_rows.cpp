// What the operations of the index lists, the linear state and the trees cost on a GPU, after
// PyTorch's sources (not measured): a pad is a fill and a copy; a sort of short rows copies the keys,
// numbers them and sorts; repeat_interleave by a number is one copy of an expanded view; a slice
// bounded by a device scalar is item() of it, and the slice.
#include <algorithm>
#include <stdexcept>

#include "kernels/metadata_kv_indices_ops.h"
#include "kernels/metadata_topk.h"
#include "kernels/tensor_ops.h"

namespace tpjitter::kernels {
namespace {

// A vector broadcasts as a row of a matrix, as in PyTorch.
Tensor broadcast(const Tensor& tensor, std::int64_t rows, std::int64_t columns, int dims) {
  Tensor view = tensor;
  if (dims == 2 && tensor.dims == 1) view = unsqueeze_view(tensor, 0);
  const bool fits = (view.sizes[0] == rows || view.sizes[0] == 1) &&
                    (view.sizes[1] == columns || view.sizes[1] == 1);
  if (!fits) throw std::invalid_argument("tensor operation: shapes do not broadcast");
  if (view.sizes[0] == rows && view.sizes[1] == columns) return view;
  return expand_view(view, rows, columns);
}

IntType wider(IntType a, IntType b) {
  return static_cast<std::int32_t>(a) > static_cast<std::int32_t>(b) ? a : b;
}

}  // namespace

Tensor TensorOps::select(const Tensor& tensor, std::int64_t i) {
  on_call("select", CallKind::kView);
  Tensor view = slice_view(tensor, 0, i, i + 1);
  view.dims = 0;
  on_return(view);
  return view;
}

Tensor TensorOps::expand(const Tensor& tensor, std::int64_t rows, std::int64_t columns) {
  on_call("expand", CallKind::kView);
  const Tensor view = expand_view(tensor, rows, columns);
  on_return(view);
  return view;
}

Tensor TensorOps::empty(std::int64_t size, IntType dtype) {
  on_call("empty", CallKind::kView);
  const Tensor result = make_temporary(size, 1, 1, dtype);
  on_return(result);
  return result;
}

Tensor TensorOps::zeros(std::int64_t size, IntType dtype) {
  on_call("zeros", CallKind::kKernel);
  const Tensor result = make_temporary(size, 1, 1, dtype);
  if (size > 0) run_zero(result);
  on_return(result);
  return result;
}

Tensor TensorOps::pointwise(const char* name, Pointwise function, const Tensor& a, const Tensor* b,
                            const Tensor* mask, std::int64_t scalar) {
  on_call(name, CallKind::kKernel);
  int dims = a.dims;
  if (b != nullptr) dims = std::max(dims, b->dims);
  if (mask != nullptr) dims = std::max(dims, mask->dims);
  std::int64_t rows = 1;
  std::int64_t columns = 1;
  for (const Tensor* source : {&a, b, mask}) {
    if (source == nullptr) continue;
    const bool as_row = dims == 2 && source->dims == 1;
    rows = std::max(rows, as_row ? 1 : source->sizes[0]);
    columns = std::max(columns, as_row ? source->sizes[0] : source->sizes[1]);
  }
  const IntType dtype = b == nullptr ? a.dtype : wider(a.dtype, b->dtype);
  const bool is_empty = a.numel() == 0;
  const Tensor result = make_temporary(is_empty ? 0 : rows, columns, dims, dtype);
  if (!is_empty) {
    PointwiseArgs args;
    args.destination = result;
    args.a = broadcast(a, rows, columns, dims);
    if (b != nullptr) args.b = broadcast(*b, rows, columns, dims);
    if (mask != nullptr) args.mask = broadcast(*mask, rows, columns, dims);
    args.scalar = scalar;
    args.function = function;
    run_pointwise(args);
  }
  on_return(result);
  return result;
}

Tensor TensorOps::add(const Tensor& a, const Tensor& b) {
  return pointwise("add", Pointwise::kAdd, a, &b, nullptr, 0);
}

Tensor TensorOps::sub(const Tensor& a, const Tensor& b) {
  return pointwise("sub", Pointwise::kSubtract, a, &b, nullptr, 0);
}

Tensor TensorOps::clamp_max(const Tensor& tensor, std::int64_t value) {
  return pointwise("clamp_max", Pointwise::kMinimum, tensor, nullptr, nullptr, value);
}

Tensor TensorOps::remainder(const Tensor& tensor, std::int64_t divisor) {
  return pointwise("remainder", Pointwise::kRemainder, tensor, nullptr, nullptr, divisor);
}

Tensor TensorOps::where(const Tensor& mask, const Tensor& a, const Tensor& b) {
  return pointwise("where", Pointwise::kSelect, a, &b, &mask, 0);
}

void TensorOps::fill_(const Tensor& tensor, std::int64_t value) {
  on_call("fill_", CallKind::kKernel);
  if (tensor.numel() > 0) {
    PointwiseArgs args;
    args.destination = tensor;
    args.scalar = value;
    run_pointwise(args);
  }
  on_return(tensor);
}

Tensor TensorOps::sum(const Tensor& tensor) {
  on_call("sum", tensor.on_host ? CallKind::kHost : CallKind::kKernel);
  Tensor result;
  if (tensor.on_host) {
    result = host_scalar(host_sum(tensor));
  } else {
    result = make_temporary(1, 1, 0, IntType::kInt64);
    run_row_sums(result, unsqueeze_view(tensor, 0));
  }
  on_return(result);
  return result;
}

Tensor TensorOps::sum_rows(const Tensor& tensor) {
  on_call("sum", CallKind::kKernel);
  const Tensor result = make_temporary(tensor.sizes[0], 1, 1, IntType::kInt64);
  if (result.numel() > 0) run_row_sums(result, tensor);
  on_return(result);
  return result;
}

Tensor TensorOps::pad_front(const Tensor& vector) {
  on_call("pad", CallKind::kKernel);
  const Tensor result = make_temporary(vector.sizes[0] + 1, 1, 1, vector.dtype);
  run_zero(result);
  const Tensor tail = slice_view(result, 0, 1, result.sizes[0]);
  if (tail.numel() > 0) run_copy(tail, vector);
  on_return(result);
  return result;
}

Tensor TensorOps::repeat_interleave(const Tensor& tensor, std::int64_t repeats) {
  on_call("repeat_interleave", CallKind::kKernel);
  const Tensor result =
      make_temporary(tensor.sizes[0] * repeats, tensor.sizes[1], tensor.dims, tensor.dtype);
  if (result.numel() > 0) run_rows(result, tensor, nullptr, repeats);
  on_return(result);
  return result;
}

Tensor TensorOps::sort_rows(const Tensor& keys) {
  on_call("sort", CallKind::kKernel);
  const Tensor values = make_temporary(keys.sizes[0], keys.sizes[1], 2, keys.dtype);
  const Tensor order = make_temporary(keys.sizes[0], keys.sizes[1], 2, IntType::kInt64);
  if (keys.numel() > 0) {
    run_copy(values, keys);
    run_sort_rows(order, values);
  }
  on_return(order);
  return order;
}

Tensor TensorOps::index_rows(const Tensor& source, const Tensor& rows) {
  on_call("index", CallKind::kIndex);
  const Tensor result = make_temporary(rows.sizes[0], source.sizes[1], 2, source.dtype);
  if (result.numel() > 0) {
    const Tensor prepared = prepare_index(rows, rows.sizes[0], 0, &index_blocks_);
    run_rows(result, source, &prepared, 1);
    for (const Block& block : index_blocks_) allocator_.release(block.data, block.bytes);
    index_blocks_.clear();
  }
  on_return(result);
  return result;
}

Tensor TensorOps::gather(const Tensor& source, const Tensor& columns) {
  on_call("gather", CallKind::kKernel);
  const Tensor result = make_temporary(columns.sizes[0], columns.sizes[1], 2, source.dtype);
  if (result.numel() > 0) run_gather_columns(result, source, columns);
  on_return(result);
  return result;
}

void TensorOps::cpu(const Tensor& tensor) {
  on_call("cpu", CallKind::kRead);
  if (tensor.numel() > 0) read_to_host(tensor);
  on_return(tensor);
}

void TensorOps::kv_gather(const KvGatherArgs& args) {
  on_call("create_kv_indices", CallKind::kKernel);
  if (args.batch_size > 0) run_kv_gather(args);
  on_return(vector_tensor(args.kv_indices, IntType::kInt32, args.capacity));
}

void TensorOps::kv_draft_fills(std::span<const KvIndicesArgs> fills) {
  on_call("generate_draft_decode_kv_indices", CallKind::kKernel);
  if (!fills.empty()) run_kv_draft_fills(fills);
  const auto steps = static_cast<std::int64_t>(fills.size());
  const std::int64_t capacity = fills.empty() ? 0 : fills.front().wrapper.capacity;
  on_return(matrix_tensor(fills.empty() ? nullptr : fills.front().wrapper.kv_indices,
                          IntType::kInt32, steps, capacity, capacity));
}

void TensorOps::topk_draft_expand(const TopkDraftArgs& args) {
  on_call("draft_decode_set_expand_metadata", CallKind::kKernel);
  if (args.batch_size > 0) run_topk_draft_expand(args);
  on_return(matrix_tensor(args.expand.page_table, IntType::kInt32, args.expand.rows,
                          args.expand.width, args.expand.page_table_stride));
}

}  // namespace tpjitter::kernels
