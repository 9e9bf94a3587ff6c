// One-shot all-reduce by writing: each rank pushes its whole input into a slot of every peer's
// arena, polls its own slots until everything is there, and sums locally. The data is its own flag:
// no barrier, no fence, one trip over NVLink.
// Source:   "Lamport" all-reduces of TensorRT-LLM, flashinfer and SGLang v2.
// Inputs:   this rank's input of this parity; the peers' pushes in this rank's slots.
// Outputs:  output [bytes / 2] bf16 = sum in rank order.
// Grid:     one pack of 16 bytes a thread; blocks as small as a size allows, measured on 2 and 4 x H200.
// Traffic:  (ranks - 1) * bytes sent, received, read and cleared, bytes read, bytes written.
// Limits:   1 to 8 ranks, multiples of 16 bytes to 8 MiB; capturable; no host sync. All blocks of
//           all ranks must be resident together when ranks share a GPU.
//
// A word of two bf16 values that is 0 means "not here yet"; a word of data that is 0 travels as
// 0x80008000, two times -0, which adds the same. Each of a pack's four words is tested, so nothing
// relies on 16-byte stores arriving whole.
//
// Why two slots by parity are enough, whatever the sizes: the thread that reads a pack clears it at
// once. A peer pushes into the same slot again in all-reduce n + 2, after its n + 1 has ended, which
// needed something that this rank sent in n + 1, so after this rank's n had ended with its clears.
// No extents to remember, no element-to-block map that ranks or calls must share.
//
// The chain from the load to the last store is the time of a small all-reduce, and what stands in it
// was read off the SASS: addresses are in registers before the wait, the own values are widened
// before it, the abort word is loaded beside the input, and of the stamp two stores of 16 bytes stand
// behind the output. One poll in flight a thread: two and four were slower at every size. Figures
// and what else was tried: reports/examples/all_reduce_h200_x2.md.
#include "kernels/all_reduce.cuh"

namespace tpjitter::kernels {
namespace {

constexpr std::uint32_t kZeroWord = 0x80008000u;

// Addresses of one call, worked out on the host: the way to the first load is part of the latency.
// What every thread reads comes first, to lie on few lines of the constant cache.
struct PushArgs {
  const uint4* input;
  const std::uint32_t* abort;
  uint4* output;
  std::uint32_t packs;  // of 16 bytes
  std::int32_t rank;
  std::int32_t pdl;
  std::int32_t ordinal;
  // This rank's slots of this parity, by the place of the peer that pushes there.
  uint4* from[kMaxAllReduceRanks];
  // This rank's slot in the peers' arenas, the next rank's first: not all push to one at once.
  uint4* targets[kMaxAllReduceRanks - 1];
  std::uint32_t* epochs;  // calls of each block, for the report of an expiry
  StampRing ring;
  SpinGuard guard;
};

// Where a thread keeps the ranks' values. With two ranks the own one comes first, whichever it is: a
// sum of two has the same bits in both orders, and nothing depends on the rank. With more, place p
// is rank p.
__host__ __device__ inline std::int32_t rank_at(int ranks, std::int32_t rank, int place) {
  return ranks > 2 ? place : place ^ rank;
}
__device__ __forceinline__ std::int32_t own_place(int ranks, std::int32_t rank) {
  return ranks > 2 ? rank : 0;
}

__device__ __forceinline__ uint4 load_pack_relaxed_system(const uint4* address) {
  uint4 v;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(address)
               : "memory");
  return v;
}

__device__ __forceinline__ void store_pack_relaxed_system(uint4* address, const uint4& v) {
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(v.x),
               "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}

// A plain store to an address that went through keep(), which hides that it is global.
__device__ __forceinline__ void store_pack(uint4* address, const uint4& v) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w)
               : "memory");
}

template <int kRanks>
__device__ __forceinline__ void push(const PushArgs& args, std::uint32_t i, const uint4& v) {
  const uint4 pushed = {v.x == 0 ? kZeroWord : v.x, v.y == 0 ? kZeroWord : v.y,
                        v.z == 0 ? kZeroWord : v.z, v.w == 0 ? kZeroWord : v.w};
#pragma unroll
  for (int n = 0; n < kRanks - 1; ++n) store_pack_relaxed_system(args.targets[n] + i, pushed);
}

__device__ __forceinline__ bool has_arrived(const uint4& v) {
  return v.x != 0 && v.y != 0 && v.z != 0 && v.w != 0;
}

// The rank's stamp, by thread 0 of block 0 for its packs: its first push, each peer's last pack, its
// end. Places, not ranks, while it is taken. All threads of block 0 read the clock, which costs less
// than parting; the other blocks run the loop without stamps.
template <int kRanks>
struct PushStamp {
  AllReduceStamp* to = nullptr;  // null: this thread stores none
  std::int64_t seen_ns[kRanks] = {};
  std::uint32_t late = 0;

  // Peers at the places `arrived` have brought a pack. One that was there at the first look moves no
  // stamp but the first: it came earlier, while others were waited for.
  __device__ __forceinline__ void note(std::uint32_t arrived, bool waited) {
    if constexpr (kRanks == 2) {
      if (!waited && seen_ns[1] != 0) return;
    }
    if (arrived == 0) return;
    const std::int64_t now = globaltimer_ns();
    if (waited) late |= arrived;
#pragma unroll
    for (int p = 0; p < kRanks; ++p) {
      if ((arrived >> p & 1) != 0 && (waited || seen_ns[p] == 0)) seen_ns[p] = now;
    }
  }

  __device__ __forceinline__ void store(std::int32_t rank) const {
    if (to == nullptr) return;
    const std::int64_t end_ns = globaltimer_ns();
    if constexpr (kRanks == 2) {
      *reinterpret_cast<longlong2*>(to->seen_ns) =
          rank == 0 ? longlong2{0, seen_ns[1]} : longlong2{seen_ns[1], 0};
      *reinterpret_cast<longlong2*>(&to->end_ns) =
          longlong2{end_ns, late == 0 ? 0 : static_cast<std::int64_t>(2u >> rank)};
    } else {
#pragma unroll
      for (int p = 0; p < kRanks; ++p) to->seen_ns[p] = seen_ns[p];
      to->waited = late;
      to->end_ns = end_ns;
    }
  }
};

// Polls until pack i of every peer is there, all missing ones in flight together, and clears it.
// False: stop.
template <int kRanks, bool kStamped>
__device__ __forceinline__ bool receive(const PushArgs& args, std::uint32_t i,
                                        PushStamp<kRanks>& stamp, uint4 (&values)[kRanks]) {
  std::int64_t checked_ns = 0;
  const auto stop = [&](std::uint32_t pending) {
    // One call later than the last whose data had all come; the first peer that is missing. Thread 0
    // has counted this call long since: at its start another warp would not know whether it had.
    const std::uint32_t epoch = load_relaxed_system(args.epochs + blockIdx.x);
    const std::int32_t peer = rank_at(kRanks, args.rank, __ffs(pending) - 1);
    checked_ns =
        check_wait(args.guard, checked_ns, {args.rank, peer, args.ordinal, epoch, epoch - 1, 1});
    return checked_ns == kStopWaiting;
  };
  if constexpr (kRanks == 2) {
    uint4* slot = args.from[1] + i;
    keep(slot);
    std::uint32_t spins = 1;
    for (;; ++spins) {
      values[1] = load_pack_relaxed_system(slot);
      if (has_arrived(values[1])) break;
      if (spins % kSpinsPerCheck == 0 && stop(2)) return false;
    }
    store_pack(slot, {});
    if constexpr (kStamped) stamp.note(2, spins > 1);
  } else {
    std::uint32_t pending = ((1u << kRanks) - 1) & ~(1u << own_place(kRanks, args.rank));
    for (std::uint32_t spins = 1; pending != 0; ++spins) {
      const std::uint32_t before = pending;
#pragma unroll
      for (int p = 0; p < kRanks; ++p) {
        if ((pending >> p & 1) != 0) values[p] = load_pack_relaxed_system(args.from[p] + i);
      }
#pragma unroll
      for (int p = 0; p < kRanks; ++p) {
        if ((pending >> p & 1) != 0 && has_arrived(values[p])) pending &= ~(1u << p);
      }
      if constexpr (kStamped) stamp.note(before & ~pending, spins > 1);
      if (spins % kSpinsPerCheck == 0 && pending != 0 && stop(pending)) return false;
    }
#pragma unroll
    for (int p = 0; p < kRanks; ++p) {
      if (p != own_place(kRanks, args.rank)) args.from[p][i] = {};
    }
  }
  return true;
}

// Pack i of the output, whose own part is `own`. False: stop.
template <int kRanks, bool kStamped>
__device__ __forceinline__ bool reduce_pack(const PushArgs& args, std::uint32_t i, const uint4& own,
                                            PushStamp<kRanks>& stamp) {
  uint4* output = args.output + i;
  keep(output);
  uint4 values[kRanks];
  if constexpr (kRanks == 2) {
    float sum[8] = {};
    accumulate(sum, own);
    for (float& element : sum) asm volatile("" : "+f"(element));  // before the wait
    if (!receive<kRanks, kStamped>(args, i, stamp, values)) return false;
    accumulate(sum, values[1]);
    store_pack(output, to_pack(sum));
  } else {
    if (!receive<kRanks, kStamped>(args, i, stamp, values)) return false;
    float sum[8] = {};
#pragma unroll
    for (int p = 0; p < kRanks; ++p) {
      // Word by word: a choice of whole packs would become an index into local memory.
      const bool mine = p == args.rank;
      accumulate(sum, {mine ? own.x : values[p].x, mine ? own.y : values[p].y,
                       mine ? own.z : values[p].z, mine ? own.w : values[p].w});
    }
    store_pack(output, to_pack(sum));
  }
  return true;
}

// The thread's packs from `first` on, whose own part is `own`. False: stop.
template <int kRanks, bool kStamped>
__device__ __forceinline__ bool reduce_packs(const PushArgs& args, std::uint32_t first,
                                             std::uint32_t stride, std::uint32_t packs, uint4 own,
                                             PushStamp<kRanks>& stamp) {
  for (std::uint32_t i = first; i < packs;) {
    if (!reduce_pack<kRanks, kStamped>(args, i, own, stamp)) return false;
    i += stride;
    if (i < packs) own = args.input[i];
  }
  return true;
}

template <int kRanks, bool kStamped>
__global__ void __launch_bounds__(kMaxAllReduceThreads)
    one_shot_push_kernel(const __grid_constant__ PushArgs args) {
  if (args.pdl != 0) cudaGridDependencySynchronize();
  const bool stamped = kStamped && blockIdx.x == 0 && threadIdx.x == 0;
  std::uint32_t stride = gridDim.x * blockDim.x;
  std::uint32_t packs = args.packs;
  const std::uint32_t first = blockIdx.x * blockDim.x + threadIdx.x;

  // Independent loads, in flight together; the abort word's answer is there when the input's is.
  uint4 own = {};
  if (first < packs) own = args.input[first];
  const std::uint32_t epoch = threadIdx.x == 0 ? args.epochs[blockIdx.x] + 1 : 0;
  const std::int64_t entry = stamped ? *args.ring.entry : 0;
  if (args.abort != nullptr && load_relaxed_system(args.abort) != 0) return;

  if (first < packs) push<kRanks>(args, first, own);
  const std::int64_t own_ns = stamped ? globaltimer_ns() : 0;
  for (std::uint32_t i = first + stride; i < packs; i += stride) {
    push<kRanks>(args, i, args.input[i]);
  }
  if (args.pdl != 0) cudaTriggerProgrammaticLaunchCompletion();
  if (threadIdx.x == 0) args.epochs[blockIdx.x] = epoch;
  PushStamp<kRanks> stamp;
  if (stamped) {
    stamp.to = stamp_at(args.ring, entry, args.ordinal);
    stamp.to->own_ns = own_ns;
  }
  keep(stamp.to);
  asm volatile("" : "+r"(packs), "+r"(stride));
  if (!kStamped || blockIdx.x != 0) {
    reduce_packs<kRanks, false>(args, first, stride, packs, own, stamp);
  } else if (reduce_packs<kRanks, kStamped>(args, first, stride, packs, own, stamp)) {
    stamp.store(args.rank);
  }
}

struct OneShotPush {
  using Args = PushArgs;
  static PushArgs args(const AllReduceArgs& from) {
    const AllReduceArena& arena = from.arena;
    const auto slots_of = [&](int owner, int writer) {
      return reinterpret_cast<uint4*>(from.arenas[owner] + arena.slots(from.ordinal)) +
             writer * (arena.max_bytes / 16);
    };
    std::byte* own = from.arenas[from.rank];
    PushArgs args = {};
    args.input = reinterpret_cast<const uint4*>(own + arena.input(from.ordinal));
    args.abort = from.guard.abort;
    args.output = static_cast<uint4*>(from.output);
    args.packs = static_cast<std::uint32_t>(from.bytes / 16);
    args.rank = from.rank;
    args.pdl = from.pdl ? 1 : 0;
    args.ordinal = from.ordinal;
    for (int p = 0; p < arena.world_size; ++p) {
      args.from[p] = slots_of(from.rank, rank_at(arena.world_size, from.rank, p));
    }
    for (int n = 0; n < arena.world_size - 1; ++n) {
      args.targets[n] = slots_of((from.rank + 1 + n) % arena.world_size, from.rank);
    }
    args.epochs = reinterpret_cast<std::uint32_t*>(own + AllReduceArena::kPushEpochs);
    args.ring = from.ring;
    args.guard = from.guard;
    return args;
  }
  static constexpr bool kWarpPerPeer = false;
  static constexpr AllReduceGrid kGrids[] = {{64 << 10, 128, 64},
                                             {128 << 10, 128, 128},
                                             {512 << 10, 128, 256},
                                             {kMaxAllReduceBytes, 128, 512}};
  template <int kRanks, bool kStamped>
  static constexpr auto kernel() {
    return one_shot_push_kernel<kRanks, kStamped>;
  }
};

}  // namespace

int launch_one_shot_push(const AllReduceArgs& args, CUstream_st* stream) {
  return launch_all_reduce<OneShotPush>(args, args.bytes / 16, stream);
}

}  // namespace tpjitter::kernels
