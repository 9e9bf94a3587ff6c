// The decode body of decode_body.h: attention stand-in, load, head, accept.
// Source:   our own; the order of a layer (attention, all-reduce, MLP, all-reduce) is that of a
//           tensor-parallel decoder.
// Inputs:   the rebuilt metadata; [elements] bf16 of the previous all-reduce.
// Outputs:  the next all-reduce's input; KV slots; sums into state->checksum, whose value does not
//           depend on the order because addition modulo 2^64 does not.
// Grid:     a block per batch row or per 2048 all-reduce elements, whichever is more, 128 at most:
//           resident together, so that a load kernel lasts its duration and not a multiple.
// Traffic:  live page ids * 4 bytes and all_reduce_elements * 4 bytes a kernel.
// Limits:   any batch size; capturable; no host sync. Values of padded rows are folded too.
#include <cuda_runtime.h>

#include "kernels/decode_body.cuh"

namespace tpjitter::kernels {
namespace {

__global__ void __launch_bounds__(kBodyThreads)
    load_kernel(const DecodeBodyCommon args, const int layer) {
  begin_kernel(args.pdl);
  const std::int64_t begin_ns = globaltimer_ns();
  if (block_aborted(args.guard)) return;
  const int ordinal = layer * kAllReducesPerLayer;
  const std::uint64_t sum = fold_reduced(args, ordinal);
  write_all_reduce_input(args, ordinal + 1);
  add_to_checksum(args.state, sum);
  if (threadIdx.x != 0) return;
  const std::int64_t limit_ns = min(args.layer_ns, args.guard.deadline_ns);
  for (std::uint32_t spins = 1; globaltimer_ns() - begin_ns < limit_ns; ++spins) {
    if (spins % kSpinsPerCheck == 0 && aborted(args.guard)) return;
  }
}

__global__ void empty_kernel(const bool pdl) { begin_kernel(pdl); }

__global__ void __launch_bounds__(kBodyThreads)
    fill_kernel(std::uint32_t* words, const std::uint32_t value, const std::int64_t count) {
  const std::int64_t i = first_element();
  if (i < count) words[i] = value;
}

__global__ void __launch_bounds__(kBodyThreads) head_kernel(const DecodeBodyCommon args) {
  begin_kernel(args.pdl);
  if (block_aborted(args.guard)) return;
  const int last = args.shape.layers * kAllReducesPerLayer - 1;
  add_to_checksum(args.state, fold_reduced(args, last));
}

// Moves the batch on by the accepted tokens and tells the host. Whole block.
__device__ void accept_step(const AcceptArgs& args, bool stop) {
  DecodeBodyState& state = *args.state;
  const std::int64_t step = state.step;
  std::uint64_t accepted = 0;
  for (std::int32_t row = static_cast<std::int32_t>(threadIdx.x); row < args.live_rows && !stop;
       row += kBodyThreads) {
    const std::int32_t tokens = accepted_tokens(args.seed, step, row);
    args.seq_lens[row] += tokens;
    accepted += static_cast<std::uint64_t>(tokens);
  }
  accepted = block_sum(accepted);  // every thread has read `step` by then
  if (threadIdx.x != 0) return;
  args.result->checksum = state.checksum;
  args.result->accepted_tokens = static_cast<std::int64_t>(accepted);
  args.result->abort = stop ? 1u : 0u;
  __threadfence_system();
  *const_cast<volatile std::int64_t*>(&args.result->step) = step + 1;
  state.step = step + 1;
}

__global__ void __launch_bounds__(kBodyThreads) accept_kernel(const AcceptArgs args) {
  begin_kernel(args.pdl);
  const bool stop = block_aborted(args.guard);
  if (args.end_of_step) accept_step(args, stop);
  if (threadIdx.x != 0) return;
  DecodeBodyState& state = *args.state;
  if (args.ring.graphs != nullptr) {
    GraphStamp& stamp = args.ring.graphs[state.ring_entry];
    stamp.replay = state.replay + 1;
    stamp.checksum = state.checksum;
    stamp.end_ns = globaltimer_ns();
  }
  state.replay += 1;
  state.ring_entry = state.ring_entry + 1 == args.ring.capacity ? 0 : state.ring_entry + 1;
  state.checksum = 0;
}

}  // namespace

int launch_load(const DecodeBodyCommon& args, int layer, CUstream_st* stream) {
  return launch_kernel(load_kernel, blocks_of(args), kBodyThreads, args.pdl, stream, args, layer);
}

int launch_empty_node(CUstream_st* stream, bool pdl) {
  return launch_kernel(empty_kernel, 1, 32, pdl, stream, pdl);
}

int launch_fill(void* words, std::uint32_t value, std::int64_t count, CUstream_st* stream) {
  if (count <= 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>((count + kBodyThreads - 1) / kBodyThreads);
  return launch_kernel(fill_kernel, blocks, kBodyThreads, false, stream,
                       static_cast<std::uint32_t*>(words), value, count);
}

int launch_head(const DecodeBodyCommon& args, CUstream_st* stream) {
  return launch_kernel(head_kernel, blocks_of(args), kBodyThreads, args.pdl, stream, args);
}

int launch_accept(const AcceptArgs& args, CUstream_st* stream) {
  return launch_kernel(accept_kernel, 1, kBodyThreads, args.pdl, stream, args);
}

}  // namespace tpjitter::kernels
