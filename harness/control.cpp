#include "harness/control.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "harness/contract/error.h"

namespace tpjitter {
namespace {

constexpr std::uint64_t kMagic = 0x7470'6a69'7474'0003;  // bumped with the layout

constexpr std::size_t align_up(std::size_t n) { return (n + 4095) & ~std::size_t{4095}; }

struct Layout {
  std::size_t slots, rows, results, plan, total;
};

Layout layout_of(int world_size, std::int64_t rows_per_block, std::size_t plan_bytes) {
  Layout l{};
  l.slots = align_up(sizeof(ControlHeader));
  l.rows = l.slots + align_up(sizeof(RankSlot) * world_size);
  l.results = l.rows + align_up(sizeof(PhaseRow) * rows_per_block) * world_size;
  l.plan = l.results + 2 * kResultBytes * world_size;
  l.total = l.plan + align_up(plan_bytes);
  return l;
}

Layout layout_of(const ControlHeader& h) {
  return layout_of(h.world_size, h.rows_per_block, static_cast<std::size_t>(h.plan_bytes));
}

RunError stopped() {
  return RunError(fmt::format("{} another rank or the launcher ended the run", kStoppedPrefix));
}

}  // namespace

const char* stage_name(Stage stage) {
  switch (stage) {
    case Stage::kStarting:
      return "starting";
    case Stage::kConnecting:
      return "waiting at a barrier";
    case Stage::kPreparing:
      return "preparing";
    case Stage::kVerifying:
      return "verifying";
    case Stage::kControls:
      return "controls";
    case Stage::kWarmup:
      return "warm-up";
    case Stage::kCoupling:
      return "waiting for accept";
    case Stage::kInputs:
      return "inputs";
    case Stage::kDispatch:
      return "dispatch";
    case Stage::kLaunch:
      return "graph launch";
    case Stage::kDraining:
      return "between blocks";
    case Stage::kFinished:
      return "finished";
  }
  return "unknown stage";
}

void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected, std::int64_t timeout_ns) {
  timespec t{timeout_ns / 1'000'000'000, timeout_ns % 1'000'000'000};
  syscall(SYS_futex, &word, FUTEX_WAIT, expected, &t, nullptr, 0);
}

void futex_wake_all(std::atomic<std::uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, 1 << 30, nullptr, nullptr, 0);
}

ControlSegment ControlSegment::create(int world_size, int launch, std::int64_t rows_per_block,
                                      std::string_view plan, double deadline_scale) {
  const Layout l = layout_of(world_size, rows_per_block, plan.size());
  const int fd = memfd_create("tpjitter-control", MFD_CLOEXEC);
  if (fd < 0) throw RunError(fmt::format("memfd_create failed: {}", std::strerror(errno)));
  void* map = MAP_FAILED;
  // Populated beforehand: a page fault inside the timed loop would be ours, not the engine's.
  // Reserved too: memory that is not there is an error here, not a SIGBUS in a rank.
  errno = posix_fallocate(fd, 0, static_cast<off_t>(l.total));
  if (errno == 0) {
    map = mmap(nullptr, l.total, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  }
  if (map == MAP_FAILED) {
    const int error = errno;
    close(fd);
    throw RunError(
        fmt::format("shared memory of {} MiB for {} ranks could not be made: {}; free "
                    "memory or lower sampling.block_steps",
                    l.total >> 20, world_size, std::strerror(error)));
  }
  ControlSegment segment(fd, map, l.total);
  ControlHeader& h = segment.header();
  h.magic = kMagic;
  h.world_size = world_size;
  h.launch = launch;
  h.rows_per_block = rows_per_block;
  h.plan_bytes = static_cast<std::int64_t>(plan.size());
  h.deadline_scale = deadline_scale;
  std::memcpy(static_cast<char*>(map) + l.plan, plan.data(), plan.size());
  for (int k = 0; k < world_size; ++k) {
    segment.rank(k).cpu = -1;
    segment.rank(k).waited_for = -1;
    segment.rank(k).numa_node = -1;
  }
  return segment;
}

ControlSegment ControlSegment::open(int fd) {
  struct stat st {};
  if (fstat(fd, &st) != 0 || static_cast<std::size_t>(st.st_size) < sizeof(ControlHeader)) {
    throw RunError("rank: no control segment; ranks are started by `tpjitter run`, not by hand");
  }
  const auto bytes = static_cast<std::size_t>(st.st_size);
  void* map = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (map == MAP_FAILED) throw RunError(fmt::format("rank: mmap failed: {}", std::strerror(errno)));
  ControlSegment segment(fd, map, bytes);
  const ControlHeader& h = segment.header();
  if (h.magic != kMagic || layout_of(h).total != bytes) {
    throw RunError("rank: the control segment is of another tpjitter version");
  }
  return segment;
}

ControlSegment::ControlSegment(ControlSegment&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      map_(std::exchange(other.map_, nullptr)),
      bytes_(other.bytes_) {}

ControlSegment::~ControlSegment() {
  if (map_ != nullptr) munmap(map_, bytes_);
  if (fd_ >= 0) close(fd_);
}

RankSlot& ControlSegment::rank(int k) {
  char* base = static_cast<char*>(map_) + layout_of(header()).slots;
  return reinterpret_cast<RankSlot*>(base)[k];
}

std::span<PhaseRow> ControlSegment::rows(int k) {
  const ControlHeader& h = header();
  const std::size_t stride = align_up(sizeof(PhaseRow) * h.rows_per_block);
  char* base = static_cast<char*>(map_) + layout_of(h).rows + stride * k;
  return {reinterpret_cast<PhaseRow*>(base), static_cast<std::size_t>(h.rows_per_block)};
}

std::span<char> ControlSegment::result(int k, std::uint32_t n) {
  const std::size_t index = 2 * static_cast<std::size_t>(k) + n % 2;
  char* base = static_cast<char*>(map_) + layout_of(header()).results;
  return {base + kResultBytes * index, kResultBytes};
}

std::string ControlSegment::latest_result(int k) {
  for (;;) {
    const std::uint32_t n = rank(k).results.load(std::memory_order_acquire);
    if (n == 0) return {};
    const char* text = result(k, n).data();
    std::string copy(text, strnlen(text, kResultBytes));
    // Two texts alternate: the copy is whole unless the rank has begun its second one since. A
    // read-modify-write, so that the copy is not read after it.
    if (rank(k).results.fetch_add(0, std::memory_order_acq_rel) == n) return copy;
  }
}

std::string_view ControlSegment::plan() {
  return {static_cast<char*>(map_) + layout_of(header()).plan,
          static_cast<std::size_t>(header().plan_bytes)};
}

void ControlSegment::abort() {
  ControlHeader& h = header();
  h.abort.store(1, std::memory_order_release);
  h.barrier_generation.fetch_add(1, std::memory_order_release);
  futex_wake_all(h.barrier_generation);
  for (int k = 0; k < h.world_size; ++k) futex_wake_all(rank(k).blocks_drained);
}

void ControlSegment::fail(int k, std::string_view message, int waited_for) {
  RankSlot& slot = rank(k);
  if (slot.failed.load(std::memory_order_relaxed) == 0) {
    const std::size_t n = std::min(message.size(), sizeof(slot.error) - 1);
    std::memcpy(slot.error, message.data(), n);
    slot.error[n] = '\0';
    slot.waited_for = waited_for;
    slot.failed.store(1, std::memory_order_release);
  }
  abort();
}

void ControlSegment::wait_told(int rank_index, std::int64_t value, std::int64_t step,
                               std::int64_t deadline_ns) {
  constexpr std::uint32_t kPollsPerCheck = 64;
  const std::atomic<std::int64_t>& told = header().told;
  std::int64_t give_up = 0;
  for (std::uint32_t polls = 1; told.load(std::memory_order_acquire) < value; ++polls) {
    if (polls % kPollsPerCheck != 0) continue;
    if (aborted()) throw stopped();
    const std::int64_t now = now_ns();
    if (give_up == 0) give_up = now + deadline_ns;
    if (now > give_up) {
      throw PeerTimeout(
          fmt::format("rank {}, step {}: rank 0 did not tell the accept result within {:.1f} s",
                      rank_index, step, static_cast<double>(deadline_ns) / 1e9),
          0);
    }
    sched_yield();  // with more ranks than cores rank 0 needs one
  }
}

// Who is not at a barrier; whoever is there only waits too.
PeerTimeout ControlSegment::missing_at_barrier(int rank_index, std::int64_t deadline_ns,
                                               const char* what) {
  int first = -1;
  std::string missing;
  for (int k = 0; k < world_size(); ++k) {
    const auto stage = static_cast<Stage>(rank(k).stage.load(std::memory_order_relaxed));
    if (stage == Stage::kConnecting) continue;
    if (first < 0) first = k;
    missing += fmt::format("{}rank {}", missing.empty() ? "" : ", ", k);
  }
  return {fmt::format("rank {} waited {:.1f} s for {}: {}", rank_index,
                      static_cast<double>(deadline_ns) / 1e9,
                      missing.empty() ? "the other ranks" : missing, what),
          first};
}

void ControlSegment::barrier(int rank_index, std::int64_t deadline_ns, const char* what) {
  ControlHeader& h = header();
  RankSlot& slot = rank(rank_index);
  const auto stage_before = slot.stage.exchange(static_cast<std::int32_t>(Stage::kConnecting));
  const std::int64_t give_up = now_ns() + deadline_ns;
  const std::uint32_t generation = h.barrier_generation.load(std::memory_order_acquire);
  if (aborted()) throw stopped();
  if (h.barrier_arrived.fetch_add(1, std::memory_order_acq_rel) + 1 ==
      static_cast<std::uint32_t>(h.world_size)) {
    h.barrier_arrived.store(0, std::memory_order_relaxed);
    h.barrier_generation.fetch_add(1, std::memory_order_release);
    futex_wake_all(h.barrier_generation);
  } else {
    while (h.barrier_generation.load(std::memory_order_acquire) == generation) {
      const std::int64_t left = give_up - now_ns();
      if (left <= 0) {
        throw missing_at_barrier(rank_index, deadline_ns, what);
      }
      futex_wait(h.barrier_generation, generation, std::min<std::int64_t>(left, 100'000'000));
    }
  }
  if (aborted()) throw stopped();
  slot.stage.store(stage_before, std::memory_order_relaxed);
  slot.progress.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace tpjitter
