// State slots and query starts of linear-attention layers in one launch.
// Replaces: index, fill_ and two or three copies of the op-by-op path.
// Source:   SGLang's later versions do the same in one kernel; written from its description.
// Inputs:   req_pool_indices int32 or int64 [batch_size]; mapping int32 [mapping_len].
// Outputs:  state_indices int32 [batch_size]; query_start_loc int32 [batch_size + 1]; where asked
//           for, zeros in req_pool_indices of the padded rows.
// Grid:     a thread a row and one more.
// Traffic:  16 to 20 bytes a row.
// Limits:   any batch size; capturable; no host sync. An index outside of the mapping gives -1.
#include <cuda_runtime.h>

#include "kernels/linear_state.h"
#include "kernels/metadata_pages.cuh"

namespace tpjitter::kernels {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    linear_state_kernel(const __grid_constant__ LinearStateArgs args) {
  const std::int32_t row = static_cast<std::int32_t>(blockIdx.x * kThreads + threadIdx.x);
  const std::int32_t live = args.batch_size - args.num_padding;
  if (row > args.batch_size) return;
  args.query_start_loc[row] = min(row, live) * args.query_len;
  if (row == args.batch_size) return;
  std::int32_t state = kPaddedState;
  if (row < live) {
    const std::int64_t pool_row = load_int(args.req_pool_indices, args.req_pool_indices_type, row);
    if (pool_row >= 0 && pool_row < args.mapping_len) state = __ldg(args.mapping + pool_row);
  } else if (args.zero_padded_requests) {
    if (args.req_pool_indices_type == IntType::kInt64) {
      static_cast<std::int64_t*>(args.req_pool_indices)[row] = 0;
    } else {
      static_cast<std::int32_t*>(args.req_pool_indices)[row] = 0;
    }
  }
  args.state_indices[row] = state;
}

}  // namespace

int launch_linear_state(const LinearStateArgs& args, CUstream_st* stream) {
  if (args.batch_size == 0) return cudaSuccess;
  if (!is_valid(args)) return cudaErrorInvalidValue;
  const auto blocks = static_cast<unsigned>(args.batch_size / kThreads + 1);
  linear_state_kernel<<<blocks, kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace tpjitter::kernels
