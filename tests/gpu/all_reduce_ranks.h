// All ranks of an all-reduce in one process, on one GPU or several: a stream and an arena a rank,
// pointers in place of IPC. Few enough blocks that all of them are resident together, or they would wait for blocks that
// cannot start. Calls are enqueued rank by rank, so that no stream fills up behind a waiting one.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstdlib>
#include <vector>

#include "harness/cuda/handles.h"
#include "kernels/all_reduce.h"
#include "tests/gpu/gpu_test_main.h"

namespace tpjitter {

// Lazy loading of a kernel waits for the device: it would hang behind a kernel that waits for a
// peer. Set before the first CUDA call, which is the fixture's look for a device.
class AllRanksTest : public test::GpuTest {
 protected:
  static void SetUpTestSuite() {
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    // Streams that share a hardware queue would wait for each other's waiting kernels.
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
  }
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
  Stream stream = make_stream();
  DeviceBuffer<std::uint32_t> flags = zeroed<std::uint32_t>(kernels::kAllReduceFlags);
  DeviceBuffer<std::uint32_t> epochs = zeroed<std::uint32_t>(kernels::kMaxAllReduceBlocks);
  DeviceBuffer<std::uint32_t> abort = zeroed<std::uint32_t>(1);
  PinnedBuffer<kernels::DeviceFault> fault{1};
  DeviceBuffer<std::uint16_t> inputs[2];
  DeviceBuffer<std::uint16_t> output;
  DeviceBuffer<kernels::AllReduceStamp> stamps;
  DeviceBuffer<std::int64_t> ring_entry = zeroed<std::int64_t>(1);
};

class AllReduceRanks {
 public:
  // stamps: all-reduces that get a stamp each; 0 takes the unstamped build. devices: rank r's is
  // r % devices.
  AllReduceRanks(int world_size, std::int64_t max_bytes, int stamps = 0, int devices = 1)
      : stamps_(stamps), devices_(devices) {
    enable_peer_access();
    const auto elements = static_cast<std::size_t>(max_bytes / 2);
    ranks_.reserve(world_size);
    for (int r = 0; r < world_size; ++r) {
      use(r);
      AllReduceRank& rank = ranks_.emplace_back();
      for (auto& input : rank.inputs) input = zeroed<std::uint16_t>(elements);
      rank.output = zeroed<std::uint16_t>(elements);
      rank.stamps = zeroed<kernels::AllReduceStamp>(stamps);
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
      a.inputs[p] = ranks_[p].inputs[ordinal % 2].data();
      a.flags[p] = ranks_[p].flags.data();
      a.guard.peer_abort[p] = ranks_[p].abort.data();
    }
    a.epochs = ranks_[rank].epochs.data();
    a.output = ranks_[rank].output.data();
    a.bytes = bytes;
    a.rank = rank;
    a.world_size = world_size();
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
  void launch_all(int ordinal, std::int64_t bytes) {
    for (int r = 0; r < world_size(); ++r) {
      use(r);
      check_cuda(kernels::launch_one_shot_pull(args(r, ordinal, bytes), ranks_[r].stream.get()));
    }
  }
  void synchronize_all() {
    for (AllReduceRank& rank : ranks_) synchronize(rank.stream.get());
  }

 private:
  void enable_peer_access() const {
    for (int a = 0; a < devices_; ++a) {
      use(a);
      for (int b = 0; b < devices_; ++b) {
        if (a == b) continue;
        const cudaError_t status = cudaDeviceEnablePeerAccess(b, 0);
        if (status != cudaErrorPeerAccessAlreadyEnabled) check_cuda(status);
        cudaGetLastError();
      }
    }
  }

  std::vector<AllReduceRank> ranks_;
  int stamps_;
  int devices_;
};

}  // namespace tpjitter
