// Everything on the GPU that belongs to one prepared case: persistent input buffers, metadata
// outputs, the body's memory, the stamp ring, pinned staging. All of it is allocated here, in
// prepare(); the loop only launches and replays.
#pragma once

#include <cstdint>
#include <vector>

#include "harness/contract/scenario.h"
#include "harness/cuda/communicator.h"
#include "harness/cuda/handles.h"
#include "harness/serving_state.h"
#include "kernels/decode_body.h"
#include "kernels/metadata_aten.h"
#include "kernels/step_inputs.h"

namespace tpjitter {

// The captured batch sizes of a case, ascending; {batch_size} when none are given.
std::vector<std::int32_t> captured_batch_sizes(const CaseConfig& config);

struct CudaCase {
  CudaCase(const CaseConfig& config, const RankContext& context);

  // Arguments of a rebuild at a captured batch size. `for_paths`: cu_seqlens_q is preset and not
  // theirs to write; the body reads it.
  kernels::DecodeMetadataArgs metadata_args(std::int32_t captured, bool for_paths) const;
  kernels::AtenMetadataArgs aten_args() const;
  kernels::DecodeBodyArgs body_args(std::int32_t captured, const RankContext& context,
                                    const Communicator& communicator) const;
  kernels::AcceptArgs accept_args(std::int32_t captured, const Communicator& communicator) const;
  kernels::StepInputsArgs step_inputs_args() const;
  kernels::StampRing ring() const;
  std::int64_t all_reduce_bytes(std::int32_t captured) const {
    return captured * config.hidden_size * 2;
  }
  // Time of one replay with nobody late, for deadlines: a load kernel may last long.
  std::int64_t load_ns() const;

  // Packs a step's inputs into staging buffer step % 2 and the host copy of the lengths.
  void stage(const StepInputs& inputs);
  // Values that no path writes, and the presets that they rely on.
  void poison_outputs(cudaStream_t stream);

  CaseConfig config;
  ServingShape shape;
  std::int32_t max_batch;  // largest captured batch size: what buffers are sized for
  int world_size;

  DeviceBuffer<std::int32_t> req_to_token, seq_lens;
  DeviceBuffer<std::int64_t> req_pool_indices, out_cache_loc, full_to_swa, strided_indices;
  DeviceBuffer<std::int32_t> cache_seqlens, cu_seqlens_k, cu_seqlens_q, page_table, swa_page_table;
  DeviceBuffer<std::int64_t> swa_out_cache_loc;
  DeviceBuffer<std::int32_t> kv, swa_kv;
  DeviceBuffer<std::byte> reduced, nccl_inputs[2];  // nccl: sizes may pass the arena's
  DeviceBuffer<kernels::DecodeBodyState> state;

  std::int64_t ring_capacity;  // replays; one block of steps
  DeviceBuffer<kernels::AllReduceStamp> all_reduce_stamps;
  DeviceBuffer<kernels::GraphStamp> graph_stamps;

  kernels::StagedLayout layout;
  std::int64_t max_writes;
  PinnedBuffer<unsigned char> staging[2];
  std::size_t staged_bytes[2] = {};
  DeviceBuffer<unsigned char> device_staging;
  std::vector<std::int64_t> seq_lens_cpu;  // of the staged step, what the aten path takes P from

  DeviceBuffer<kernels::AcceptResult> device_result;  // coupling_wait d2h_event copies from it
  PinnedBuffer<kernels::AcceptResult> host_result;    // mapped_flag: written by the GPU
};

}  // namespace tpjitter
