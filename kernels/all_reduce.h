// All-reduce of bf16 values between the ranks of one host, over memory that each can read and
// write. The kernels take pointers, not processes: peers may be other GPUs (CUDA IPC) or streams of
// one GPU. Sums are in rank order, accumulated in fp32 from +0, the same bits on every rank and
// from every kernel; -0 counts as +0, a NaN of any payload gives 0x7fff.
//
// All kernels live in one arena a rank, zeroed before the first call. Every rank of a communicator
// runs the same sequence of calls, one in flight, with ordinals that alternate between even and
// odd: that is what lets sizes and kernels mix without an end barrier (each kernel's file says
// why). Calls of a graph count from 0, so a graph holds an even number of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kernels/spin.h"
#include "kernels/stamps.h"

namespace tpjitter::kernels {

inline constexpr int kMaxAllReduceBlocks = 128;
inline constexpr int kMaxAllReduceThreads = 512;
inline constexpr std::int64_t kMaxAllReduceBytes = 8ll << 20;  // as vLLM's custom all-reduce

// Byte offsets in an arena. Words that different parties write lie on pages of their own.
//   flags        u32 [blocks, ranks]    pull, two-shot: peer r writes [b][r] of this rank's
//   epochs       u32 [blocks]           pull, two-shot: this rank's own
//   push epochs  u32 [blocks]           push: calls of this block, for the report of an expiry
//   abort        u32
//   ping-pong    u32 words 128 bytes apart, [ranks]: rank r writes [r] of this rank's; then stamps:
//                not of all-reduces, see clock_ping_pong.h
//   inputs       [2, max_bytes]         all kernels: input of a call by its ordinal's parity
//   staging      [max_bytes]            two-shot: the part that this rank has reduced
//   slots        [2, ranks, max_bytes]  push: what each peer pushed, by parity
struct AllReduceArena {
  static constexpr std::size_t kFlags = 0;
  static constexpr std::size_t kFlagWords = std::size_t{kMaxAllReduceBlocks} * kMaxAllReduceRanks;
  static constexpr std::size_t kEpochs = kFlags + kFlagWords * sizeof(std::uint32_t);
  static constexpr std::size_t kPushEpochs = kEpochs + kMaxAllReduceBlocks * sizeof(std::uint32_t);
  static constexpr std::size_t kAbort = kEpochs + 4096;
  static constexpr std::size_t kPingPongWords = kAbort + 1024;
  static constexpr std::size_t kPingPongStamps = kAbort + 2048;
  static constexpr std::size_t kInputs = kAbort + 4096;

  int world_size = 1;
  std::int64_t max_bytes = kMaxAllReduceBytes;  // of one all-reduce, a multiple of 16

  std::size_t input(int ordinal) const { return kInputs + (ordinal % 2) * size(); }
  std::size_t staging() const { return kInputs + 2 * size(); }
  std::size_t slots(int ordinal) const {
    return kInputs + (3 + static_cast<std::size_t>(ordinal % 2) * world_size) * size();
  }
  std::size_t bytes() const {
    return kInputs + (3 + 2 * static_cast<std::size_t>(world_size)) * size();
  }

 private:
  std::size_t size() const { return static_cast<std::size_t>(max_bytes); }
};
static_assert(AllReduceArena::kPushEpochs + kMaxAllReduceBlocks * sizeof(std::uint32_t) <=
              AllReduceArena::kAbort);

struct AllReduceArgs {
  std::byte* arenas[kMaxAllReduceRanks] = {};  // rank p's, as this rank reaches it
  AllReduceArena arena;
  void* output = nullptr;  // bf16, local, not in an arena, 16-byte aligned
  std::int64_t bytes = 0;  // a multiple of 16, to arena.max_bytes
  std::int32_t rank = 0;
  std::int32_t ordinal = 0;  // within the replay; names the stamp, and its parity the buffers
  std::int32_t max_blocks = kMaxAllReduceBlocks;  // cap: all ranks of a GPU resident together
  std::int32_t blocks = 0;   // 0: by the kernel's table. All three the same on every rank
  std::int32_t threads = 0;  // a block; 0: by the kernel's table
  // Programmatic launch: the kernel may start before the one ahead of it in the stream has ended,
  // and waits for its end before it touches memory; the kernel behind it may start early likewise.
  // Every kernel of such a chain must wait so: then stream order holds, on which the arenas rely.
  bool pdl = false;
  StampRing ring;  // without all_reduces: the unstamped build
  SpinGuard guard;
};

// Each returns cudaError_t: cudaErrorInvalidValue for arguments out of range.
int launch_one_shot_pull(const AllReduceArgs& args, CUstream_st* stream);
int launch_one_shot_push(const AllReduceArgs& args, CUstream_st* stream);
int launch_two_shot(const AllReduceArgs& args, CUstream_st* stream);

struct AllReduceKernel {
  std::string_view name;  // as body.all_reduce has it
  int (*launch)(const AllReduceArgs&, CUstream_st*);
};
inline constexpr AllReduceKernel kAllReduceKernels[] = {
    {"one_shot_pull", launch_one_shot_pull},
    {"one_shot_push", launch_one_shot_push},
    {"two_shot", launch_two_shot},
};

// Smallest size at which two shots move enough less than one to pay for their second barrier. With
// two ranks both move the same. Up to four: measured on 4 x H200 against push, bench_all_reduce
// (2026-11); above: the threshold of vLLM and SGLang v1 with every pair on NVLink.
constexpr std::int64_t two_shot_from_bytes(int world_size) {
  if (world_size <= 2) return kMaxAllReduceBytes + 1;
  return world_size <= 4 ? 1 << 20 : 256 << 10;
}

// "auto" is push below that threshold, two-shot from it on. Null for a name that is not ours.
constexpr const AllReduceKernel* find_all_reduce(std::string_view name, int world_size,
                                                 std::int64_t bytes) {
  if (name == "auto") {
    name = bytes < two_shot_from_bytes(world_size) ? "one_shot_push" : "two_shot";
  }
  for (const AllReduceKernel& kernel : kAllReduceKernels) {
    if (kernel.name == name) return &kernel;
  }
  return nullptr;
}

// Launch shape of a size: the first row that it fits in.
struct AllReduceGrid {
  std::int64_t up_to_bytes;
  std::int32_t max_blocks;
  std::int32_t threads;
};

}  // namespace tpjitter::kernels
