// One rank of bench_all_reduce: its buffers and the graphs of its jobs on the current device.
#pragma once

#include <map>

#include "harness/backend.h"
#include "harness/cuda/handles.h"
#include "harness/cuda/nccl_communicator.h"
#include "harness/microbench/bench_all_reduce_ranks.h"

namespace tpjitter::bench {

class RankBench {
 public:
  // `base`: arenas, rank and guard. `nccl`: null without.
  RankBench(const RankContext& context, const kernels::AllReduceArgs& base, NcclCommunicator* nccl);

  bool has(int kind) const;
  bool is_prepared(const Job& job) const { return graphs_.count(job) != 0; }
  void prepare(const Job& job);
  void launch(const Job& job);
  void wait();
  double seconds() const;  // an all-reduce of the last launch
  void check_sums(const Job& job);

 private:
  static constexpr int kNodes = kAligning + kAllReduces;
  static_assert(kNodes % 2 == 0, "replays must go on alternating between the input buffers");

  struct NcclBuffers {
    void* input = nullptr;
    void* output = nullptr;
  };

  void record(const Event& event);
  void* output_of(const Job& job) const;
  void enqueue(const Job& job, int ordinal);

  const RankContext& context_;
  kernels::AllReduceArgs base_;
  NcclCommunicator* nccl_;
  Stream stream_ = make_stream();
  Event begin_, end_;
  DeviceBuffer<std::byte> output_, nccl_memory_[2];
  NcclBuffers plain_, window_;
  DeviceBuffer<kernels::AllReduceStamp> stamps_{kNodes};
  DeviceBuffer<std::int64_t> entry_{1};
  std::map<Job, GraphExec> graphs_;
};

}  // namespace tpjitter::bench
