#include "harness/cuda/communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "harness/contract/error.h"
#include "harness/cuda/cuda_check.h"

namespace tpjitter {

using kernels::kMaxAllReduceBytes;
using kernels::kMaxAllReduceRanks;

// Byte offsets. Words that different parties write lie on lines of their own.
struct Communicator::Arena {
  static constexpr std::size_t kFlags = 0;
  static constexpr std::size_t kEpochs = kFlags + kernels::kAllReduceFlags * sizeof(std::uint32_t);
  static constexpr std::size_t kAbort = 4096;
  static constexpr std::size_t kInputs = 8192;
  static constexpr std::size_t kBytes = kInputs + 2 * static_cast<std::size_t>(kMaxAllReduceBytes);
  static_assert(kEpochs + kernels::kMaxAllReduceBlocks * sizeof(std::uint32_t) <= kAbort);
};

namespace {

void check_peer_access(const RankContext& context) {
  for (int p = 0; p < context.world_size; ++p) {
    if (p == context.rank) continue;
    int reachable = 0;
    check_cuda(cudaDeviceCanAccessPeer(&reachable, context.rank, p));
    if (reachable != 0) continue;
    throw RunError(fmt::format(
        "rank {}: GPU {} cannot read GPU {}'s memory (no NVLink or PCIe peer access); run with "
        "--world-size of GPUs that can, or body.all_reduce = \"nccl\" on another machine",
        context.rank, context.rank, p));
  }
}

}  // namespace

Communicator::Communicator(const RankContext& context)
    : context_(context),
      deadline_ns_(context.control->deadlines().device_ns),
      own_(Arena::kBytes),
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

void* Communicator::input(int ordinal) const {
  return own_.data() + Arena::kInputs + (ordinal % 2) * kMaxAllReduceBytes;
}

kernels::SpinGuard Communicator::guard() const {
  kernels::SpinGuard guard;
  guard.abort = reinterpret_cast<std::uint32_t*>(own_.data() + Arena::kAbort);
  // More ranks than the kernels take: nccl only, which has its own abort.
  for (int p = 0; p < std::min(context_.world_size, kMaxAllReduceRanks); ++p) {
    guard.peer_abort[p] = reinterpret_cast<std::uint32_t*>(arena(p) + Arena::kAbort);
  }
  guard.fault = fault_.data();
  guard.deadline_ns = deadline_ns_;
  return guard;
}

kernels::AllReduceArgs Communicator::one_shot_args(int ordinal, std::int64_t bytes, void* output,
                                                   const kernels::StampRing& ring) const {
  kernels::AllReduceArgs args;
  for (int p = 0; p < context_.world_size; ++p) {
    args.inputs[p] = arena(p) + Arena::kInputs + (ordinal % 2) * kMaxAllReduceBytes;
    args.flags[p] = reinterpret_cast<std::uint32_t*>(arena(p) + Arena::kFlags);
  }
  args.epochs = reinterpret_cast<std::uint32_t*>(own_.data() + Arena::kEpochs);
  args.output = output;
  args.bytes = bytes;
  args.rank = context_.rank;
  args.world_size = context_.world_size;
  args.ordinal = ordinal;
  args.ring = ring;
  args.guard = guard();
  return args;
}

NcclCommunicator& Communicator::nccl() {
  if (!nccl_) nccl_ = std::make_unique<NcclCommunicator>(context_);
  return *nccl_;
}

void Communicator::abort_kernels() noexcept {
  // A stream of its own: the copy passes the kernels that spin.
  cudaMemcpyAsync(own_.data() + Arena::kAbort, one_.data(), sizeof(std::uint32_t),
                  cudaMemcpyHostToDevice, abort_stream_.get());
  if (nccl_) nccl_->abort();
}

void Communicator::throw_fault(std::int64_t step, const char* what) const {
  const std::string place = step < 0
                                ? fmt::format("rank {}, {}", context_.rank, what)
                                : fmt::format("rank {}, step {}, {}", context_.rank, step, what);
  const kernels::DeviceFault& fault = fault_[0];
  if (fault.written == 0) {
    throw RunError(fmt::format("{}: stopped on the GPU: a peer's wait passed its deadline", place));
  }
  throw TimeoutError(fmt::format(
      "{}: waited {:.1f} s on the GPU for rank {} in all-reduce {} (expected epoch {}, saw {})",
      place, static_cast<double>(deadline_ns_) / 1e9, fault.peer, fault.ordinal, fault.expected,
      fault.seen));
}

void Communicator::check_fault(std::int64_t step, const char* what) const {
  std::uint32_t aborted = 0;
  check_cuda(
      cudaMemcpy(&aborted, own_.data() + Arena::kAbort, sizeof aborted, cudaMemcpyDeviceToHost));
  if (aborted != 0) throw_fault(step, what);
}

}  // namespace tpjitter
