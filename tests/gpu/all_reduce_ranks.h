// All ranks of an all-reduce in one process, on one GPU or several: a stream and an arena a rank,
// pointers in place of IPC. Few enough blocks that all of them are resident together, or they would
// wait for blocks that cannot start. Calls are enqueued rank by rank, so that no stream fills up behind a waiting one.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstdlib>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "harness/cuda/handles.h"
#include "kernels/all_reduce.h"
#include "tests/gpu/gpu_test_main.h"

namespace tpjitter {

// Lazy loading of a kernel waits for the device: it would hang behind a kernel that waits for a
// peer. Set before the first CUDA call, which is the fixture's look for a device.
class AllRanksTest : public test::GpuTest {
 public:
  // Once a pair of GPUs and process: a second time is an error, which compute-sanitizer reports.
  static void enable_peer_access(int from, int to) {
    if (!enabled_.emplace(from, to).second) return;
    check_cuda(cudaSetDevice(from));
    check_cuda(cudaDeviceEnablePeerAccess(to, 0));
  }

 protected:
  static void SetUpTestSuite() {
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    // Streams that share a hardware queue would wait for each other's waiting kernels.
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
  }

 private:
  inline static std::set<std::pair<int, int>> enabled_;
};

inline void synchronize(cudaStream_t stream) { check_cuda(cudaStreamSynchronize(stream)); }

template <class T>
std::vector<T> download(const T* device, std::size_t size) {
  std::vector<T> host(size);
  check_cuda(cudaMemcpy(host.data(), device, size * sizeof(T), cudaMemcpyDeviceToHost));
  return host;
}

template <class T>
void upload(T* device, const std::vector<T>& host) {
  check_cuda(cudaMemcpy(device, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
  check_cuda(cudaDeviceSynchronize());  // pageable memory, and streams that do not wait for it
}

template <class T>
DeviceBuffer<T> zeroed(std::size_t size) {
  DeviceBuffer<T> buffer(size);
  check_cuda(cudaMemset(buffer.data(), 0, buffer.size_bytes()));
  return buffer;
}

struct AllReduceRank {
  AllReduceRank(const kernels::AllReduceArena& layout, int stamp_count)
      : arena(zeroed<std::byte>(layout.bytes())),
        output(static_cast<std::size_t>(layout.max_bytes / 2)),
        stamps(zeroed<kernels::AllReduceStamp>(stamp_count)) {
    const auto elements = static_cast<std::size_t>(layout.max_bytes / 2);
    for (const int i : {0, 1}) inputs[i] = part<std::uint16_t>(layout.input(i), elements);
    using Arena = kernels::AllReduceArena;
    flags = part<std::uint32_t>(Arena::kFlags, Arena::kFlagWords);
    epochs = part<std::uint32_t>(Arena::kEpochs, kernels::kMaxAllReduceBlocks);
    push_epochs = part<std::uint32_t>(Arena::kPushEpochs, kernels::kMaxAllReduceBlocks);
    abort = part<std::uint32_t>(Arena::kAbort, 1);
    slots = part<std::uint32_t>(layout.slots(0), elements * layout.world_size);
  }

  Stream stream = make_stream();
  DeviceBuffer<std::byte> arena;
  // Parts of the arena; device addresses.
  std::span<std::uint16_t> inputs[2];
  std::span<std::uint32_t> flags, epochs, push_epochs, abort, slots;
  PinnedBuffer<kernels::DeviceFault> fault{1};
  DeviceBuffer<std::uint16_t> output;
  DeviceBuffer<kernels::AllReduceStamp> stamps;
  DeviceBuffer<std::int64_t> ring_entry = zeroed<std::int64_t>(1);

 private:
  template <class T>
  std::span<T> part(std::size_t offset, std::size_t count) {
    return {reinterpret_cast<T*>(arena.data() + offset), count};
  }
};

class AllReduceRanks {
 public:
  // stamps: all-reduces that get a stamp each; 0 takes the unstamped build. devices: rank r's is
  // r % devices.
  AllReduceRanks(int world_size, std::int64_t max_bytes, int stamps = 0, int devices = 1)
      : layout_{world_size, max_bytes}, stamps_(stamps), devices_(devices) {
    for (int a = 0; a < devices; ++a) {
      for (int b = 0; b < devices; ++b) {
        if (a != b) AllRanksTest::enable_peer_access(a, b);
      }
    }
    ranks_.reserve(world_size);
    for (int r = 0; r < world_size; ++r) {
      use(r);
      ranks_.emplace_back(layout_, stamps);
    }
    synchronize_devices();
  }
  ~AllReduceRanks() { cudaSetDevice(0); }

  // Makes the rank's device the current one.
  void use(int rank) const { check_cuda(cudaSetDevice(rank % devices_)); }
  void synchronize_devices() const {
    for (int d = 0; d < devices_; ++d) {
      use(d);
      check_cuda(cudaDeviceSynchronize());
    }
  }

  int world_size() const { return static_cast<int>(ranks_.size()); }
  AllReduceRank& operator[](int rank) { return ranks_[rank]; }

  kernels::AllReduceArgs args(int rank, int ordinal, std::int64_t bytes) {
    kernels::AllReduceArgs a;
    for (int p = 0; p < world_size(); ++p) {
      a.arenas[p] = ranks_[p].arena.data();
      a.guard.peer_abort[p] = ranks_[p].abort.data();
    }
    a.arena = layout_;
    a.output = ranks_[rank].output.data();
    a.bytes = bytes;
    a.rank = rank;
    a.ordinal = ordinal;
    a.max_blocks = 8;
    a.guard.abort = ranks_[rank].abort.data();
    a.guard.fault = ranks_[rank].fault.data();
    if (stamps_ > 0) {
      a.ring.all_reduces = ranks_[rank].stamps.data();
      a.ring.entry = ranks_[rank].ring_entry.data();
      a.ring.all_reduces_per_replay = stamps_;
    }
    return a;
  }

  // One all-reduce on every rank.
  void launch_all(const kernels::AllReduceKernel& kernel, int ordinal, std::int64_t bytes) {
    for (int r = 0; r < world_size(); ++r) {
      use(r);
      check_cuda(kernel.launch(args(r, ordinal, bytes), ranks_[r].stream.get()));
    }
  }
  void synchronize_all() {
    for (AllReduceRank& rank : ranks_) synchronize(rank.stream.get());
  }

 private:
  kernels::AllReduceArena layout_;
  std::vector<AllReduceRank> ranks_;
  int stamps_;
  int devices_;
};

// A kernel and where its ranks live.
struct Placement {
  kernels::AllReduceKernel kernel;
  int ranks, devices;
};

inline std::string name_of(const Placement& p) {
  return std::string(p.kernel.name) + "_ranks" + std::to_string(p.ranks) + "_gpus" +
         std::to_string(p.devices);
}

inline std::vector<Placement> placements(const std::vector<std::pair<int, int>>& ranks_and_gpus) {
  std::vector<Placement> all;
  for (const kernels::AllReduceKernel& kernel : kernels::kAllReduceKernels) {
    for (const auto& [ranks, devices] : ranks_and_gpus) all.push_back({kernel, ranks, devices});
  }
  return all;
}

class PlacedRanksTest : public AllRanksTest, public testing::WithParamInterface<Placement> {
 protected:
  void SetUp() override {
    AllRanksTest::SetUp();
    if (IsSkipped() || GetParam().devices == 1) return;
    int reachable = 0;
    if (test::gpu_count() < GetParam().devices) GTEST_SKIP() << "needs two GPUs";
    check_cuda(cudaDeviceCanAccessPeer(&reachable, 0, 1));
    if (reachable == 0) GTEST_SKIP() << "the GPUs cannot read each other's memory";
  }
};

}  // namespace tpjitter
