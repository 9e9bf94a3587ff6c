// All-reduce of bf16 values between the ranks of one host, over memory that each can read. The
// kernels take pointers, not processes: peers may be other GPUs (CUDA IPC) or streams of one GPU.
//
// Flags and epochs: block b of rank r tells block b of every peer "my input is ready" by storing
// its epoch into the peer's flag [b][r]. An epoch is a 32-bit counter in device memory, one a
// block, so that a replayed graph goes on counting; it wraps, is never reset, and is compared by
// signed difference. Every rank of a communicator runs the same sequence of sizes.
#pragma once

#include <cstdint>

#include "kernels/spin.h"
#include "kernels/stamps.h"

namespace tpjitter::kernels {

inline constexpr int kMaxAllReduceBlocks = 36;                 // vLLM's choice for one stage
inline constexpr std::int64_t kMaxAllReduceBytes = 8ll << 20;  // as vLLM's custom all-reduce
inline constexpr int kAllReduceFlags = kMaxAllReduceBlocks * kMaxAllReduceRanks;  // u32 a rank

struct AllReduceArgs {
  const void* inputs[kMaxAllReduceRanks] = {};    // rank p's input of this call, 16-byte aligned
  std::uint32_t* flags[kMaxAllReduceRanks] = {};  // rank p's [kMaxAllReduceBlocks, ranks]
  std::uint32_t* epochs = nullptr;                // [kMaxAllReduceBlocks], this rank's own
  void* output = nullptr;                         // bf16, local, not one of the inputs
  std::int64_t bytes = 0;                         // a multiple of 16, to kMaxAllReduceBytes
  std::int32_t rank = 0;
  std::int32_t world_size = 1;
  std::int32_t ordinal = 0;                       // within the replay; names the stamp
  std::int32_t max_blocks = kMaxAllReduceBlocks;  // the same on every rank
  std::int32_t threads = 512;                     // a block; at least 32 * world_size
  StampRing ring;                                 // without all_reduces: the unstamped build
  SpinGuard guard;
};

// One shot, pull. Caution: consecutive calls of a communicator must alternate between two input
// buffers; see the kernel's file for why that replaces an end barrier. Returns cudaError_t.
int launch_one_shot_pull(const AllReduceArgs& args, CUstream_st* stream);

}  // namespace tpjitter::kernels
