// Applies one step's staged inputs.
// Inputs:   the staging buffer of step_inputs.h, on the device.
// Outputs:  req_pool_indices, out_cache_loc, seq_lens [batch_size]; req_to_token, new tokens only.
// Grid:     one thread per row or token write, whichever is more; no two threads write one place.
// Traffic:  the staging buffer once and as much written.
// Limits:   any batch size; capturable, but run eagerly: its argument and copy are the inputs
// stage.
#include <cuda_runtime.h>

#include "kernels/step_inputs.h"

namespace tpjitter::kernels {
namespace {

constexpr int kThreads = 256;

template <class T>
__device__ const T* part(const StepInputsArgs& args, std::size_t offset) {
  return reinterpret_cast<const T*>(args.staging + offset);
}

__global__ void step_inputs_kernel(const StepInputsArgs args) {
  const StagedHeader header = *part<StagedHeader>(args, 0);
  const auto i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < args.layout.batch_size) {
    const bool live = i < args.layout.live_rows;
    args.req_pool_indices[i] = live ? part<std::int64_t>(args, args.layout.req_pool_indices)[i] : 0;
    args.out_cache_loc[i] = live ? part<std::int64_t>(args, args.layout.out_cache_loc)[i] : 0;
    // A length of 0 would give a padded row no page at all, which attention kernels do not accept.
    if (!live) args.seq_lens[i] = 1;
  }
  if (i < header.num_resets) {
    const StagedLengthReset reset = part<StagedLengthReset>(args, args.layout.resets)[i];
    args.seq_lens[reset.row] = reset.seq_len;
  }
  if (i < header.num_writes) {
    const StagedTokenWrite write = part<StagedTokenWrite>(args, args.layout.writes)[i];
    args.req_to_token[write.flat] = write.slot;
  }
}

}  // namespace

int launch_step_inputs(const StepInputsArgs& args, CUstream_st* stream) {
  std::int64_t items = args.layout.batch_size;
  if (args.max_writes > items) items = args.max_writes;
  if (items == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>((items + kThreads - 1) / kThreads);
  step_inputs_kernel<<<blocks, kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace tpjitter::kernels
