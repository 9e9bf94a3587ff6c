// What every device wait shares: the communicator's abort word, the deadline, and the report of the
// first wait that passed it; and a kernel that only waits, for injected delays on the GPU.
// The hard thing is that no wait may outlive its peers: the first expiry sets the abort word of
// every rank, and each kernel tests its own on entry, so that a whole graph drains in
// milliseconds.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace tpjitter::kernels {

inline constexpr int kMaxAllReduceRanks = 8;

// In mapped host memory, written once by the first wait of this rank that passed its deadline.
struct DeviceFault {
  std::int32_t rank;
  std::int32_t peer;       // rank that was waited for
  std::int32_t ordinal;    // all-reduce within the replay
  std::uint32_t expected;  // epoch
  std::uint32_t seen;      // the peer's flag when the wait was given up
  std::uint32_t written;   // 1: the fields above are valid; written last
};

struct SpinGuard {
  std::uint32_t* abort = nullptr;  // this rank's word, device memory; 1: return at once
  std::uint32_t* peer_abort[kMaxAllReduceRanks] = {};  // every rank's word; null: not mapped
  DeviceFault* fault = nullptr;                        // mapped host memory
  std::int64_t deadline_ns = 2'000'000'000;            // of one wait, on globaltimer
};

struct SpinArgs {
  SpinGuard guard;
  std::int64_t duration_ns = 0;
};

// One block that occupies the stream for duration_ns. Returns cudaError_t.
int launch_spin(const SpinArgs& args, CUstream_st* stream);

}  // namespace tpjitter::kernels
