#include "harness/cuda/communicator.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>

#include "harness/clock.h"
#include "harness/contract/error.h"
#include "harness/cuda/cuda_check.h"
#include "harness/cuda/cuda_environment.h"

namespace tpjitter {

using kernels::AllReduceArena;
using kernels::kMaxAllReduceRanks;

namespace {

// Of a failed rank, for its own kernels and its peers': they drain in milliseconds, and the launcher
// kills after 2.5 s.
constexpr std::int64_t kLeaveNs = 1'500'000'000;
constexpr useconds_t kLeavePollUs = 500;

void check_peer_access(const RankContext& context) {
  const std::vector<int> devices = devices_of_ranks(context);
  const int own = devices[context.rank];
  for (int p = 0; p < context.world_size; ++p) {
    if (p == context.rank) continue;
    int reachable = 0;
    check_cuda(cudaDeviceCanAccessPeer(&reachable, own, devices[p]));
    if (reachable != 0) continue;
    throw RunError(fmt::format(
        "rank {}: GPU {} cannot read GPU {}'s memory (no NVLink or PCIe peer access); run with "
        "--world-size of GPUs that can, or body.all_reduce = \"nccl\" on another machine",
        context.rank, own, devices[p]));
  }
}

}  // namespace

Communicator::Communicator(const RankContext& context)
    : context_(context),
      deadline_ns_(context.control->deadlines().device_ns),
      // More ranks than the kernels take are NCCL's alone.
      arena_{std::min(context.world_size, kMaxAllReduceRanks)},
      own_(arena_.bytes()),
      fault_(1),
      one_(1),
      abort_stream_(make_stream()) {
  one_[0] = 1;
  check_peer_access(context);
  check_cuda(cudaMemset(own_.data(), 0, own_.size_bytes()));
  check_cuda(cudaDeviceSynchronize());
  peers_.resize(context.world_size);
  if (context.world_size == 1) return;

  ControlSegment& control = *context.control;
  const std::int64_t deadline_ns = control.deadlines().prepare_ns;
  cudaIpcMemHandle_t handle;
  static_assert(sizeof handle <= kExchangeBytes);
  check_cuda(cudaIpcGetMemHandle(&handle, own_.data()));
  std::memcpy(control.rank(context.rank).exchange, &handle, sizeof handle);
  control.barrier(context.rank, deadline_ns, "CUDA IPC handles written");
  for (int p = 0; p < context.world_size; ++p) {
    if (p == context.rank) continue;
    std::memcpy(&handle, control.rank(p).exchange, sizeof handle);
    peers_[p] = PeerMapping(handle);
  }
  // The exchange area is free again, and every arena is zero and mapped, when this returns.
  control.barrier(context.rank, deadline_ns, "CUDA IPC handles opened");
}

Communicator::~Communicator() = default;

std::byte* Communicator::arena(int rank) const {
  return rank == context_.rank ? own_.data() : static_cast<std::byte*>(peers_[rank].data());
}

void* Communicator::input(int ordinal) const { return own_.data() + arena_.input(ordinal); }

kernels::SpinGuard Communicator::guard() const {
  kernels::SpinGuard guard;
  guard.abort = reinterpret_cast<std::uint32_t*>(own_.data() + AllReduceArena::kAbort);
  // More ranks than the kernels take: nccl only, which has its own abort.
  for (int p = 0; p < std::min(context_.world_size, kMaxAllReduceRanks); ++p) {
    guard.peer_abort[p] = reinterpret_cast<std::uint32_t*>(arena(p) + AllReduceArena::kAbort);
  }
  guard.fault = fault_.data();
  guard.deadline_ns = deadline_ns_;
  return guard;
}

kernels::AllReduceArgs Communicator::all_reduce_args(int ordinal, std::int64_t bytes, void* output,
                                                     const kernels::StampRing& ring) const {
  kernels::AllReduceArgs args;
  for (int p = 0; p < arena_.world_size; ++p) args.arenas[p] = arena(p);
  args.arena = arena_;
  args.output = output;
  args.bytes = bytes;
  args.rank = context_.rank;
  args.ordinal = ordinal;
  args.ring = ring;
  args.guard = guard();
  return args;
}

std::uint32_t* Communicator::ping_pong_word(int rank, int from) const {
  constexpr std::size_t kLine = 128;
  static_assert(AllReduceArena::kPingPongWords + kMaxAllReduceRanks * kLine <=
                AllReduceArena::kPingPongStamps);
  return reinterpret_cast<std::uint32_t*>(arena(rank) + AllReduceArena::kPingPongWords +
                                          static_cast<std::size_t>(from) * kLine);
}

kernels::PingPongStamps* Communicator::ping_pong_stamps(int rank) const {
  return reinterpret_cast<kernels::PingPongStamps*>(arena(rank) + AllReduceArena::kPingPongStamps);
}

NcclCommunicator& Communicator::nccl() {
  if (!nccl_) nccl_ = std::make_unique<NcclCommunicator>(context_);
  return *nccl_;
}

void Communicator::abort_kernels() noexcept {
  // A stream of its own: the copies pass the kernels that spin.
  for (int p = 0; p < context_.world_size; ++p) {
    // Whoever has left may have freed its arena, and has nothing to drain.
    const RankSlot& peer = context_.control->rank(p);
    if (p != context_.rank && peer.left_device.load(std::memory_order_acquire) != 0) continue;
    cudaMemcpyAsync(arena(p) + AllReduceArena::kAbort, one_.data(), sizeof(std::uint32_t),
                    cudaMemcpyDefault, abort_stream_.get());
  }
  if (nccl_) nccl_->abort();
}

bool Communicator::has_drained(cudaStream_t stream) const noexcept {
  // Of a context that has failed nothing runs on.
  return cudaStreamQuery(stream) != cudaErrorNotReady &&
         cudaStreamQuery(abort_stream_.get()) != cudaErrorNotReady;
}

bool Communicator::peers_have_left() const noexcept {
  for (int p = 0; p < context_.world_size; ++p) {
    const RankSlot& peer = context_.control->rank(p);
    if (p == context_.rank || peer.left_device.load(std::memory_order_acquire) != 0) continue;
    const pid_t pid = peer.pid.load(std::memory_order_relaxed);
    if (pid > 0 && kill(pid, 0) == 0) return false;  // the launcher takes in those that have ended
  }
  return true;
}

void Communicator::leave_after_failure(cudaStream_t stream) noexcept {
  abort_kernels();
  const std::int64_t give_up = now_ns() + kLeaveNs;
  while (!has_drained(stream) && now_ns() < give_up) usleep(kLeavePollUs);
  context_.control->rank(context_.rank).left_device.store(1, std::memory_order_release);
  while (!peers_have_left() && now_ns() < give_up) usleep(kLeavePollUs);
}

bool Communicator::has_fault() const {
  return std::atomic_ref(fault_[0].written).load(std::memory_order_acquire) != 0;
}

void Communicator::throw_fault(std::int64_t step, const char* what) const {
  const std::string place = step < 0
                                ? fmt::format("rank {}, {}", context_.rank, what)
                                : fmt::format("rank {}, step {}, {}", context_.rank, step, what);
  const kernels::DeviceFault& fault = fault_[0];
  if (!has_fault()) {
    throw RunError(
        fmt::format("{} {}: another rank ended the run on the GPU", kStoppedPrefix, place));
  }
  // Own kernels of a rank may wait for the host alone: then nobody else is late.
  const int peer = fault.peer == context_.rank ? -1 : fault.peer;
  const double waited_s = static_cast<double>(deadline_ns_) / 1e9;
  if (fault.ordinal < 0) {
    throw PeerTimeout(
        fmt::format("{}: waited {:.1f} s on the GPU for clock message {} of rank {} (saw {})",
                    place, waited_s, fault.expected, fault.peer, fault.seen),
        // Others may wait behind the pair that is late, and report first: no rank is blamed then.
        context_.world_size > 2 ? -1 : peer);
  }
  throw PeerTimeout(
      fmt::format(
          "{}: waited {:.1f} s on the GPU for rank {} in all-reduce {} (expected epoch {}, saw {})",
          place, waited_s, fault.peer, fault.ordinal, fault.expected, fault.seen),
      peer);
}

void Communicator::check_fault(std::int64_t step, const char* what) const {
  std::uint32_t aborted = 0;
  check_cuda(cudaMemcpy(&aborted, own_.data() + AllReduceArena::kAbort, sizeof aborted,
                        cudaMemcpyDeviceToHost));
  if (aborted != 0) throw_fault(step, what);
}

}  // namespace tpjitter
