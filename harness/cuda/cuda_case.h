// Everything on the GPU that belongs to one prepared case: persistent input buffers, each phase's
// metadata outputs, the body's memory, the stamp ring, pinned staging. All of it is allocated here,
// in prepare(); the loop only launches and replays.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "harness/compositions/composition.h"
#include "harness/contract/scenario.h"
#include "harness/cuda/communicator.h"
#include "harness/cuda/cuda_metadata.h"
#include "harness/cuda/handles.h"
#include "harness/serving_state.h"
#include "harness/step_plan.h"
#include "kernels/decode_body.h"
#include "kernels/delay.h"
#include "kernels/metadata_aten.h"
#include "kernels/step_inputs.h"
#include "kernels/tree_mask.h"

namespace tpjitter {

// Steps whose result the host does not wait for before it launches the next; 0: coupled.
std::int64_t steps_ahead(const CaseConfig& config);

struct CudaCase {
  CudaCase(const CaseConfig& config, const RankContext& context);

  // Arguments; in cuda_case_args.cpp. Of the op-by-op rebuild of a phase's first paged tables.
  kernels::AtenMetadataArgs aten_args(int phase) const;
  // Of a run of layers in a graph at a captured batch size. The metadata of that size is bound.
  kernels::DecodeBodyArgs body_args(const LayerRun& run, const RankContext& context,
                                    const Communicator& communicator) const;
  // Throws ConfigError with the size needed where the counters are too few for `rows`.
  kernels::AttentionScratch attention_scratch(std::int64_t rows) const;
  kernels::AcceptArgs accept_args(int graph, std::int32_t captured,
                                  const Communicator& communicator) const;
  kernels::StepInputsArgs step_inputs_args() const;
  kernels::RunnerInputsArgs runner_inputs_args() const;
  kernels::TreeMaskArgs tree_mask_args() const;
  // What a phase's rebuild reads.
  PhaseArrays phase_arrays(int phase) const;
  kernels::DelayArgs delay_args(const Communicator& communicator) const;
  kernels::StampRing ring() const;

  // All rows of a phase at a captured batch size; this batch's by default.
  BatchView view(int phase, std::int32_t captured) const {
    return batch_view(phase, captured, shape.live_batch);
  }
  BatchView view(int phase) const { return view(phase, shape.batch_size); }
  std::int32_t layers_of_graph(int graph) const {
    return static_cast<std::int32_t>(layer_kinds[graph].size());
  }
  std::int32_t all_reduces_of_graph(int graph) const {
    return layers_of_graph(graph) * kernels::kAllReducesPerLayer;
  }
  std::int64_t all_reduce_bytes(int phase, std::int32_t captured) const {
    return captured * plan.phases[phase].query_len * config.hidden_size * 2;
  }
  std::int64_t largest_all_reduce_bytes() const;
  // Layers of a graph that use the attention scratch, and whether its first one does.
  std::int32_t full_attention_layers(int graph) const;
  bool fills_come_first(int graph) const;
  // A stamp node marks the graph's begin where its first kernel is not layer 0's attention.
  bool begins_with_stamp(int graph) const {
    return reads_in_forward(config) || fills_come_first(graph) || begins_with_delay(graph);
  }
  // inject.where = "gpu": the delay node is the first of the step's first graph.
  bool begins_with_delay(int graph) const { return graph == 0 && delays_ns.size() > 0; }
  // Time of a step with nobody late, for deadlines: a load kernel may last long.
  std::int64_t load_ns() const;

  // The slot of a step in the rings of staging buffers and results. A slot comes around again when
  // the result of its last step has been seen, and with it the end of that step's copies.
  std::size_t slot(std::int64_t step) const {
    return static_cast<std::size_t>(step) % staging.size();
  }
  // Packs a step's inputs into its staging buffer, and the host copies of the lengths.
  void stage(const StepInputs& inputs);
  // Values that no path writes, and the presets that they rely on. Waits for the stream first.
  void poison_outputs(cudaStream_t stream);
  // Every attention counter must be 0 again after a block, the stream empty; `step` is its last
  // one. Empty, or which is not.
  std::string counter_fault(int rank, std::int64_t step) const;

  CaseConfig config;
  StepPlan plan;
  PlannedPhase runner_phase;  // whose runner has input buffers of its own; none: another phase
  ServingShape shape;
  std::int32_t max_batch;  // largest captured batch size: what buffers are sized for
  int world_size;

  std::vector<std::vector<kernels::LayerKind>> layer_kinds;  // by graph, then layer

  DeviceBuffer<std::int32_t> req_to_token, seq_lens, accept_lens;
  DeviceBuffer<std::int64_t> req_pool_indices, out_cache_loc, full_to_swa;
  DeviceBuffer<std::int64_t> draft_cache_loc;  // [draft passes, max_batch, topk]
  DeviceBuffer<std::int64_t> tree_cache_loc;   // [max_batch, topk, draft steps]; trees only
  DeviceBuffer<std::uint8_t> custom_mask;      // trees only
  // A draft runner's own inputs: lengths of either type, and what it pads otherwise.
  DeviceBuffer<std::int64_t> runner_lengths, runner_pool_rows;
  DeviceBuffer<std::int32_t> runner_accepts;
  std::vector<PhaseArrays> arrays;         // by phase
  std::unique_ptr<CudaMetadata> metadata;  // hooks and tables
  DeviceBuffer<std::int32_t> kv, swa_kv;
  DeviceBuffer<std::byte> reduced, nccl_inputs[2];  // nccl: sizes may pass the arena's
  DeviceBuffer<kernels::DecodeBodyState> state;
  DeviceBuffer<std::int32_t> attention_counters;  // [attention_counter_rows]
  DeviceBuffer<float> kv_scales;                  // of k and v
  DeviceBuffer<std::int32_t> delays_ns;           // of each step; empty: none on the GPU

  std::int64_t ring_capacity;  // graph replays; one block of steps
  DeviceBuffer<kernels::AllReduceStamp> all_reduce_stamps;
  DeviceBuffer<kernels::GraphStamp> graph_stamps;

  kernels::StagedLayout layout;
  std::int64_t max_writes;
  std::vector<PinnedBuffer<unsigned char>> staging;  // by slot
  std::vector<std::size_t> staged_bytes;
  DeviceBuffer<unsigned char> device_staging;  // one: copies and kernels follow each other
  // Of the staged step, what the host knows of the lengths: the step's, the runner's own, and the
  // accepted ones. For the largest batch.
  std::vector<std::int64_t> seq_lens_cpu, runner_seq_lens_cpu;
  std::vector<std::int32_t> accept_lens_cpu;

  DeviceBuffer<kernels::AcceptResult> device_result;  // coupling_wait d2h_event copies from it
  PinnedBuffer<kernels::AcceptResult> host_results;   // by slot; mapped_flag: the GPU writes slot 0
  PinnedBuffer<std::int32_t> synced_seq_lens;         // where seq_lens_sync copies to
};

}  // namespace tpjitter
