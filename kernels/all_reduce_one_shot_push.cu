// One-shot all-reduce by writing: each rank pushes its whole input into a slot of every peer's
// arena, polls its own slots until everything is there, and sums locally. The data is its own flag:
// no barrier, no fence, one trip over NVLink.
// Source:   "Lamport" all-reduces of TensorRT-LLM, flashinfer and SGLang v2.
// Inputs:   this rank's input of this parity; the peers' pushes in this rank's slots.
// Outputs:  output [bytes / 2] bf16 = sum in rank order.
// Grid:     one pack of 16 bytes a thread in small blocks, so that many SMs send at once.
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
#include "kernels/all_reduce.cuh"

namespace tpjitter::kernels {
namespace {

constexpr std::uint32_t kZeroWord = 0x80008000u;

// Addresses of one call, worked out on the host: the way to the first load is part of the latency.
struct PushArgs {
  const uint4* input;
  uint4* output;
  // This rank's, of this parity; what peer p pushed begins at p * slot_packs.
  uint4* slots;
  std::uint32_t slot_packs;
  std::uint32_t packs;  // of 16 bytes
  // This rank's slot in the peers' arenas, the next rank's first: not all push to one at once.
  uint4* targets[kMaxAllReduceRanks - 1];
  std::uint32_t* epochs;  // calls of each block, for the report of an expiry
  std::int32_t rank;
  std::int32_t ordinal;
  StampRing ring;
  SpinGuard guard;
};

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

__device__ __forceinline__ uint4 without_zero_words(const uint4& v) {
  return {v.x == 0 ? kZeroWord : v.x, v.y == 0 ? kZeroWord : v.y, v.z == 0 ? kZeroWord : v.z,
          v.w == 0 ? kZeroWord : v.w};
}

__device__ __forceinline__ bool has_arrived(const uint4& v) {
  return v.x != 0 && v.y != 0 && v.z != 0 && v.w != 0;
}

// The stamp of warp 0 of block 0, the same in every lane.
template <int kRanks>
struct WarpStamp {
  std::int64_t own_ns;
  std::int64_t seen_ns[kRanks];
  std::uint32_t waited;

  // Peers of `arrived` have brought a pack that was looked for `spins` times. One that was there at
  // the first look moves no stamp but the first: it came earlier, while others were waited for.
  __device__ void note(std::uint32_t arrived, std::uint32_t spins) {
    if (arrived == 0) return;
    const std::int64_t now = globaltimer_ns();
    if (spins > 1) waited |= arrived;
#pragma unroll
    for (int p = 0; p < kRanks; ++p) {
      if ((arrived >> p & 1) != 0 && (spins > 1 || seen_ns[p] == 0)) seen_ns[p] = now;
    }
  }
};

// Polls until pack i of every peer is there, all missing ones in flight together, and clears it.
// `stamped` lanes of `lanes` stay together, so that the stamp is that of the warp's last pack.
// False: stop.
template <int kRanks>
__device__ __forceinline__ bool receive(const PushArgs& args, std::uint32_t i, std::uint32_t epoch,
                                        bool stamped, unsigned lanes, WarpStamp<kRanks>& stamp,
                                        uint4 (&values)[kRanks]) {
  std::uint32_t pending = ((1u << kRanks) - 1) & ~(1u << args.rank);
  std::uint32_t missing = pending;  // by any lane, when stamped
  std::int64_t first_check_ns = 0;
  for (std::uint32_t spins = 1; missing != 0; ++spins) {
#pragma unroll
    for (int p = 0; p < kRanks; ++p) {
      if ((pending >> p & 1) == 0) continue;
      values[p] = load_pack_relaxed_system(args.slots + p * args.slot_packs + i);
    }
#pragma unroll
    for (int p = 0; p < kRanks; ++p) {
      if ((pending >> p & 1) != 0 && has_arrived(values[p])) pending &= ~(1u << p);
    }
    if (stamped) {
      const std::uint32_t before = missing;
      missing = __reduce_or_sync(lanes, pending);
      stamp.note(before & ~missing, spins);
    } else {
      missing = pending;
    }
    if (spins % kSpinsPerCheck != 0) continue;
    // One call later than the last whose data had all come; the first peer that is missing.
    bool stop =
        missing != 0 && must_stop(args, first_check_ns, __ffs(missing) - 1, epoch, epoch - 1);
    if (stamped) stop = __any_sync(lanes, stop);
    if (stop) return false;
  }
#pragma unroll
  for (int p = 0; p < kRanks; ++p) {
    if (p != args.rank) args.slots[p * args.slot_packs + i] = {};
  }
  return true;
}

// Warp 0 of block 0 stands for the rank: its first push, each peer's last pack, its end. One warp,
// so that no barrier and no shared memory is on the way.
template <int kRanks>
__device__ __forceinline__ void write_stamp(const PushArgs& args, std::int64_t entry,
                                            const WarpStamp<kRanks>& own) {
  const std::int64_t end_ns = globaltimer_ns();
  AllReduceStamp& stamp =
      args.ring.all_reduces[entry * args.ring.all_reduces_per_replay + args.ordinal];
  if (threadIdx.x != 0) return;
  stamp.own_ns = own.own_ns;
  stamp.end_ns = end_ns;
#pragma unroll
  for (int p = 0; p < kRanks; ++p) stamp.seen_ns[p] = own.seen_ns[p];
  stamp.waited = own.waited;
}

template <int kRanks, bool kStamped>
__global__ void __launch_bounds__(kMaxAllReduceThreads)
    one_shot_push_kernel(const __grid_constant__ PushArgs args) {
  const bool stamped = kStamped && blockIdx.x == 0 && threadIdx.x < 32;
  const std::uint32_t stride = gridDim.x * blockDim.x;
  const std::uint32_t first = blockIdx.x * blockDim.x + threadIdx.x;

  // Independent loads, in flight together.
  uint4 pack = {};
  if (first < args.packs) pack = args.input[first];
  const std::uint32_t epoch = args.epochs[blockIdx.x] + 1;
  const std::int64_t entry = stamped ? *args.ring.entry : 0;
  if (aborted(args.guard)) return;

  WarpStamp<kRanks> stamp = {};
  if (stamped && first < args.packs) stamp.own_ns = globaltimer_ns();
  for (std::uint32_t i = first; i < args.packs; i += stride) {
    if (i != first) pack = args.input[i];
    const uint4 pushed = without_zero_words(pack);
#pragma unroll
    for (int n = 0; n < kRanks - 1; ++n) store_pack_relaxed_system(args.targets[n] + i, pushed);
  }

  bool stopped = false;
  for (std::uint32_t i = first; i < args.packs; i += stride) {
    // Of this warp, those with a pack: the last ones of a size have none.
    const std::uint32_t rest = args.packs - (i - threadIdx.x % 32);
    const unsigned lanes = rest >= 32 ? ~0u : (1u << rest) - 1;
    uint4 values[kRanks];
    const uint4 own = args.input[i];
    if (!receive<kRanks>(args, i, epoch, stamped, lanes, stamp, values)) {
      stopped = true;
      break;
    }
#pragma unroll
    for (int p = 0; p < kRanks; ++p) {
      if (p == args.rank) values[p] = own;
    }
    args.output[i] = sum_of<kRanks>(values);
  }
  if (threadIdx.x == 0 && !stopped) args.epochs[blockIdx.x] = epoch;
  if (stamped && !stopped) write_stamp<kRanks>(args, entry, stamp);
}

struct OneShotPush {
  using Args = PushArgs;
  static PushArgs args(const AllReduceArgs& from) {
    const AllReduceArena& arena = from.arena;
    std::byte* own = from.arenas[from.rank];
    PushArgs args = {};
    args.input = reinterpret_cast<const uint4*>(own + arena.input(from.ordinal));
    args.output = static_cast<uint4*>(from.output);
    args.slots = reinterpret_cast<uint4*>(own + arena.slots(from.ordinal));
    args.slot_packs = static_cast<std::uint32_t>(arena.max_bytes / 16);
    args.packs = static_cast<std::uint32_t>(from.bytes / 16);
    for (int n = 0; n < arena.world_size - 1; ++n) {
      std::byte* peer = from.arenas[(from.rank + 1 + n) % arena.world_size];
      args.targets[n] = reinterpret_cast<uint4*>(peer + arena.slots(from.ordinal)) +
                        static_cast<std::size_t>(from.rank) * args.slot_packs;
    }
    args.epochs = reinterpret_cast<std::uint32_t*>(own + AllReduceArena::kPushEpochs);
    args.rank = from.rank;
    args.ordinal = from.ordinal;
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
