// The fills of FlashInfer's form (metadata_kv_indices.h) as engines run them: op by op with the
// host reading what it needs of the device, and the same without a host sync. Both take the fills
// that launch_kv_indices takes and leave the same bits behind.
//
//   phase            fills
//   decode           {full}, or {window, full}: the window's wrapper first, as in the engine
//   target-verify    the same, qo_indptr set, seqlen_offset = q_stride
//   draft-extend v2  the same, qo_indptr set, seqlen_offset = 0
//   draft decode     one a draft step (draft_step_fills); one kernel for all
#pragma once

#include <cstdint>
#include <span>

#include "kernels/metadata_kv_indices.h"

namespace tpjitter::kernels {

class TensorOps;

// Where the host's plan of the attention (which work goes to which block) gets its prefix sums.
enum class HostPlan : std::int32_t {
  kNone = 0,    // not counted here
  kMirror = 1,  // the host mirror of seq_lens: no device work; its few host calls are not counted
  // From the device: decode and draft decode one D2H copy and sync of kv_indptr (of all steps),
  // verify and draft-extend three (qo_indptr, kv_indptr, last page lengths).
  kDevice = 2,
};

struct KvIndicesOpsArgs {
  std::span<const KvIndicesArgs> fills = {};
  // Host, [batch_size] tokens before seqlen_offset. Null: the engine asks the device for what it
  // does not know, one more sync a window; target-verify cannot do without.
  const std::int64_t* seq_lens_cpu = nullptr;
  std::int64_t full_to_swa_len = 0;     // entries, with the -1 at the end; windows only
  std::int64_t swa_out_buffer_len = 0;  // persistent, zeroed to its end; 0: the fill's length
  // Draft decode with kDevice: elements between the steps' kv_indptr where they are rows of one
  // buffer, as in the engine, which copies them together. 0: they are not, and the first step's
  // stands for all in that one copy, whose cost does not depend on so few bytes.
  std::int64_t draft_indptr_stride = 0;
  HostPlan plan = HostPlan::kNone;
};

// Op by op. A window's slots are translated on kv_indices[:kv_indptr[-1]], whose length the host
// reads from the device twice (once for the right side, once for the left): two hidden D2H syncs.
// Verify and draft-extend build in temporaries that the plan copies into the wrapper's buffers.
// Differs from the engine where it reads wrongly: its verify with a window gathers the trimmed
// length from position 0; here from the window's start.
// Returns ops.status(). Throws std::invalid_argument for fills that are not valid or do not fit the
// phase, target-verify without seq_lens_cpu, and more entries than a wrapper has room for (verify
// and draft-extend, where PyTorch's copy_ would raise; decode is cut as in the reference).
// A negative slot wraps in the mapping's index as in PyTorch, -1 to its last entry, which is -1.
int rebuild_kv_indices_aten(TensorOps& ops, DecodePhase phase, const KvIndicesOpsArgs& args);

// Few operations and the gather kernel, which also translates and is bounded by the wrapper's
// capacity: no host sync, no host length. seq_lens_cpu and plan are not used.
int rebuild_kv_indices_device(TensorOps& ops, DecodePhase phase, const KvIndicesOpsArgs& args);

// The gather kernel of both, one operation among the others: row p copies
//   kv_indices[kv_indptr[p] + j] = req_to_token[req_pool_indices[p], kv_start_idx[p] + j],
// j < lens[p], up to the capacity; translated where full_to_swa is set.
struct KvGatherArgs {
  const void* req_pool_indices = nullptr;      // [batch_size]
  const void* lens = nullptr;                  // [batch_size] entries of each row
  const void* kv_start_idx = nullptr;          // [batch_size]; null: 0
  const std::int32_t* kv_indptr = nullptr;     // [batch_size + 1]
  const std::int32_t* req_to_token = nullptr;  // [pool, req_to_token_stride]
  const std::int64_t* full_to_swa = nullptr;
  std::int32_t* kv_indices = nullptr;  // [capacity]
  std::int64_t req_to_token_stride = 0;
  std::int64_t capacity = 0;
  std::int32_t batch_size = 0;
  std::int32_t blocks_per_row = 1;  // 1: as the engine; 0: as many as are resident together
  IntType req_pool_indices_type = IntType::kInt64;
  IntType lens_type = IntType::kInt64;
  IntType kv_start_idx_type = IntType::kInt64;
};
void reference_kv_gather(const KvGatherArgs& args);
int launch_kv_gather(const KvGatherArgs& args, CUstream_st* stream);  // cudaError_t

}  // namespace tpjitter::kernels
