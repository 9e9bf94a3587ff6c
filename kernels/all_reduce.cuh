// What the all-reduce kernels share: packs of eight bf16 values, the flag exchange of pull and
// two-shot, its stamp, and the choice of launch shape and template.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "kernels/all_reduce.h"
#include "kernels/spin.cuh"

namespace tpjitter::kernels {

__device__ __forceinline__ uint4* packs_at(std::byte* arena, std::size_t offset) {
  return reinterpret_cast<uint4*>(arena + offset);
}

__device__ __forceinline__ std::uint32_t* words_at(std::byte* arena, std::size_t offset) {
  return reinterpret_cast<std::uint32_t*>(arena + offset);
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

// In rank order.
template <int kRanks>
__device__ __forceinline__ uint4 sum_of(const uint4 (&values)[kRanks]) {
  float sum[8] = {};
#pragma unroll
  for (int p = 0; p < kRanks; ++p) accumulate(sum, values[p]);
  return to_pack(sum);
}

// The sum of packs [first, first + count) of every rank's input; this thread's share by grid
// stride. `store(i, pack)` gets the index within the part.
template <int kRanks, class Store>
__device__ __forceinline__ void reduce_inputs(const AllReduceArgs& args, std::int64_t first,
                                              std::int64_t count, Store store) {
  const std::size_t offset =
      args.arena.kInputs + (args.ordinal % 2) * static_cast<std::size_t>(args.arena.max_bytes);
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += stride) {
    uint4 values[kRanks];
#pragma unroll
    for (int p = 0; p < kRanks; ++p) values[p] = packs_at(args.arenas[p], offset)[first + i];
    store(i, sum_of<kRanks>(values));
  }
}

// A look at the clock and the abort word, every kSpinsPerCheck spins of one wait: `checked_ns` is 0
// at the first and then what this returned; kStopWaiting: give up. Not inlined, so that the code
// behind a wait follows that of the wait: fetching instructions from further on shows in the time.
inline constexpr std::int64_t kStopWaiting = -1;
static __device__ __noinline__ std::int64_t check_wait(const SpinGuard& guard,
                                                       std::int64_t checked_ns,
                                                       const DeviceFault& fault) {
  const std::int64_t now = globaltimer_ns();
  if (checked_ns == 0) checked_ns = now;
  if (now - checked_ns > guard.deadline_ns) {
    report_expiry(guard, fault);
    return kStopWaiting;
  }
  return aborted(guard) ? kStopWaiting : checked_ns;
}

struct Arrival {
  std::int64_t own_ns = 0;
  std::int64_t seen_ns = 0;
  bool waited = false;
  bool stop = false;  // aborted or past the deadline
};

// Keeps a value in a register where the compiler would work it out again behind a wait.
template <class T>
__device__ __forceinline__ void keep(T& value) {
  asm volatile("" : "+l"(value));
}

__device__ __forceinline__ AllReduceStamp* stamp_at(const StampRing& ring, std::int64_t entry,
                                                    std::int32_t ordinal) {
  return ring.all_reduces + entry * ring.all_reduces_per_replay + ordinal;
}

// Tells the peer's block of this index that this rank's has reached `epoch`, then polls the peer's
// flag for the same; flags are compared by signed difference. The release is a fence and a relaxed
// store, with the own stamp between: what the kernels before have written may take most of a
// microsecond to drain, which is this rank's lateness and not the flag's flight. The peer's stamp is
// read in the iteration that saw the flag. `released(own_ns)` is called between the two.
template <class Released>
__device__ __forceinline__ Arrival exchange_flags(const AllReduceArgs& args, int peer,
                                                  std::uint32_t epoch, bool stamped,
                                                  Released released) {
  const auto flag_of = [&](int owner, int writer) {
    return words_at(args.arenas[owner], AllReduceArena::kFlags) + blockIdx.x * kMaxAllReduceRanks +
           writer;
  };
  const std::uint32_t* flag = flag_of(args.rank, peer);
  Arrival arrival;
  fence_release_system();
  if (stamped) arrival.own_ns = globaltimer_ns();
  store_relaxed_system(flag_of(peer, args.rank), epoch);
  released(arrival.own_ns);
  std::int64_t checked_ns = 0;
  std::uint32_t seen = load_acquire_system(flag);
  for (std::uint32_t spins = 1; static_cast<std::int32_t>(seen - epoch) < 0; ++spins) {
    arrival.waited = true;
    if (spins % kSpinsPerCheck == 0) {
      checked_ns =
          check_wait(args.guard, checked_ns, {args.rank, peer, args.ordinal, epoch, seen, 1});
      if (checked_ns == kStopWaiting) {
        arrival.stop = true;
        return arrival;
      }
    }
    seen = load_acquire_system(flag);
  }
  if (stamped) arrival.seen_ns = globaltimer_ns();
  return arrival;
}

// With programmatic launch: everything before this kernel has ended; the next may come up.
__device__ __forceinline__ void begin_all_reduce(bool pdl) {
  if (!pdl) return;
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
}

// The start barrier of pull and two-shot: warp p's lane 0 talks to peer p, so that no peer's stamp
// waits for another peer's flag. Block 0 stands for the rank in the stamp: addresses are ready before
// the wait, and what is known is stored at once, so that the end of the kernel waits for one store.
template <int kRanks, bool kStamped>
class StartBarrier {
 public:
  // Shared memory of the stamp with several peers: `own` is the earliest.
  struct Shared {
    std::int64_t own_ns[kMaxAllReduceRanks];
    bool waited[kMaxAllReduceRanks];
  };

  __device__ StartBarrier(const AllReduceArgs& args, Shared& shared)
      : args_(args), shared_(shared) {}

  // False for the whole block: stop. Orders the peers' data before every thread's reads.
  __device__ bool pass() {
    if (talks()) {
      // Independent loads, in flight together.
      const bool stamped = kStamped && blockIdx.x == 0;
      const std::int64_t entry = stamped ? *args_.ring.entry : 0;
      arrival_.stop = aborted(args_.guard);
      epoch_ = words_at(args_.arenas[args_.rank], AllReduceArena::kEpochs)[blockIdx.x] + 1;
      const auto released = [&](std::int64_t own_ns) {
        if (!stamped) return;
        stamp_ = stamp_at(args_.ring, entry, args_.ordinal);
        if (kRanks <= 2 && own_ns != 0) stamp_->own_ns = own_ns;
      };
      if (!arrival_.stop && peer() != args_.rank) {
        arrival_ = exchange_flags(args_, peer(), epoch_, stamped, released);
      } else {
        // With peers the rank's own warp, which releases nothing, does not count.
        released(kRanks == 1 && stamped ? globaltimer_ns() : 0);
      }
      if (kRanks > 2 && stamped) {
        shared_.own_ns[peer()] = peer() == args_.rank ? INT64_MAX : arrival_.own_ns;
        shared_.waited[peer()] = arrival_.waited;
      }
    }
    keep(stamp_);
    return __syncthreads_or(arrival_.stop) == 0;
  }

  // A further barrier of the same call, one epoch on; the block's writes go before it.
  __device__ bool pass_again() {
    __syncthreads();
    bool stop = false;
    if (talks()) {
      ++epoch_;
      if (peer() != args_.rank) {
        stop = exchange_flags(args_, peer(), epoch_, false, [](std::int64_t) {}).stop;
      }
    }
    return __syncthreads_or(stop) == 0;
  }

  __device__ void keep_epoch() {
    if (threadIdx.x != 0) return;
    words_at(args_.arenas[args_.rank], AllReduceArena::kEpochs)[blockIdx.x] = epoch_;
  }

  // After the thread's share; block 0's first thread stands for the end.
  __device__ void stamp() {
    if (stamp_ == nullptr) return;
    const std::int64_t end_ns = globaltimer_ns();
    stamp_->seen_ns[peer()] = arrival_.seen_ns;
    if (kRanks <= 2 && (kRanks == 1 || peer() != args_.rank)) {
      stamp_->waited = arrival_.waited ? 1u << peer() : 0u;
    }
    if (threadIdx.x != 0) return;
    stamp_->end_ns = end_ns;
    if constexpr (kRanks > 2) {
      std::int64_t first_own_ns = shared_.own_ns[0];
      std::uint32_t late = 0;
      for (int p = 0; p < kRanks; ++p) {
        first_own_ns = min(first_own_ns, shared_.own_ns[p]);
        late |= shared_.waited[p] ? 1u << p : 0u;
      }
      stamp_->own_ns = first_own_ns;
      stamp_->waited = late;
    }
  }

 private:
  __device__ int peer() const { return static_cast<int>(threadIdx.x / 32); }
  __device__ bool talks() const { return threadIdx.x % 32 == 0 && peer() < kRanks; }

  const AllReduceArgs& args_;
  Shared& shared_;
  Arrival arrival_;
  std::uint32_t epoch_ = 0;
  AllReduceStamp* stamp_ = nullptr;  // null for threads that take none
};

// Grid and template of a launch. Policy: `Args`, what its kernels take, with `static Args
// args(const AllReduceArgs&)`; `template <int kRanks, bool kStamped> static auto
// kernel()`, `kGrids`, the shapes by size, and `kWarpPerPeer`, whether each peer has a warp. `packs`: 16-byte packs that the grid shares out.
template <class Policy>
int launch_all_reduce(const AllReduceArgs& args, std::int64_t packs, cudaStream_t stream) {
  const AllReduceArena& arena = args.arena;
  if (arena.world_size < 1 || arena.world_size > kMaxAllReduceRanks || args.rank < 0 ||
      args.rank >= arena.world_size || args.bytes <= 0 || args.bytes % 16 != 0 ||
      args.bytes > arena.max_bytes || args.bytes > kMaxAllReduceBytes ||
      arena.max_bytes % 16 != 0 || args.ordinal < 0 || args.max_blocks < 1 ||
      args.max_blocks > kMaxAllReduceBlocks || args.blocks < 0 ||
      args.blocks > kMaxAllReduceBlocks) {
    return cudaErrorInvalidValue;
  }
  const AllReduceGrid* grid = Policy::kGrids;
  while (args.bytes > grid->up_to_bytes) ++grid;
  const std::int32_t threads = args.threads != 0 ? args.threads : grid->threads;
  const std::int32_t fewest = Policy::kWarpPerPeer ? 32 * arena.world_size : 32;
  if (threads % 32 != 0 || threads < fewest || threads > kMaxAllReduceThreads) {
    return cudaErrorInvalidValue;
  }
  std::int64_t blocks = (packs + threads - 1) / threads;
  const std::int64_t cap = args.blocks != 0 ? args.blocks : grid->max_blocks;
  if (blocks > cap) blocks = cap;
  if (blocks > args.max_blocks) blocks = args.max_blocks;
  using Kernel = void (*)(typename Policy::Args);
#define TPJITTER_KERNELS(kRanks) \
  { Policy::template kernel<kRanks, false>(), Policy::template kernel<kRanks, true>() }
  static constexpr Kernel kKernels[kMaxAllReduceRanks][2] = {
      TPJITTER_KERNELS(1), TPJITTER_KERNELS(2), TPJITTER_KERNELS(3), TPJITTER_KERNELS(4),
      TPJITTER_KERNELS(5), TPJITTER_KERNELS(6), TPJITTER_KERNELS(7), TPJITTER_KERNELS(8)};
#undef TPJITTER_KERNELS
  const Kernel kernel = kKernels[arena.world_size - 1][args.ring.all_reduces != nullptr ? 1 : 0];
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(blocks);
  config.blockDim = static_cast<unsigned>(threads);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = args.pdl ? 1 : 0;
  static_cast<void>(cudaLaunchKernelEx(&config, kernel, Policy::args(args)));
  return cudaGetLastError();
}

}  // namespace tpjitter::kernels
