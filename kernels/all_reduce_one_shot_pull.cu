// One-shot all-reduce by reading: a start barrier per block, then each rank reads every rank's
// whole input and sums it.
// Source:   the one-stage kernels of vLLM (csrc/custom_all_reduce.cuh) and SGLang v1; release and
//           acquire at system scope instead of volatile accesses, no end barrier, stamps.
// Inputs:   inputs[p] [bytes / 2] bf16 of rank p; flags and epochs as all_reduce.h says.
// Outputs:  output [bytes / 2] bf16 = sum in rank order, accumulated in fp32: the same bits on
//           every rank.
// Grid:     min(max_blocks, ceil(bytes / 16 / threads)) blocks; warp p's lane 0 talks to peer p, so
//           that no peer's stamp waits for another peer's flag.
// Traffic:  world_size * bytes read (all but one part over NVLink) + bytes written.
// Limits:   1 to 8 ranks, multiples of 16 bytes to 8 MiB; capturable; no host sync. All blocks of
//           all ranks must be resident together when ranks share a GPU.
//
// Why two alternating inputs replace the end barrier: a peer may still read input n when this rank
// is done with all-reduce n. But this rank overwrites that buffer only for all-reduce n + 2, which
// its stream starts after its all-reduce n + 1 has passed its barrier, and a peer sends its flag of
// n + 1 only after its own all-reduce n has ended (stream order; one all-reduce in flight per
// communicator; no programmatic dependent launch, which would break this).
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "kernels/all_reduce.h"
#include "kernels/spin.cuh"

namespace tpjitter::kernels {
namespace {

constexpr int kMaxThreads = 512;

struct Arrival {
  std::int64_t seen_ns = 0;
  bool waited = false;
  bool stop = false;  // aborted or past the deadline
};

// Polls peer's flag until it has reached `epoch`. The stamp is read in the iteration that saw it.
template <bool kStamped>
__device__ __forceinline__ Arrival wait_for_peer(const AllReduceArgs& args, int peer,
                                                 std::uint32_t epoch) {
  const std::uint32_t* flag = args.flags[args.rank] + blockIdx.x * kMaxAllReduceRanks + peer;
  Arrival arrival;
  std::int64_t first_check_ns = 0;
  std::uint32_t seen = load_acquire_system(flag);
  for (std::uint32_t spins = 1; static_cast<std::int32_t>(seen - epoch) < 0; ++spins) {
    arrival.waited = true;
    if (spins % kSpinsPerCheck == 0) {
      const std::int64_t now = globaltimer_ns();
      if (first_check_ns == 0) first_check_ns = now;
      if (now - first_check_ns > args.guard.deadline_ns) {
        report_expiry(args.guard, {args.rank, peer, args.ordinal, epoch, seen, 1});
        arrival.stop = true;
        return arrival;
      }
      if (aborted(args.guard)) {
        arrival.stop = true;
        return arrival;
      }
    }
    seen = load_acquire_system(flag);
  }
  if constexpr (kStamped) arrival.seen_ns = globaltimer_ns();
  return arrival;
}

__device__ __forceinline__ void accumulate(float (&sum)[8], const uint4& pack) {
  const std::uint32_t words[4] = {pack.x, pack.y, pack.z, pack.w};
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    // A bf16 is the upper half of an fp32.
    sum[2 * w] += __uint_as_float(words[w] << 16);
    sum[2 * w + 1] += __uint_as_float(words[w] & 0xffff0000u);
  }
}

__device__ __forceinline__ uint4 to_pack(const float (&sum)[8]) {
  std::uint32_t words[4];
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(sum[2 * w], sum[2 * w + 1]);
    words[w] = *reinterpret_cast<const std::uint32_t*>(&pair);
  }
  return {words[0], words[1], words[2], words[3]};
}

template <int kRanks>
__device__ __forceinline__ void reduce(const AllReduceArgs& args) {
  const std::int64_t packs = args.bytes / 16;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < packs;
       i += stride) {
    uint4 values[kRanks];
#pragma unroll
    for (int p = 0; p < kRanks; ++p) values[p] = static_cast<const uint4*>(args.inputs[p])[i];
    float sum[8] = {};
#pragma unroll
    for (int p = 0; p < kRanks; ++p) accumulate(sum, values[p]);
    static_cast<uint4*>(args.output)[i] = to_pack(sum);
  }
}

template <int kRanks, bool kStamped>
__global__ void __launch_bounds__(kMaxThreads) one_shot_pull_kernel(const AllReduceArgs args) {
  __shared__ std::int64_t own_ns[kMaxAllReduceRanks];  // per peer; the stamp is the earliest
  __shared__ bool waited[kMaxAllReduceRanks];
  const int peer = threadIdx.x / 32;
  const bool talks = threadIdx.x % 32 == 0 && peer < kRanks;
  Arrival arrival;
  std::uint32_t epoch = 0;
  std::int64_t entry = 0;
  if (talks) {
    // Independent loads, in flight together.
    if constexpr (kStamped) entry = *args.ring.entry;
    arrival.stop = aborted(args.guard);
    epoch = args.epochs[blockIdx.x] + 1;
    if constexpr (kStamped) own_ns[peer] = globaltimer_ns();
    if (!arrival.stop && peer != args.rank) {
      store_release_system(args.flags[peer] + blockIdx.x * kMaxAllReduceRanks + args.rank, epoch);
      arrival = wait_for_peer<kStamped>(args, peer, epoch);
    }
    if constexpr (kStamped) waited[peer] = arrival.waited;
  }
  // Also orders the peers' data before every thread's reads, behind the acquires above.
  if (__syncthreads_or(arrival.stop)) return;
  if (threadIdx.x == 0) args.epochs[blockIdx.x] = epoch;

  reduce<kRanks>(args);

  if constexpr (kStamped) {
    if (blockIdx.x != 0) return;
    __syncthreads();
    const std::int64_t end_ns = globaltimer_ns();
    if (!talks) return;
    AllReduceStamp& stamp =
        args.ring.all_reduces[entry * args.ring.all_reduces_per_replay + args.ordinal];
    stamp.seen_ns[peer] = arrival.seen_ns;
    if (threadIdx.x != 0) return;
    std::int64_t first_own_ns = own_ns[0];
    std::uint32_t late = 0;
    for (int p = 0; p < kRanks; ++p) {
      first_own_ns = min(first_own_ns, own_ns[p]);
      late |= waited[p] ? 1u << p : 0u;
    }
    stamp.own_ns = first_own_ns;
    stamp.end_ns = end_ns;
    stamp.waited = late;
  }
}

template <int kRanks>
void launch(const AllReduceArgs& args, unsigned blocks, cudaStream_t stream) {
  const auto threads = static_cast<unsigned>(args.threads);
  if (args.ring.all_reduces != nullptr) {
    one_shot_pull_kernel<kRanks, true><<<blocks, threads, 0, stream>>>(args);
  } else {
    one_shot_pull_kernel<kRanks, false><<<blocks, threads, 0, stream>>>(args);
  }
}

bool valid(const AllReduceArgs& args) {
  return args.world_size >= 1 && args.world_size <= kMaxAllReduceRanks && args.rank >= 0 &&
         args.rank < args.world_size && args.bytes > 0 && args.bytes % 16 == 0 &&
         args.bytes <= kMaxAllReduceBytes && args.max_blocks >= 1 &&
         args.max_blocks <= kMaxAllReduceBlocks && args.threads % 32 == 0 &&
         args.threads >= 32 * args.world_size && args.threads <= kMaxThreads;
}

}  // namespace

int launch_one_shot_pull(const AllReduceArgs& args, CUstream_st* stream) {
  if (!valid(args)) return cudaErrorInvalidValue;
  const std::int64_t wanted = (args.bytes / 16 + args.threads - 1) / args.threads;
  const auto blocks =
      static_cast<unsigned>(wanted < args.max_blocks ? wanted : std::int64_t{args.max_blocks});
  using Launch = void (*)(const AllReduceArgs&, unsigned, cudaStream_t);
  constexpr Launch kLaunches[kMaxAllReduceRanks] = {launch<1>, launch<2>, launch<3>, launch<4>,
                                                    launch<5>, launch<6>, launch<7>, launch<8>};
  kLaunches[args.world_size - 1](args, blocks, stream);
  return cudaGetLastError();
}

}  // namespace tpjitter::kernels
