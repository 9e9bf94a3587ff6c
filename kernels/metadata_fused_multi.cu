// Rebuilds the decode attention metadata of several phases of a step in one launch.
// Replaces: a launch of the fused kernel for each draft pass and for target-verify.
// Source:   none: the engines launch once a phase. The draft passes and target-verify read lengths and
//           slots that are there when the step begins; draft-extend reads what verify accepted and
//           stays a launch of its own.
// Inputs, outputs, sums, limits: metadata_fused.cu, for each phase.
// Grid:     z = phase; x, y = the largest grid of any phase, of which each uses its own part. Pages
//           per thread follow from all phases' blocks together.
// Traffic:  that of the phases. They gather from the same rows of req_to_token, from L2 but once.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "kernels/metadata_fused.cuh"
#include "kernels/metadata_fused_multi.h"

namespace tpjitter::kernels {
namespace {

// Six blocks a multiprocessor: at eight, 32 registers, the two forms of rows in one kernel spill.
template <bool kLive, int kPagesPerThread>
__global__ void __launch_bounds__(kMetadataThreads, 6)
    fused_multi_kernel(const __grid_constant__ FusedMultiParams params) {
  cudaTriggerProgrammaticLaunchCompletion();  // as fused_metadata_kernel
  const FusedMetadataParams& phase = params.phases[blockIdx.z];
  const auto column = static_cast<std::int32_t>(blockIdx.x);
  if (column < phase.extra_columns) {
    write_extras(phase);
  } else if (column < phase.extra_columns + phase.args.batch_size) {
    if (phase.args.swa_page_table != nullptr) {
      write_pages<true, kLive, kPagesPerThread>(phase);
    } else {
      write_pages<false, kLive, kPagesPerThread>(phase);
    }
  }
}

template <bool kLive>
const void* kernel_for(std::int32_t pages_per_thread) {
  switch (pages_per_thread) {
    case 1:
      return reinterpret_cast<const void*>(&fused_multi_kernel<kLive, 1>);
    case 2:
      return reinterpret_cast<const void*>(&fused_multi_kernel<kLive, 2>);
    default:
      return reinterpret_cast<const void*>(&fused_multi_kernel<kLive, 4>);
  }
}

}  // namespace

int prepare_fused_multi(std::span<const DecodeMetadataArgs> rebuilds, FusedMultiLaunch* launch) {
  *launch = {};
  if (rebuilds.size() > kMaxFusedPhases) return cudaErrorInvalidValue;
  const std::int32_t pages_per_thread = metadata_pages_per_thread(rebuilds);
  for (const DecodeMetadataArgs& args : rebuilds) {
    if (args.page_columns != rebuilds.front().page_columns) return cudaErrorInvalidValue;
    FusedMetadataLaunch alone;
    const int status = prepare_fused_metadata(args, &alone);
    if (status != cudaSuccess) return status;
    if (alone.kernel == nullptr) continue;  // no rows
    launch->params.phases[launch->phases++] = alone.params;
    const auto parts = static_cast<std::uint32_t>(row_parts(args, pages_per_thread));
    launch->grid_y = std::max(launch->grid_y, parts);
  }
  if (launch->phases == 0) return cudaSuccess;
  for (std::uint32_t i = 0; i < launch->phases; ++i) {
    FusedMetadataParams& phase = launch->params.phases[i];
    phase.extra_columns = metadata_extra_columns(phase.args, launch->grid_y);
    const auto columns = static_cast<std::uint32_t>(phase.extra_columns + phase.args.batch_size);
    launch->grid_x = std::max(launch->grid_x, columns);
  }
  const bool live = rebuilds.front().page_columns == PageColumns::kLive;
  launch->kernel = live ? kernel_for<true>(pages_per_thread) : kernel_for<false>(pages_per_thread);
  return cudaSuccess;
}

int launch_fused_multi(const FusedMultiLaunch& launch, CUstream_st* stream) {
  if (launch.kernel == nullptr) return cudaSuccess;
  void* arguments[] = {const_cast<FusedMultiParams*>(&launch.params)};
  return cudaLaunchKernel(launch.kernel, dim3(launch.grid_x, launch.grid_y, launch.phases),
                          dim3(kMetadataThreads), arguments, 0, stream);
}

}  // namespace tpjitter::kernels
