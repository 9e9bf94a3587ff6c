// The device side of a step (harness/step.h) on a GPU: each call is the least that its stage needs.
// None allocates, locks, logs or throws but when the run fails: a launch's status is kept, and the
// first bad one is thrown by the wait that follows.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "harness/clock.h"
#include "harness/cuda/communicator.h"
#include "harness/cuda/cuda_case.h"
#include "harness/cuda/handles.h"
#include "kernels/metadata_aten.h"
#include "kernels/metadata_fused.h"
#include "kernels/metadata_page_table.h"
#include "kernels/tensor_allocator.h"
#include "kernels/tensor_ops_cuda.h"

namespace tpjitter {

enum class CudaPath { kAten, kPageTable, kFused, kFusedInGraph };
CudaPath cuda_path(const CaseConfig& config);

// The operations of the op-by-op paths, each with the extra host cost that a scenario asks for.
class CostedTensorOps final : public kernels::CudaTensorOps {
 public:
  CostedTensorOps(kernels::TensorAllocator& allocator, cudaStream_t stream, void* pinned_scalar,
                  std::int64_t op_overhead_ns)
      : CudaTensorOps(allocator, stream, pinned_scalar), op_overhead_ns_(op_overhead_ns) {}

 protected:
  void on_call(const char*) override {
    if (op_overhead_ns_ > 0) spin_until_ns(now_ns() + op_overhead_ns_);
  }

 private:
  std::int64_t op_overhead_ns_;
};

class CudaDevice {
 public:
  CudaDevice(const RankContext& context, Communicator& communicator, CudaCase& c,
             cudaStream_t stream);

  // The stages of harness/step.h.
  void wait_accept(std::int64_t step);
  void copy_inputs(int phase);
  void rebuild_metadata(int phase);
  void launch_graph(int graph);
  void stage_inputs(std::int64_t step);

  // The step's graphs, in order.
  void set_graphs(std::vector<cudaGraphExec_t> graphs) { graphs_ = std::move(graphs); }
  // One rebuild of the given path on the stream, eager; for the checks before timing.
  void rebuild_with(CudaPath path, int phase);
  // Makes every temporary that the path can need at any length of the batch. Leaves other lengths
  // in seq_lens than the staged step's.
  void warm_temporaries();
  std::int64_t allocations() const { return allocator_.source_calls(); }

  // The first bad status of a launch, if any; throws CudaError.
  void check_status() const;
  std::int64_t wait_deadline_ns() const { return wait_deadline_ns_; }
  std::int64_t steps_launched() const { return next_step_; }

 private:
  void keep(int status) {
    if (status_ == cudaSuccess) status_ = status;
  }
  void enqueue_accept_copy(std::int64_t step);
  void sync_seq_lens();
  void wait_for_event(cudaEvent_t event, const char* what, std::int64_t step);

  const RankContext& context_;
  Communicator& communicator_;
  CudaCase& case_;
  cudaStream_t stream_;
  CudaPath path_;
  bool mapped_flag_;
  std::int64_t wait_deadline_ns_;
  std::vector<cudaGraphExec_t> graphs_;
  std::vector<Event> accepts_;  // by the step's slot
  Event seq_lens_synced_;
  ServingState live_;
  kernels::StepInputsArgs step_inputs_;
  kernels::ExtendLengthsArgs extend_lengths_;
  // By phase, ready for the loop.
  std::vector<kernels::FusedMetadataLaunch> fused_;
  std::vector<kernels::AtenMetadataArgs> aten_;
  std::vector<kernels::PageTableMetadataArgs> page_table_;
  PinnedBuffer<std::int64_t> scalar_{1};
  kernels::TensorAllocator allocator_;
  CostedTensorOps ops_;
  std::int64_t next_step_ = 0;  // to launch, or in the middle of its launches
  int status_ = cudaSuccess;    // cudaError_t
};

}  // namespace tpjitter
