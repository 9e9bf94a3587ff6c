// Messages there and back between two clocks: a kernel on one GPU, and on the other side the same
// kernel on another GPU or a host thread on mapped memory. The side that sends first ends up with
// all four stamps of each exchange. One thread a side; both sides must be able to run at once.
#pragma once

#include <cstdint>

#include "kernels/spin.h"

namespace tpjitter::kernels {

// ns of the clock of the side named. Sender: who sends first.
struct PingPongStamps {
  std::int64_t send_ns;     // sender, just before its message
  std::int64_t receive_ns;  // answerer, just after it has seen it
  std::int64_t answer_ns;   // answerer, just before its message back
  std::int64_t back_ns;     // sender, just after it has seen that
};

// Messages are sequence numbers, first_sequence + 1 and on, compared by signed difference: words are
// never reset, and wrap. After the last exchange one message more says that the answerer's stamps
// have arrived: a call uses exchanges + 1 numbers.
struct ClockPingPongArgs {
  std::uint32_t* own_word = nullptr;   // written by the other side
  std::uint32_t* peer_word = nullptr;  // read by the other side
  PingPongStamps* stamps = nullptr;    // [exchanges], the sender's; the answerer writes its half
  std::uint32_t first_sequence = 0;    // the same on both sides
  std::int32_t exchanges = 0;
  std::int32_t rank = 0, peer = 0;  // for the report of a wait past its deadline
  bool sender = false;
  SpinGuard guard;
};

// Returns cudaError_t.
int launch_clock_ping_pong(const ClockPingPongArgs& args, CUstream_st* stream);

}  // namespace tpjitter::kernels
