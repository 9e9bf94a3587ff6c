// Device stamps: where the GPU's own clock goes. A ring in device memory, one entry a graph replay,
// indexed by a device counter so that a replayed graph needs no new arguments; drained between
// blocks of steps, never written to mapped memory inside the loop. The counter is kept wrapped: a
// division on the way to a stamp would be measured with it.
#pragma once

#include <cstdint>

#include "kernels/spin.h"

namespace tpjitter::kernels {

// One all-reduce on one rank. ns of this rank's globaltimer; 0: not taken.
struct alignas(16) AllReduceStamp {
  // At the store that releases to peers: just before it, with push just behind its first
  // (bracketed: before the collective).
  std::int64_t own_ns;
  std::int64_t reserved;
  // After the first thread's share of the reduction (bracketed: after the collective); with the bits
  // behind it one store of 16 bytes.
  std::int64_t end_ns;
  std::uint64_t waited;                      // bit p: p's flag was late and was polled for
  std::int64_t seen_ns[kMaxAllReduceRanks];  // just after the acquire of p's flag; own: 0
};

// One graph replay.
struct alignas(16) GraphStamp {
  std::int64_t replay;     // counter + 1 of the replay that wrote it; 0: never
  std::int64_t begin_ns;   // first node
  std::int64_t end_ns;     // last node
  std::uint64_t checksum;  // of this replay
};

struct StampRing {
  AllReduceStamp* all_reduces = nullptr;  // [capacity, all_reduces_per_replay]; null: no stamps
  GraphStamp* graphs = nullptr;           // [capacity]; null: no stamps
  // device, replay % capacity; moved on by a replay's last kernel
  const std::int64_t* entry = nullptr;
  std::int64_t capacity = 1;                // replays
  std::int32_t all_reduces_per_replay = 0;  // room; a graph may have fewer
};

enum class StampPoint : std::int32_t {
  kGraphBegin = 0,
  kAllReduceBegin = 1,  // brackets a collective that cannot stamp itself
  kAllReduceEnd = 2,
};

struct StampArgs {
  StampRing ring;
  StampPoint point = StampPoint::kGraphBegin;
  std::int32_t ordinal = 0;  // all-reduce; points 1 and 2
};

// A node that does nothing but stamp. Returns cudaError_t.
int launch_stamp(const StampArgs& args, CUstream_st* stream);

}  // namespace tpjitter::kernels
