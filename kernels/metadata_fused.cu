// Rebuilds decode attention metadata in one launch.
// Replaces: the 7 to 17 launches of the aten path (same outputs on live columns, bit for bit, but
//           that a negative slot truncates to page 0 here and floors to page -1 there).
// Source:   SGLang, trtllm_mha_graph_metadata.py, update_trtllm_mha_graph_metadata_kernel (Triton).
//           Differs: rows are split over blocks (there one block a row), prefix sums of any batch
//           size, and live columns only on demand.
// Inputs:   seq_lens, req_pool_indices, q_lens [batch_size] int32 or int64; req_to_token
//           [pool, req_to_token_stride] int32; full_to_swa int64; out_cache_loc int64.
// Outputs:  cache_seqlens, cu_seqlens_k[1:], cu_seqlens_q[1:], page_table, swa_page_table int32;
//           swa_out_cache_loc int64. See decode_metadata.h.
// Grid:     metadata_grid.h: a block for the prefix sums and the lengths, one for each 256 entries
//           of swa_out_cache_loc, one for each 256, 512 or 1024 pages of a row. Small shapes are
//           bound by the chain request index, slot, mapping; large ones by random 64-byte DRAM
//           accesses: both want every load of a thread in flight before its first use.
// Traffic:  pages * (4 read + 4 written), with SWA pages * (8 read + 4 written) more, where pages is
//           batch_size * max_seq_pages or the live ones; 12 to 24 bytes a request; 16 a swa_out
//           entry. From page size 8 on each slot lies in a 32-byte sector of its own. By ncu on an
//           H200 at batch 64, context 131072, page 16 with SWA: 55 MB read from DRAM for the 6.3 MB
//           that are used, 61 % of its bandwidth with 89 % of the warps active; 2.4 MB written
//           there, the rest stays in L2.
// SASS:     sm_90: 32 registers, no spills; the slot loads of a thread are issued before the first
//           is used, then all its mapping loads, then the stores.
// Limits:   any batch_size; capturable; no host sync; page_size a power of two. With kLive entries
//           at or past a row's page count keep their value.
#include <cuda_runtime.h>

#include <bit>
#include <cstdint>

#include "kernels/metadata_fused.cuh"

namespace tpjitter::kernels {
namespace {

// Eight blocks a multiprocessor: 32 registers, full occupancy, which is what hides the gather.
template <bool kHasSwa, bool kLive, int kPagesPerThread>
__global__ void __launch_bounds__(kMetadataThreads, 8)
    fused_metadata_kernel(const __grid_constant__ FusedMetadataParams params) {
  // A consumer that was launched programmatically may come up now; it waits for this kernel's end
  // before it reads. So the way from the graph's first node to its second hides behind this one.
  cudaTriggerProgrammaticLaunchCompletion();
  if (static_cast<std::int32_t>(blockIdx.x) >= params.extra_columns) {
    write_pages<kHasSwa, kLive, kPagesPerThread>(params);
    return;
  }
  write_extras(params);
}

template <bool kHasSwa, bool kLive>
const void* kernel_for(std::int32_t pages_per_thread) {
  switch (pages_per_thread) {
    case 1:
      return reinterpret_cast<const void*>(&fused_metadata_kernel<kHasSwa, kLive, 1>);
    case 2:
      return reinterpret_cast<const void*>(&fused_metadata_kernel<kHasSwa, kLive, 2>);
    default:
      return reinterpret_cast<const void*>(&fused_metadata_kernel<kHasSwa, kLive, 4>);
  }
}

const void* kernel_for(const DecodeMetadataArgs& args, std::int32_t pages_per_thread) {
  const bool live = args.page_columns == PageColumns::kLive;
  if (args.swa_page_table != nullptr) {
    return live ? kernel_for<true, true>(pages_per_thread)
                : kernel_for<true, false>(pages_per_thread);
  }
  return live ? kernel_for<false, true>(pages_per_thread)
              : kernel_for<false, false>(pages_per_thread);
}

bool is_valid(const DecodeMetadataArgs& args) {
  if (args.batch_size < 0 || args.max_seq_pages < 0 || args.page_size < 1) return false;
  if (!std::has_single_bit(static_cast<std::uint32_t>(args.page_size))) return false;
  if (args.q_mode != QueryMode::kPreset && args.cu_seqlens_q == nullptr) return false;
  if (args.q_mode == QueryMode::kCumsum && args.q_lens == nullptr) return false;
  const bool translates = args.swa_page_table != nullptr ||
                          (args.swa_out_cache_loc != nullptr && args.out_cache_loc != nullptr);
  return !translates || args.full_to_swa != nullptr;
}

}  // namespace

int prepare_fused_metadata(const DecodeMetadataArgs& args, FusedMetadataLaunch* launch) {
  *launch = {};
  if (args.batch_size == 0) return cudaSuccess;  // whatever else the arguments say
  if (!is_valid(args)) return cudaErrorInvalidValue;
  const MetadataGrid grid = metadata_grid(args);
  launch->params.args = args;
  launch->params.page_shift = std::countr_zero(static_cast<std::uint32_t>(args.page_size));
  launch->params.extra_columns = grid.extra_columns;
  launch->grid_x = grid.x;
  launch->grid_y = grid.y;  // past 65535 (64 M pages) the launch itself fails
  launch->kernel = kernel_for(args, grid.pages_per_thread);
  return cudaSuccess;
}

int launch_fused_metadata(const FusedMetadataLaunch& launch, CUstream_st* stream) {
  if (launch.kernel == nullptr) return cudaSuccess;
  void* arguments[] = {const_cast<FusedMetadataParams*>(&launch.params)};
  return cudaLaunchKernel(launch.kernel, dim3(launch.grid_x, launch.grid_y), dim3(kMetadataThreads),
                          arguments, 0, stream);
}

int launch_fused_metadata(const DecodeMetadataArgs& args, CUstream_st* stream) {
  FusedMetadataLaunch launch;
  const int status = prepare_fused_metadata(args, &launch);
  return status != cudaSuccess ? status : launch_fused_metadata(launch, stream);
}

}  // namespace tpjitter::kernels
