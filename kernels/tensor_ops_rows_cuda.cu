// The GPU side of tensor_ops_rows.cpp: elementwise functions of two sources, whole rows, column
// gathers, row sums and the order of short rows; and the custom kernels among the operations.
// Source:  the kernels that PyTorch launches for the same calls; written anew, with the same number
//          of launches. The order of a row is counted (a tree's row has at most 64 keys, which
//          differ), not sorted.
// Grid:    a column block by rows; sums a block a row.
// Limits:  capturable but for cpu(); 64-bit offsets; no range checks.
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/metadata_kv_indices_ops.h"
#include "kernels/metadata_topk.h"
#include "kernels/tensor_elements.cuh"
#include "kernels/tensor_ops_cuda.h"

namespace tpjitter::kernels {
namespace {

__device__ std::int64_t at(const Tensor& tensor, std::int64_t row, std::int64_t column) {
  return load_element(tensor, element_offset(tensor, row, column));
}

__device__ std::int64_t modulo(std::int64_t value, std::int64_t divisor) {
  const std::int64_t rest = value % divisor;
  return rest != 0 && (rest < 0) != (divisor < 0) ? rest + divisor : rest;
}

__device__ std::int64_t apply(const PointwiseArgs& args, std::int64_t row, std::int64_t column) {
  switch (args.function) {
    case Pointwise::kFill:
      return args.scalar;
    case Pointwise::kAdd:
      return at(args.a, row, column) + at(args.b, row, column);
    case Pointwise::kSubtract:
      return at(args.a, row, column) - at(args.b, row, column);
    case Pointwise::kMinimum:
      return min(at(args.a, row, column), args.scalar);
    case Pointwise::kRemainder:
      return modulo(at(args.a, row, column), args.scalar);
    case Pointwise::kSelect:
      return at(args.mask, row, column) != 0 ? at(args.a, row, column) : at(args.b, row, column);
  }
  return 0;
}

__global__ void __launch_bounds__(kTensorThreads)
    pointwise_kernel(const __grid_constant__ PointwiseArgs args) {
  const Tensor& to = args.destination;
  const std::int64_t column = std::int64_t{blockIdx.x} * kTensorThreads + threadIdx.x;
  if (column >= to.sizes[1]) return;  // tail of the last column block
  for (std::int64_t row = blockIdx.y; row < to.sizes[0]; row += gridDim.y) {
    store_element(to, element_offset(to, row, column), apply(args, row, column));
  }
}

// Entries of a vector spread over the threads, rows of a matrix over the blocks.
template <bool kVector>
__global__ void __launch_bounds__(kTensorThreads)
    rows_kernel(Tensor destination, Tensor source, Tensor rows, bool indexed,
                std::int64_t repeats) {
  const std::int64_t thread = std::int64_t{blockIdx.x} * kTensorThreads + threadIdx.x;
  const std::int64_t column = kVector ? 0 : thread;
  if (column >= destination.sizes[1]) return;
  const std::int64_t step = kVector ? std::int64_t{gridDim.x} * kTensorThreads : gridDim.y;
  for (std::int64_t row = kVector ? thread : blockIdx.y; row < destination.sizes[0]; row += step) {
    std::int64_t from = row / repeats;
    if (indexed) {
      from = at(rows, row, 0);
      if (from < 0) from += source.sizes[0];  // PyTorch's wrap
    }
    store_element(destination, element_offset(destination, row, column), at(source, from, column));
  }
}

__global__ void __launch_bounds__(kTensorThreads)
    gather_columns_kernel(Tensor destination, Tensor source, Tensor columns) {
  const std::int64_t column = std::int64_t{blockIdx.x} * kTensorThreads + threadIdx.x;
  if (column >= destination.sizes[1]) return;
  for (std::int64_t row = blockIdx.y; row < destination.sizes[0]; row += gridDim.y) {
    store_element(destination, element_offset(destination, row, column),
                  at(source, row, at(columns, row, column)));
  }
}

__global__ void __launch_bounds__(kTensorThreads) number_kernel(Tensor destination) {
  const std::int64_t column = std::int64_t{blockIdx.x} * kTensorThreads + threadIdx.x;
  if (column >= destination.sizes[1]) return;
  for (std::int64_t row = blockIdx.y; row < destination.sizes[0]; row += gridDim.y) {
    store_element(destination, element_offset(destination, row, column), column);
  }
}

__global__ void __launch_bounds__(kTensorThreads) order_kernel(Tensor destination, Tensor keys) {
  const std::int64_t column = std::int64_t{blockIdx.x} * kTensorThreads + threadIdx.x;
  if (column >= keys.sizes[1]) return;
  for (std::int64_t row = blockIdx.y; row < keys.sizes[0]; row += gridDim.y) {
    const std::int64_t own = at(keys, row, column);
    std::int64_t place = 0;
    for (std::int64_t other = 0; other < keys.sizes[1]; ++other) {
      place += at(keys, row, other) < own ? 1 : 0;
    }
    store_element(destination, element_offset(destination, row, place), column);
  }
}

__global__ void __launch_bounds__(kTensorThreads)
    row_sums_kernel(Tensor destination, Tensor source) {
  __shared__ std::int64_t warp_sums[kTensorThreads / 32];
  for (std::int64_t row = blockIdx.x; row < source.sizes[0]; row += gridDim.x) {
    std::int64_t sum = 0;
    for (std::int64_t column = threadIdx.x; column < source.sizes[1]; column += kTensorThreads) {
      sum += at(source, row, column);
    }
    for (int distance = 16; distance > 0; distance /= 2) {
      sum += __shfl_down_sync(0xffffffffu, sum, distance);
    }
    if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int warp = 1; warp < kTensorThreads / 32; ++warp) sum += warp_sums[warp];
      store_element(destination, row * destination.strides[0], sum);
    }
    __syncthreads();  // before the next row's sums
  }
}

}  // namespace

void CudaTensorOps::run_pointwise(const PointwiseArgs& args) {
  const bool is_vector = args.destination.sizes[1] == 1;
  PointwiseArgs laid = args;
  laid.destination = along_columns(args.destination, is_vector);
  laid.a = along_columns(args.a, is_vector);
  laid.b = along_columns(args.b, is_vector);
  laid.mask = along_columns(args.mask, is_vector);
  pointwise_kernel<<<grid_of(laid.destination), kTensorThreads, 0, stream_>>>(laid);
  keep(cudaGetLastError());
}

void CudaTensorOps::run_rows(const Tensor& destination, const Tensor& source, const Tensor* rows,
                             std::int64_t repeats) {
  const Tensor index = rows == nullptr ? destination : *rows;
  const bool is_vector = destination.sizes[1] == 1;
  const dim3 grid = grid_of(along_columns(destination, is_vector));
  if (is_vector) {
    rows_kernel<true><<<grid, kTensorThreads, 0, stream_>>>(destination, source, index,
                                                            rows != nullptr, repeats);
  } else {
    rows_kernel<false><<<grid, kTensorThreads, 0, stream_>>>(destination, source, index,
                                                             rows != nullptr, repeats);
  }
  keep(cudaGetLastError());
}

void CudaTensorOps::run_gather_columns(const Tensor& destination, const Tensor& source,
                                       const Tensor& columns) {
  gather_columns_kernel<<<grid_of(destination), kTensorThreads, 0, stream_>>>(destination, source,
                                                                              columns);
  keep(cudaGetLastError());
}

void CudaTensorOps::run_row_sums(const Tensor& destination, const Tensor& source) {
  const auto blocks = static_cast<unsigned>(std::min<std::int64_t>(source.sizes[0], 1024));
  row_sums_kernel<<<blocks, kTensorThreads, 0, stream_>>>(destination, source);
  keep(cudaGetLastError());
}

void CudaTensorOps::run_sort_rows(const Tensor& destination, const Tensor& keys) {
  number_kernel<<<grid_of(destination), kTensorThreads, 0, stream_>>>(destination);
  keep(cudaGetLastError());
  order_kernel<<<grid_of(keys), kTensorThreads, 0, stream_>>>(destination, keys);
  keep(cudaGetLastError());
}

void CudaTensorOps::run_kv_gather(const KvGatherArgs& args) {
  keep(launch_kv_gather(args, stream_));
}

void CudaTensorOps::run_kv_draft_fills(std::span<const KvIndicesArgs> fills) {
  keep(launch_kv_indices(fills, stream_));
}

void CudaTensorOps::run_topk_draft_expand(const TopkDraftArgs& args) {
  keep(launch_topk_draft_expand(args, stream_));
}

void CudaTensorOps::read_to_host(const Tensor& tensor) {
  // Rows of a matrix need not touch; PyTorch copies such a view together first, one kernel more.
  const auto rows = static_cast<std::size_t>(tensor.dims == 2 ? tensor.sizes[0] : 1);
  const std::size_t width = tensor.bytes() / rows;
  if (host_copy_.size() < tensor.bytes()) host_copy_.resize(tensor.bytes());
  const auto pitch = static_cast<std::size_t>(tensor.strides[0] * tensor.element_bytes());
  keep(cudaMemcpy2DAsync(host_copy_.data(), width, tensor.data, rows > 1 ? pitch : width, width,
                         rows, cudaMemcpyDeviceToHost, stream_));
  keep(cudaStreamSynchronize(stream_));
}

}  // namespace tpjitter::kernels
