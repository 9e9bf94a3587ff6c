// Ping-pong between two clocks. Relaxed accesses at system scope: the messages carry no data but
// their number, and a release or acquire would be measured with them. The answerer writes its
// stamps behind its answer, so that they are on their way while the next message is.
// Grid: one thread.
// Limits: every wait ends at the deadline or when the communicator is aborted; the exchanges from
// there on keep what they had.
#include <cuda_runtime.h>

#include "kernels/clock_ping_pong.h"
#include "kernels/spin.cuh"

namespace tpjitter::kernels {
namespace {

constexpr std::int32_t kNoAllReduce = -1;  // for the report

// Until own_word has reached `sequence`; false: aborted or past the deadline.
__device__ __forceinline__ bool wait_for(const ClockPingPongArgs& args, std::uint32_t sequence) {
  std::int64_t first_check_ns = 0;
  std::uint32_t seen = load_relaxed_system(args.own_word);
  for (std::uint32_t spins = 1; static_cast<std::int32_t>(seen - sequence) < 0; ++spins) {
    if (spins % kSpinsPerCheck == 0) {
      const std::int64_t now = globaltimer_ns();
      if (first_check_ns == 0) first_check_ns = now;
      if (now - first_check_ns > args.guard.deadline_ns) {
        report_expiry(args.guard, {args.rank, args.peer, kNoAllReduce, sequence, seen, 1});
        return false;
      }
      if (aborted(args.guard)) return false;
    }
    seen = load_relaxed_system(args.own_word);
  }
  return true;
}

__device__ __forceinline__ void send(const ClockPingPongArgs& args) {
  for (std::int32_t i = 0; i < args.exchanges; ++i) {
    const std::uint32_t sequence = args.first_sequence + 1 + static_cast<std::uint32_t>(i);
    const std::int64_t send_ns = globaltimer_ns();
    store_relaxed_system(args.peer_word, sequence);
    if (!wait_for(args, sequence)) return;
    const std::int64_t back_ns = globaltimer_ns();
    args.stamps[i].send_ns = send_ns;
    args.stamps[i].back_ns = back_ns;
  }
  // The answerer's stamps were written before this one.
  if (wait_for(args, args.first_sequence + 1 + static_cast<std::uint32_t>(args.exchanges))) {
    __threadfence_system();
  }
}

__device__ __forceinline__ void answer(const ClockPingPongArgs& args) {
  for (std::int32_t i = 0; i < args.exchanges; ++i) {
    const std::uint32_t sequence = args.first_sequence + 1 + static_cast<std::uint32_t>(i);
    if (!wait_for(args, sequence)) return;
    const std::int64_t receive_ns = globaltimer_ns();
    const std::int64_t answer_ns = globaltimer_ns();
    store_relaxed_system(args.peer_word, sequence);
    volatile PingPongStamps* stamps = args.stamps + i;
    stamps->receive_ns = receive_ns;
    stamps->answer_ns = answer_ns;
  }
  __threadfence_system();
  store_relaxed_system(args.peer_word,
                       args.first_sequence + 1 + static_cast<std::uint32_t>(args.exchanges));
}

__global__ void clock_ping_pong_kernel(const ClockPingPongArgs args) {
  if (aborted(args.guard)) return;
  if (args.sender) {
    send(args);
  } else {
    answer(args);
  }
}

}  // namespace

int launch_clock_ping_pong(const ClockPingPongArgs& args, CUstream_st* stream) {
  if (args.exchanges <= 0 || args.own_word == nullptr || args.peer_word == nullptr ||
      args.stamps == nullptr) {
    return cudaErrorInvalidValue;
  }
  clock_ping_pong_kernel<<<1, 1, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace tpjitter::kernels
