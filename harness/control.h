// The shared segment between the launcher and its ranks: plan, progress, barriers, the exchange of
// small things (IPC handles, NCCL id, GPU UUID), rows of the current block, results. It lives in a
// memfd that the launcher creates and each rank inherits, so that nothing is left behind when all
// of them are killed.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "harness/clock.h"
#include "harness/contract/error.h"
#include "harness/contract/phase_row.h"

namespace tpjitter {

// How the message of a rank begins that only ends because another one did: not its fault.
inline constexpr std::string_view kStoppedPrefix = "stopped:";

// A wait for another rank that passed its deadline.
class PeerTimeout : public TimeoutError {
 public:
  PeerTimeout(const std::string& message, int peer) : TimeoutError(message), peer_(peer) {}
  int peer() const { return peer_; }

 private:
  int peer_;
};

inline constexpr std::size_t kExchangeBytes = 1024;
inline constexpr std::size_t kResultBytes = 2u << 20;  // JSON text that a rank leaves
inline constexpr int kArrivalRing = 64;  // modelled all-reduces in flight, a power of two

// Where a rank is. Kept up to date with relaxed stores; the launcher names it when a rank ends.
enum class Stage : std::int32_t {
  kStarting = 0,
  kConnecting,  // waits for the other ranks at a barrier
  kPreparing,   // allocation, capture, upload
  kVerifying,   // bit equality, checksums
  kControls,
  kWarmup,
  kCoupling,  // waits for the accept of the previous step
  kInputs,
  kDispatch,
  kLaunch,
  kDraining,  // between blocks
  kFinished,
};
const char* stage_name(Stage stage);

struct RankSlot {
  std::atomic<std::int32_t> pid;
  std::atomic<std::int32_t> stage;
  std::atomic<std::int32_t> case_index;
  std::atomic<std::int32_t> repetition;
  std::atomic<std::int64_t> step;       // within the repetition; negative in warm-up
  std::atomic<std::uint64_t> progress;  // grows whenever the rank gets on
  std::atomic<std::uint32_t> blocks_published;
  std::atomic<std::uint32_t> blocks_drained;  // by the launcher; the rank waits for it
  std::atomic<std::int64_t> block_rows;       // rows of the published block
  std::atomic<std::uint32_t> failed;          // 1: `error` is set
  std::int32_t waited_for;  // with failed: the rank whose lateness the error reports; -1: none
  // After a failure, 1: nothing of this rank reaches for its peers' device memory any more.
  std::atomic<std::uint32_t> left_device;
  // Result texts left so far, one after the first controls and one at the end, so that a rank that
  // is killed leaves its floors.
  std::atomic<std::uint32_t> results;
  std::int32_t cpu;        // core of the timed thread, -1: not pinned
  std::int32_t numa_node;  // -1: unknown
  char error[1024];
  char device[128];
  char uuid[64];
  unsigned char exchange[kExchangeBytes];
  // Modelled device (host backend): arrival of this rank at the first all-reduce of graph launch n.
  struct Arrival {
    std::atomic<std::int64_t> ordinal;  // n + 1, written last
    std::atomic<std::int64_t> arrival_ns;
  } arrivals[kArrivalRing];
};

// The noise process (harness/noise.h): rank 0 asks, the process answers.
struct NoiseControl {
  std::atomic<std::uint32_t> request;  // futex word; 0: rest
  std::atomic<std::uint32_t> threads;  // that are asked for
  std::atomic<std::uint32_t> running;  // futex word; threads at work
  std::atomic<std::uint64_t> work;     // pieces done since the request
  std::atomic<std::int64_t> begin_ns;
};

struct ControlHeader {
  std::uint64_t magic;
  std::int32_t world_size;
  std::int32_t launch;
  std::int64_t rows_per_block;  // capacity of each rank's row area
  std::int64_t plan_bytes;
  double deadline_scale;
  std::int64_t step_pause_ns;        // up to this long before each step (harness/coupling.h)
  std::atomic<std::uint32_t> abort;  // 1: everybody stops
  std::atomic<std::uint32_t> barrier_arrived;
  std::atomic<std::uint32_t> barrier_generation;  // futex word
  NoiseControl noise;
  // coupling = "rank0": what rank 0 has told the others (harness/coupling.h). Polled, so on a line
  // of its own.
  alignas(64) std::atomic<std::int64_t> told;
};

// A view of the segment. The creator sizes it; ranks map what they inherit.
class ControlSegment {
 public:
  static ControlSegment create(int world_size, int launch, std::int64_t rows_per_block,
                               std::string_view plan, double deadline_scale);
  static ControlSegment open(int fd);  // throws RunError when it is not one of ours
  ControlSegment(ControlSegment&& other) noexcept;
  ControlSegment& operator=(ControlSegment&&) = delete;
  ~ControlSegment();

  int fd() const { return fd_; }
  ControlHeader& header() { return *static_cast<ControlHeader*>(map_); }
  RankSlot& rank(int k);
  std::span<PhaseRow> rows(int k);                 // rows_per_block rows
  std::span<char> result(int k, std::uint32_t n);  // room of the n-th result text
  std::string latest_result(int k);                // a copy; empty: none yet
  std::string_view plan();
  int world_size() { return header().world_size; }
  Deadlines deadlines() { return Deadlines::scaled(header().deadline_scale); }

  bool aborted() { return header().abort.load(std::memory_order_relaxed) != 0; }
  void abort();  // wakes every waiter
  // Every rank calls it; returns when all have, throws PeerTimeout naming who is missing, or
  // RunError when the run was aborted.
  void barrier(int rank, std::int64_t deadline_ns, const char* what);
  // Polls the told word until it is `value` or more. Throws PeerTimeout naming this rank, the step
  // and rank 0, or RunError when the run was aborted.
  void wait_told(int rank, std::int64_t value, std::int64_t step, std::int64_t deadline_ns);
  // First failure of a rank: kept for the launcher, and everybody is told to stop. `waited_for`:
  // the rank whose lateness it reports.
  void fail(int rank, std::string_view message, int waited_for = -1);

 private:
  ControlSegment(int fd, void* map, std::size_t bytes) : fd_(fd), map_(map), bytes_(bytes) {}
  PeerTimeout missing_at_barrier(int rank, std::int64_t deadline_ns, const char* what);
  int fd_ = -1;
  void* map_ = nullptr;
  std::size_t bytes_ = 0;
};

// Cross-process futex on a word of the segment. Returns on wake, timeout or a changed value.
void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected, std::int64_t timeout_ns);
void futex_wake_all(std::atomic<std::uint32_t>& word);

}  // namespace tpjitter
