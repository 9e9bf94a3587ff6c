// What a rank shares with its peers on the GPUs: one arena of cudaMalloc memory, as
// kernels/all_reduce.h lays it out, exported once by CUDA IPC through the control segment's exchange. World size 1 works without peers.
// Never pool or VMM memory: CUDA IPC cannot export it. Never NVLink multicast.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "harness/backend.h"
#include "harness/cuda/handles.h"
#include "harness/cuda/nccl_communicator.h"
#include "kernels/all_reduce.h"
#include "kernels/clock_ping_pong.h"

namespace tpjitter {

class Communicator {
 public:
  // Collective: exchanges the arenas. Throws RunError naming a pair without peer access.
  explicit Communicator(const RankContext& context);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // This rank's input of an all-reduce with that ordinal, kMaxAllReduceBytes.
  void* input(int ordinal) const;
  kernels::SpinGuard guard() const;
  // For all of our kernels. `output` local memory; `ring` without stamps takes the unstamped kernel.
  kernels::AllReduceArgs all_reduce_args(int ordinal, std::int64_t bytes, void* output,
                                         const kernels::StampRing& ring) const;

  // Of the clocks' ping-pong: the word of `rank` that `from` writes, the stamps of `rank`.
  std::uint32_t* ping_pong_word(int rank, int from) const;
  kernels::PingPongStamps* ping_pong_stamps(int rank) const;

  // Collective at its first call.
  NcclCommunicator& nccl();

  // Tells the kernels of every rank to drain, while they run: a failed rank ends the run for all.
  // Throws nothing.
  void abort_kernels() noexcept;
  // Before a failed rank frees its arena, into which peers may still store: aborts the kernels of
  // every rank, and waits until its own have left `stream` and every peer that lives has said the
  // same, for at most kLeaveNs.
  void leave_after_failure(cudaStream_t stream) noexcept;
  // A wait of this rank's kernels has passed its deadline: a load from host memory.
  bool has_fault() const;
  // The kernels gave up: throws, naming the peer that was waited for where this rank knows it.
  // step -1: not in a step.
  [[noreturn]] void throw_fault(std::int64_t step, const char* what) const;
  // Reads the abort word; between blocks, the stream empty. Throws as throw_fault.
  void check_fault(std::int64_t step, const char* what) const;

 private:
  bool has_drained(cudaStream_t stream) const noexcept;
  bool peers_have_left() const noexcept;
  std::byte* arena(int rank) const;

  RankContext context_;
  std::int64_t deadline_ns_;
  kernels::AllReduceArena arena_;
  DeviceBuffer<std::byte> own_;
  std::vector<PeerMapping> peers_;  // by rank; own: empty
  PinnedBuffer<kernels::DeviceFault> fault_;
  PinnedBuffer<std::uint32_t> one_;  // source of the host's store to the abort word
  Stream abort_stream_;
  std::unique_ptr<NcclCommunicator> nccl_;
};

}  // namespace tpjitter
