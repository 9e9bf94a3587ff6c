// Applies one step's staged inputs, in one kernel or with the scheduler's writes in one of their own.
// Inputs:   the staging buffer of step_inputs.h, on the device.
// Outputs:  req_pool_indices, accept_lens, seq_lens [batch_size]; out_cache_loc [batch_size,
//           query_len]; draft_cache_loc [draft_passes, batch_size]; req_to_token, new tokens only.
// Grid:     a thread per row, location or token write, whichever are most; no two threads write one
//           place.
// Traffic:  the staging buffer once and as much written.
// Limits:   any batch size; capturable, but run eagerly: its argument and copy are the inputs
//           stage.
#include <cuda_runtime.h>

#include "kernels/step_inputs.h"

namespace tpjitter::kernels {
namespace {

constexpr int kThreads = 256;

template <class T>
__device__ const T* part(const StepInputsArgs& args, std::size_t offset) {
  return reinterpret_cast<const T*>(args.staging + offset);
}

// Slot i of the branches, and in the list of the draft pass that writes it: none writes the last one.
__device__ void apply_branches(const StepInputsArgs& args, std::int64_t i) {
  const StagedLayout& layout = args.layout;
  const std::int64_t branches = std::int64_t{layout.batch_size} * layout.topk;
  if (i >= branches * layout.draft_steps) return;
  const std::int64_t branch = i / layout.draft_steps;
  const std::int64_t pass = i % layout.draft_steps;
  const bool live = branch < std::int64_t{layout.live_rows} * layout.topk;
  const std::int64_t slot = live ? part<std::int64_t>(args, layout.draft_cache_loc)[i] : 0;
  args.tree_cache_loc[i] = slot;
  if (pass < layout.draft_passes) {
    args.draft_cache_loc[pass * args.draft_cache_loc_stride + branch] = slot;
  }
}

// Locations: staged for live rows only.
__device__ void apply_locations(const StepInputsArgs& args, std::int64_t i) {
  const StagedLayout& layout = args.layout;
  if (i < std::int64_t{layout.batch_size} * layout.query_len) {
    const bool live = i < std::int64_t{layout.live_rows} * layout.query_len;
    args.out_cache_loc[i] = live ? part<std::int64_t>(args, layout.out_cache_loc)[i] : 0;
  }
  if (layout.topk > 1) return apply_branches(args, i);
  if (i < std::int64_t{layout.batch_size} * layout.draft_passes) {
    const std::int64_t pass = i / layout.batch_size;
    const std::int64_t row = i % layout.batch_size;
    const std::int64_t* staged =
        part<std::int64_t>(args, layout.draft_cache_loc) + pass * layout.live_rows;
    args.draft_cache_loc[pass * args.draft_cache_loc_stride + row] =
        row < layout.live_rows ? staged[row] : 0;
  }
}

__device__ void apply_write(const StepInputsArgs& args, const StagedHeader& header,
                            std::int64_t i) {
  if (args.req_to_token == nullptr || i >= header.num_writes) return;
  const StagedTokenWrite write = part<StagedTokenWrite>(args, args.layout.writes)[i];
  args.req_to_token[write.flat] = write.slot;
}

__global__ void step_inputs_kernel(const StepInputsArgs args) {
  const StagedHeader header = *part<StagedHeader>(args, 0);
  const auto i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < args.layout.batch_size) {
    const bool live = i < args.layout.live_rows;
    args.req_pool_indices[i] = live ? part<std::int64_t>(args, args.layout.req_pool_indices)[i] : 0;
    // A length of 0 would give a padded row no page at all, which attention kernels do not accept.
    if (!live) args.seq_lens[i] = 1;
    if (args.layout.draft_passes > 0) {
      args.accept_lens[i] =
          live ? part<std::int32_t>(args, args.layout.accept_lens)[i] : args.layout.query_len;
    }
  }
  apply_locations(args, i);
  if (i < header.num_resets) {
    const StagedLengthReset reset = part<StagedLengthReset>(args, args.layout.resets)[i];
    args.seq_lens[reset.row] = reset.seq_len;
  }
  apply_write(args, header, i);
}

__global__ void token_writes_kernel(const StepInputsArgs args) {
  apply_write(args, *part<StagedHeader>(args, 0),
              static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x);
}

__global__ void runner_inputs_kernel(const RunnerInputsArgs args) {
  const auto i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= args.batch_size) return;
  const bool live = i < args.live_rows;
  const std::int32_t length = live ? args.seq_lens[i] + args.counted : 1;
  if (args.lengths_type == IntType::kInt64) {
    static_cast<std::int64_t*>(args.lengths)[i] = length;
  } else {
    static_cast<std::int32_t*>(args.lengths)[i] = length;
  }
  if (live && args.pool_rows != nullptr) args.pool_rows[i] = args.req_pool_indices[i];
  if (args.accepts != nullptr) args.accepts[i] = live ? args.accept_lens[i] : args.padded_accept;
}

unsigned blocks_for(std::int64_t items) {
  return static_cast<unsigned>((items + kThreads - 1) / kThreads);
}

}  // namespace

int launch_step_inputs(const StepInputsArgs& args, CUstream_st* stream) {
  const StagedLayout& layout = args.layout;
  const std::int32_t draft_slots =
      layout.topk > 1 ? layout.topk * layout.draft_steps : layout.draft_passes;
  const std::int64_t a_row = layout.query_len > draft_slots ? layout.query_len : draft_slots;
  std::int64_t items = layout.batch_size * a_row;
  if (args.req_to_token != nullptr && args.max_writes > items) items = args.max_writes;
  if (items == 0) return cudaSuccess;
  step_inputs_kernel<<<blocks_for(items), kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

int launch_token_writes(const StepInputsArgs& args, CUstream_st* stream) {
  if (args.max_writes == 0) return cudaSuccess;
  token_writes_kernel<<<blocks_for(args.max_writes), kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

int launch_runner_inputs(const RunnerInputsArgs& args, CUstream_st* stream) {
  if (args.batch_size == 0) return cudaSuccess;
  runner_inputs_kernel<<<blocks_for(args.batch_size), kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace tpjitter::kernels
