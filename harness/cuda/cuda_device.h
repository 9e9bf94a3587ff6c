// The device side of a step (harness/step.h) on a GPU: each call is the least that its stage needs.
// None allocates, locks, logs or throws but when the run fails: a launch's status is kept, and the
// first bad one is thrown by the wait that follows.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "harness/cuda/communicator.h"
#include "harness/cuda/costed_tensor_ops.h"
#include "harness/cuda/cuda_case.h"
#include "harness/cuda/graphs.h"
#include "harness/cuda/handles.h"

namespace tpjitter {

class CudaDevice {
 public:
  CudaDevice(const RankContext& context, Communicator& communicator, CudaCase& c,
             cudaStream_t stream);

  // The stages of harness/step.h.
  void wait_accept(std::int64_t step);
  // For a rank that does not wait for its own result: what it has failed with so far.
  void check_device(std::int64_t step) const;
  void copy_inputs(int phase);
  void rebuild_metadata(int phase);
  void launch_graph(int graph);
  void stage_inputs(std::int64_t step);

  // Before the first step, graph execution: the step's graphs, in order. With read_done =
  // "in_replay" the last one is there once for each event of read_done_events(graph), since an event
  // that a later replay records again says nothing about an earlier one.
  void set_graphs(std::vector<cudaGraphExec_t> graphs) { graphs_ = std::move(graphs); }
  // What the captures of a graph record behind its metadata kernels; {nullptr}: one capture, none.
  std::vector<cudaEvent_t> read_done_events(int graph) const;
  // The op-by-op rebuild of each phase in a small graph of its own, after two warm-ups on the
  // staged inputs. For a batch without padded rows.
  void capture_glue_graphs();
  bool has_glue_graphs() const { return !glue_graphs_.empty(); }
  // Nodes of a phase's glue graph.
  std::size_t glue_nodes(int phase) const { return glue_nodes_[phase]; }
  // One rebuild of the given path on the stream, eager, for the checks before timing: of this
  // batch's size, which capture_metadata() has bound.
  void rebuild_with(const MetadataPath& path, int phase);
  // Binds and fills every captured size's metadata.
  void capture_metadata();
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
  // Which of several graphs it was the result does not say; the all-reduce is named.
  const char* place_of_fault() const {
    return case_.plan.graphs > 1 ? "a speculative step's graphs" : "phase normal_decode";
  }
  void enqueue_accept_copy(std::int64_t step);
  void sync_seq_lens();
  void wait_for_event(cudaEvent_t event, const char* what, std::int64_t step);

  const RankContext& context_;
  Communicator& communicator_;
  CudaCase& case_;
  cudaStream_t stream_;
  const MetadataPath& path_;
  bool mapped_flag_;
  bool eager_;             // kernels instead of graphs
  bool read_done_before_;  // before the replay; else, with a schedule stream, inside
  std::int64_t wait_deadline_ns_;
  std::vector<cudaGraphExec_t> graphs_;
  std::vector<StepGraph> eager_graphs_;
  std::vector<Event> accepts_;  // by the step's slot
  // The scheduler's writes, where they have a stream of their own: each step's wait for the reads of
  // the step before, and the forward stream waits for them. By the slot of the step that reads.
  Stream schedule_;
  std::vector<Event> reads_done_;
  Event writes_done_;  // waited for as soon as it is recorded: one is enough
  Event seq_lens_synced_;
  ServingState live_;
  kernels::StepInputsArgs step_inputs_, token_writes_;
  kernels::RunnerInputsArgs runner_inputs_;
  kernels::TreeMaskArgs tree_mask_;
  PinnedBuffer<std::int64_t> scalar_{1};
  kernels::TensorAllocator allocator_;
  CostedTensorOps ops_;
  std::vector<GraphExec> glue_graphs_;  // by phase; their temporaries are the allocator's
  std::vector<std::size_t> glue_nodes_;
  std::int64_t next_step_ = 0;  // to launch, or in the middle of its launches
  int status_ = cudaSuccess;    // cudaError_t
};

}  // namespace tpjitter
