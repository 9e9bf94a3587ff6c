// The gather kernel of the op-by-op forms: prefix sums and lengths are there already.
// Replaces: the per-row index kernel of FlashInfer backends; with full_to_swa also the translation
//           of a slice whose length only the device knows.
// Source:   SGLang, create_flashinfer_kv_indices_triton: a block of 512 tokens a loop walks its row.
//           Differs: more than one block may share a row, slots may be translated, and the capacity
//           of kv_indices is a guard.
// Inputs:   lens, req_pool_indices, kv_start_idx int32 or int64 [batch_size]; kv_indptr int32.
// Outputs:  kv_indices int32; nothing past the rows' entries, nothing past the capacity.
// Grid:     x = row, y = blocks a row.
// Traffic:  entries * (4 read + 4 written), translated 8 read more; 16 to 28 bytes a block.
// Limits:   any batch size; positions in 64 bits; capturable; no host sync.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "kernels/metadata_kv_indices_ops.h"
#include "kernels/metadata_pages.cuh"

namespace tpjitter::kernels {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kBlockTokens = 512;      // of a block's loop, as in the engine
constexpr std::int64_t kResidentBlocks = 1056;  // of 256 threads, on an H200

__global__ void __launch_bounds__(kThreads)
    kv_gather_kernel(const __grid_constant__ KvGatherArgs args) {
  const std::int64_t row = blockIdx.x;
  const std::int64_t pool_row = load_int(args.req_pool_indices, args.req_pool_indices_type, row);
  const std::int64_t begin = __ldg(args.kv_indptr + row);
  const std::int64_t length = min(load_int(args.lens, args.lens_type, row), args.capacity - begin);
  const std::int64_t start =
      args.kv_start_idx == nullptr ? 0 : load_int(args.kv_start_idx, args.kv_start_idx_type, row);
  if (begin < 0) return;  // wrapped prefix sums: nothing that could be right
  const std::int32_t* slots = args.req_to_token + pool_row * args.req_to_token_stride;
  std::int32_t* out = args.kv_indices + begin;
  const std::int64_t stride = std::int64_t{gridDim.y} * kThreads;
  for (std::int64_t j = std::int64_t{blockIdx.y} * kThreads + threadIdx.x; j < length;
       j += stride) {
    const std::int64_t column = start + j;
    std::int32_t slot = -1;  // past the request's row
    if (column >= 0 && column < args.req_to_token_stride) slot = __ldg(slots + column);
    if (args.full_to_swa != nullptr) {
      slot = slot < 0 ? -1 : static_cast<std::int32_t>(__ldg(args.full_to_swa + slot));
    }
    out[j] = slot;
  }
}

}  // namespace

int launch_kv_gather(const KvGatherArgs& args, CUstream_st* stream) {
  if (args.batch_size == 0) return cudaSuccess;
  const bool valid = args.batch_size > 0 && args.req_pool_indices != nullptr &&
                     args.lens != nullptr && args.kv_indptr != nullptr &&
                     args.req_to_token != nullptr &&
                     (args.kv_indices != nullptr || args.capacity <= 0);
  if (!valid) return cudaErrorInvalidValue;
  std::int64_t blocks = args.blocks_per_row;
  if (blocks < 1) {
    const std::int64_t longest = (args.req_to_token_stride + kBlockTokens - 1) / kBlockTokens;
    blocks = std::clamp<std::int64_t>(longest, 1,
                                      std::max<std::int64_t>(kResidentBlocks / args.batch_size, 1));
  }
  const dim3 grid(static_cast<unsigned>(args.batch_size), static_cast<unsigned>(blocks));
  kv_gather_kernel<<<grid, kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace tpjitter::kernels
