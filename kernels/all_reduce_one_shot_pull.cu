// One-shot all-reduce by reading: a start barrier per block, then each rank reads every rank's
// whole input and sums it.
// Source:   the one-stage kernels of vLLM (csrc/custom_all_reduce.cuh) and SGLang v1; release and
//           acquire at system scope instead of volatile accesses, no end barrier, stamps.
// Inputs:   the ranks' inputs of this parity; flags and epochs as all_reduce.h says. An epoch is a
//           32-bit counter in device memory, one a block, so that a replayed graph goes on
//           counting; it wraps and is never reset.
// Outputs:  output [bytes / 2] bf16 = sum in rank order.
// Grid:     up to 36 blocks of 512 threads, vLLM's choice.
// Traffic:  ranks * bytes read (all but one part over NVLink) + bytes written.
// Limits:   1 to 8 ranks, multiples of 16 bytes to 8 MiB; capturable; no host sync. All blocks of
//           all ranks must be resident together when ranks share a GPU.
//
// Why two alternating inputs replace the end barrier: a peer may still read input n when this rank
// is done with all-reduce n. But this rank overwrites that buffer only for all-reduce n + 2, which
// its stream starts after its all-reduce n + 1 has ended, and no all-reduce of any kernel ends
// before every peer has begun it, that is before the peer's all-reduce n has ended (stream order;
// with programmatic launch each kernel waits for the end of the one before it first).
#include "kernels/all_reduce.cuh"

namespace tpjitter::kernels {
namespace {

template <int kRanks, bool kStamped>
__global__ void __launch_bounds__(kMaxAllReduceThreads)
    one_shot_pull_kernel(const __grid_constant__ AllReduceArgs args) {
  begin_all_reduce(args.pdl);
  using Barrier = StartBarrier<kRanks, kStamped>;
  __shared__ typename Barrier::Shared shared;
  Barrier barrier(args, shared);
  if (!barrier.pass()) return;
  barrier.keep_epoch();
  auto* output = static_cast<uint4*>(args.output);
  reduce_inputs<kRanks>(args, 0, args.bytes / 16,
                        [&](std::int64_t i, const uint4& sum) { output[i] = sum; });
  if constexpr (kStamped) barrier.stamp();
}

struct OneShotPull {
  using Args = AllReduceArgs;
  static const Args& args(const AllReduceArgs& args) { return args; }
  static constexpr bool kWarpPerPeer = true;
  static constexpr AllReduceGrid kGrids[] = {{kMaxAllReduceBytes, 36, 512}};
  template <int kRanks, bool kStamped>
  static constexpr auto kernel() {
    return one_shot_pull_kernel<kRanks, kStamped>;
  }
};

}  // namespace

int launch_one_shot_pull(const AllReduceArgs& args, CUstream_st* stream) {
  return launch_all_reduce<OneShotPull>(args, args.bytes / 16, stream);
}

}  // namespace tpjitter::kernels
