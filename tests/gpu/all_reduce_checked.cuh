// All-reduces whose values are made and compared on the device, with a new sequence number each
// time: a result that is one call old shows. For long and mixed sequences in replayed graphs.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/decode_body.cuh"
#include "tests/gpu/all_reduce_ranks.h"

namespace tpjitter {

// Small integers: sums over 8 ranks stay below 256 and are exact in bf16. Zero words come up.
__host__ __device__ inline int value_of(int rank, std::int64_t sequence, std::int64_t i) {
  return static_cast<int>((7 * rank + 3 * sequence + i / 2) % 29) - 14;
}

// The kernels around a checked all-reduce; pdl: launched programmatically, as the body's are.
static __global__ void fill_kernel(std::uint16_t* input, std::int64_t elements, int rank,
                                   const std::int64_t* sequence, bool pdl) {
  kernels::begin_kernel(pdl);
  for (std::int64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < elements;
       i += gridDim.x * blockDim.x) {
    const auto value = static_cast<float>(value_of(rank, *sequence, i));
    input[i] = static_cast<std::uint16_t>(__float_as_uint(value) >> 16);
  }
}

static __global__ void verify_kernel(const std::uint16_t* output, std::int64_t elements,
                                     int world_size, const std::int64_t* sequence,
                                     std::uint32_t* mismatches, bool pdl) {
  kernels::begin_kernel(pdl);
  for (std::int64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < elements;
       i += gridDim.x * blockDim.x) {
    int sum = 0;
    for (int rank = 0; rank < world_size; ++rank) sum += value_of(rank, *sequence, i);
    if (output[i] != __float_as_uint(static_cast<float>(sum)) >> 16) atomicAdd(mismatches, 1u);
  }
}

static __global__ void advance_kernel(std::int64_t* sequence, bool pdl) {
  kernels::begin_kernel(pdl);
  ++*sequence;
}

class CheckedRanks {
 public:
  CheckedRanks(int world_size, std::int64_t max_bytes, int devices = 1, bool pdl = false)
      : ranks(world_size, max_bytes, 0, devices), pdl_(pdl) {
    for (int r = 0; r < world_size; ++r) {
      ranks.use(r);
      sequences_.push_back(zeroed<std::int64_t>(1));
      mismatches_.push_back(zeroed<std::uint32_t>(1));
    }
    ranks.synchronize_devices();
  }
  void enqueue(const kernels::AllReduceKernel& kernel, int r, int ordinal, std::int64_t bytes) {
    ranks.use(r);
    AllReduceRank& rank = ranks[r];
    cudaStream_t stream = rank.stream.get();
    using kernels::launch_kernel;
    check_cuda(launch_kernel(fill_kernel, 4, 256, pdl_, stream, rank.inputs[ordinal % 2].data(),
                             bytes / 2, r, sequences_[r].data(), pdl_));
    kernels::AllReduceArgs args = ranks.args(r, ordinal, bytes);
    args.pdl = pdl_;
    check_cuda(kernel.launch(args, stream));
    check_cuda(launch_kernel(verify_kernel, 4, 256, pdl_, stream, rank.output.data(), bytes / 2,
                             ranks.world_size(), sequences_[r].data(), mismatches_[r].data(),
                             pdl_));
    check_cuda(launch_kernel(advance_kernel, 1, 1, pdl_, stream, sequences_[r].data(), pdl_));
  }

  // A graph on every rank of what `enqueue_all(rank)` puts on its stream, replayed.
  template <class Enqueue>
  void replay(int replays, Enqueue enqueue_all) {
    std::vector<GraphExec> graphs;
    for (int r = 0; r < ranks.world_size(); ++r) {
      ranks.use(r);
      cudaStream_t stream = ranks[r].stream.get();
      check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
      enqueue_all(r);
      cudaGraph_t graph = nullptr;
      check_cuda(cudaStreamEndCapture(stream, &graph));
      const Graph owner(graph);
      cudaGraphExec_t exec = nullptr;
      check_cuda(cudaGraphInstantiate(&exec, graph));
      graphs.emplace_back(exec);
      check_cuda(cudaGraphUpload(exec, stream));
    }
    ranks.synchronize_devices();
    for (int replay = 0; replay < replays; ++replay) {
      for (int r = 0; r < ranks.world_size(); ++r) {
        ranks.use(r);
        check_cuda(cudaGraphLaunch(graphs[r].get(), ranks[r].stream.get()));
      }
    }
    ranks.synchronize_all();
  }

  std::uint32_t mismatches() {
    std::uint32_t sum = 0;
    for (auto& counter : mismatches_) sum += download(counter.data(), 1)[0];
    return sum;
  }
  std::int64_t calls(int rank) { return download(sequences_[rank].data(), 1)[0]; }

  AllReduceRanks ranks;

 private:
  bool pdl_;
  std::vector<DeviceBuffer<std::int64_t>> sequences_;
  std::vector<DeviceBuffer<std::uint32_t>> mismatches_;
};

}  // namespace tpjitter
