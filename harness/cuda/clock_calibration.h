// Samples of a rank's GPU clock against the peers' clocks and the host's, for run.json: exchanges
// of messages, not results; reports/clock_alignment.h makes offsets of them.
#pragma once

#include <array>

#include "harness/backend.h"
#include "harness/cuda/communicator.h"

namespace tpjitter {

class ClockCalibrator {
 public:
  ClockCalibrator(const RankContext& context, Communicator& communicator);

  // Collective, on an empty stream. GPU to GPU: rank 0 with every other, and from three ranks each
  // rank above 0 with the next, which close triangles. The sender of a pair holds its exchanges.
  Json measure(cudaStream_t stream, bool with_host);

 private:
  void enqueue_pair(int sender, int answerer, cudaStream_t stream);
  void exchange_with_host(cudaStream_t stream);
  bool ours(int sender, int answerer) const {
    return context_.rank == sender || context_.rank == answerer;
  }

  const RankContext& context_;
  Communicator& communicator_;
  std::array<std::uint32_t, kernels::kMaxAllReduceRanks> sequences_{};  // used, by peer
  std::uint32_t host_sequence_ = 0;
  PinnedBuffer<kernels::PingPongStamps> stamps_;  // by pair in which this rank sends; last: host
  PinnedBuffer<std::uint32_t> words_;             // the GPU's and the host's, on lines of their own
};

}  // namespace tpjitter
