// FlashInfer's form op by op. Order and kind of the operations follow the index updaters of
// SGLang's FlashInfer backend under PyTorch 2.11: decode writes straight into the captured buffers,
// verify and draft-extend build fresh tensors that the plan copies into them. cumsum of int32
// lengths is int64 there, so that the copy into kv_indptr is a kernel, not a memcpy.
#include "kernels/metadata_kv_indices_ops.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "kernels/tensor_ops.h"

namespace tpjitter::kernels {
namespace {

bool has_queries(DecodePhase phase) {
  return phase == DecodePhase::kTargetVerify || phase == DecodePhase::kDraftExtendStrided;
}

void check_fill(DecodePhase phase, const KvIndicesArgs& fill) {
  if (!is_valid(fill)) {
    throw std::invalid_argument("kv_indices operations: a fill's arguments are not valid");
  }
  if (has_queries(phase) != (fill.wrapper.qo_indptr != nullptr)) {
    throw std::invalid_argument("kv_indices operations: qo_indptr does not fit the phase");
  }
  const bool adds = phase == DecodePhase::kDraftDecode || phase == DecodePhase::kTargetVerify;
  if (!adds && fill.seqlen_offset != 0) {
    throw std::invalid_argument(
        "kv_indices operations: the phase adds nothing to seq_lens, but seqlen_offset is " +
        std::to_string(fill.seqlen_offset));
  }
  if (phase == DecodePhase::kTargetVerify && fill.seqlen_offset != fill.q_stride) {
    throw std::invalid_argument("kv_indices operations: verify adds its query length to seq_lens");
  }
}

// Negative lengths are empty rows in one kernel and would be wrong here: they do not occur.
void check(DecodePhase phase, const KvIndicesOpsArgs& args) {
  if (phase == DecodePhase::kDraftExtendCumsum) {
    throw std::invalid_argument("kv_indices operations: draft-extend has a fixed query stride");
  }
  const bool draft = phase == DecodePhase::kDraftDecode;
  if (!draft && args.fills.size() > 2) {
    throw std::invalid_argument("kv_indices operations: one wrapper, or a window's and the full");
  }
  for (const KvIndicesArgs& fill : args.fills) {
    check_fill(phase, fill);
    const bool reads_page_lens = args.plan == HostPlan::kDevice && has_queries(phase);
    if (reads_page_lens && fill.wrapper.kv_last_page_len == nullptr) {
      throw std::invalid_argument("kv_indices operations: the plan reads kv_last_page_len");
    }
  }
}

bool is_empty(const KvIndicesOpsArgs& args) {
  return args.fills.empty() || args.fills.front().batch_size == 0;
}

// Lengths of the rows' entries and where each begins; the start is null for 0.
struct Rows {
  Tensor lens, start;
};

Rows row_lengths(TensorOps& ops, const KvIndicesArgs& fill) {
  Rows rows;
  rows.lens = vector_tensor(fill.seq_lens, fill.seq_lens_type, fill.batch_size);
  if (fill.seqlen_offset != 0) rows.lens = ops.add(rows.lens, fill.seqlen_offset);
  if (fill.sliding_window != kNoWindow) {
    const Tensor tokens = rows.lens;
    rows.lens = ops.clamp_max(tokens, std::int64_t{fill.sliding_window} + 1);
    rows.start = ops.sub(tokens, rows.lens);
  } else if (fill.kv_start_idx != nullptr) {
    rows.start = vector_tensor(fill.kv_start_idx, fill.kv_start_idx_type, fill.batch_size);
  }
  return rows;
}

KvGatherArgs gather_args(const KvIndicesArgs& fill, const Rows& rows, const std::int32_t* kv_indptr,
                         std::int32_t* kv_indices, std::int64_t capacity) {
  return {.req_pool_indices = fill.req_pool_indices,
          .lens = rows.lens.data,
          .kv_start_idx = rows.start.data,
          .kv_indptr = kv_indptr,
          .req_to_token = fill.req_to_token,
          .kv_indices = kv_indices,
          .req_to_token_stride = fill.req_to_token_stride,
          .capacity = capacity,
          .batch_size = fill.batch_size,
          .req_pool_indices_type = fill.req_pool_indices_type,
          .lens_type = rows.lens.dtype,
          .kv_start_idx_type = rows.start.dtype};
}

Tensor indptr_tensor(std::int32_t* indptr, const KvIndicesArgs& fill) {
  return vector_tensor(indptr, IntType::kInt32, std::int64_t{fill.batch_size} + 1);
}

// kv_indices[:kv_indptr[-1]] = mapping[kv_indices[:kv_indptr[-1]]].to(int32): the bound of either
// slice is a scalar on the device.
void translate(TensorOps& ops, const KvIndicesOpsArgs& args, const KvIndicesArgs& fill,
               const Tensor& kv_indptr, const Tensor& kv_indices) {
  const Tensor last = ops.select(kv_indptr, fill.batch_size);
  const Tensor mapping = vector_tensor(fill.full_to_swa, IntType::kInt64, args.full_to_swa_len);
  const auto live_slice = [&] { return ops.slice(kv_indices, 0, 0, ops.item(last)); };
  const Tensor swa_slots = ops.to(ops.index(mapping, live_slice()), IntType::kInt32);
  ops.copy_(live_slice(), swa_slots);
}

Tensor host_lens(const KvIndicesOpsArgs& args, const KvIndicesArgs& fill) {
  Tensor lens = vector_tensor(args.seq_lens_cpu, IntType::kInt64, fill.batch_size);
  lens.on_host = true;
  return lens;
}

// Decode's wrapper: sums and slots go straight into the captured buffers.
void decode_fill(TensorOps& ops, const KvIndicesOpsArgs& args, const KvIndicesArgs& fill) {
  const Rows rows = row_lengths(ops, fill);
  if (fill.sliding_window != kNoWindow && args.seq_lens_cpu == nullptr) {
    ops.item(
        ops.sum(rows.lens));  // an eager call would allocate by it; the replay asks all the same
  }
  const Tensor buffer = indptr_tensor(fill.wrapper.kv_indptr, fill);
  const Tensor sums = ops.cumsum(rows.lens, IntType::kInt64);
  ops.copy_(ops.slice(buffer, 0, 1, fill.batch_size + 1), sums);
  const Tensor kv_indptr = ops.slice(buffer, 0, 0, fill.batch_size + 1);
  ops.kv_gather(gather_args(fill, rows, fill.wrapper.kv_indptr, fill.wrapper.kv_indices,
                            fill.wrapper.capacity));
  if (fill.full_to_swa != nullptr) {
    translate(ops, args, fill, kv_indptr,
              vector_tensor(fill.wrapper.kv_indices, IntType::kInt32, fill.wrapper.capacity));
  }
  if (args.plan == HostPlan::kDevice) ops.cpu(kv_indptr);
}

// Entries of a prefill wrapper: the host's own sum, or the device's.
std::int64_t total_entries(TensorOps& ops, DecodePhase phase, const KvIndicesOpsArgs& args,
                           const KvIndicesArgs& fill, const Rows& rows, const Tensor& kv_indptr) {
  // A trimmed length is summed on the device whatever the host knows.
  if (fill.sliding_window != kNoWindow) return ops.item(ops.sum(rows.lens));
  if (args.seq_lens_cpu != nullptr) {
    return ops.item(ops.sum(host_lens(args, fill))) +
           std::int64_t{fill.seqlen_offset} * fill.batch_size;
  }
  if (phase == DecodePhase::kTargetVerify) {
    throw std::invalid_argument("kv_indices operations: target-verify needs the host mirror");
  }
  return ops.item(ops.select(kv_indptr, fill.batch_size));
}

// Verify's and draft-extend's wrapper: fresh tensors, copied by the plan.
void prefill_fill(TensorOps& ops, DecodePhase phase, const KvIndicesOpsArgs& args,
                  const KvIndicesArgs& fill) {
  const std::int64_t rows_plus_one = std::int64_t{fill.batch_size} + 1;
  const std::int64_t stride = fill.q_stride;
  const Tensor qo_indptr = ops.arange(0, rows_plus_one * stride, stride, IntType::kInt32);
  const Tensor kv_indptr = ops.zeros(rows_plus_one, IntType::kInt32);
  const Rows rows = row_lengths(ops, fill);
  const Tensor sums = ops.cumsum(rows.lens, IntType::kInt64);
  ops.copy_(ops.slice(kv_indptr, 0, 1, rows_plus_one), sums);
  const std::int64_t entries = total_entries(ops, phase, args, fill, rows, kv_indptr);
  if (entries > fill.wrapper.capacity) {
    throw std::invalid_argument("kv_indices operations: " + std::to_string(entries) +
                                " entries, but kv_indices has " +
                                std::to_string(fill.wrapper.capacity));
  }
  const Tensor kv_indices = ops.empty(entries, IntType::kInt32);
  ops.kv_gather(gather_args(fill, rows, static_cast<const std::int32_t*>(kv_indptr.data),
                            static_cast<std::int32_t*>(kv_indices.data), entries));
  if (fill.full_to_swa != nullptr) translate(ops, args, fill, kv_indptr, kv_indices);
  if (args.plan == HostPlan::kDevice) {
    ops.cpu(qo_indptr);
    ops.cpu(kv_indptr);
    ops.cpu(vector_tensor(fill.wrapper.kv_last_page_len, IntType::kInt32, fill.batch_size));
  }
  ops.copy_(indptr_tensor(fill.wrapper.qo_indptr, fill), qo_indptr);
  ops.copy_(indptr_tensor(fill.wrapper.kv_indptr, fill), kv_indptr);
  const Tensor buffer =
      vector_tensor(fill.wrapper.kv_indices, IntType::kInt32, fill.wrapper.capacity);
  ops.copy_(ops.slice(buffer, 0, 0, entries), kv_indices);
}

// kv_indptr of all steps, as the engine copies it to the host once a draft phase.
Tensor all_indptrs(const KvIndicesOpsArgs& args) {
  const KvIndicesArgs& first = args.fills.front();
  const std::int64_t columns = std::int64_t{first.batch_size} + 1;
  const bool one_buffer = args.draft_indptr_stride >= columns;
  const auto steps = one_buffer ? static_cast<std::int64_t>(args.fills.size()) : 1;
  return matrix_tensor(first.wrapper.kv_indptr, IntType::kInt32, steps, columns,
                       args.draft_indptr_stride);
}

// Of the device form: no length reaches the host.
void device_fill(TensorOps& ops, const KvIndicesArgs& fill) {
  const std::int64_t end = std::int64_t{fill.batch_size} + 1;
  const Rows rows = row_lengths(ops, fill);
  const Tensor buffer = indptr_tensor(fill.wrapper.kv_indptr, fill);
  const Tensor sums = ops.cumsum(rows.lens, IntType::kInt32);
  ops.copy_(ops.slice(buffer, 0, 1, end), sums);
  if (fill.wrapper.qo_indptr != nullptr) {
    const Tensor queries = ops.arange(0, end * fill.q_stride, fill.q_stride, IntType::kInt32);
    ops.copy_(indptr_tensor(fill.wrapper.qo_indptr, fill), queries);
  }
  KvGatherArgs gather = gather_args(fill, rows, fill.wrapper.kv_indptr, fill.wrapper.kv_indices,
                                    fill.wrapper.capacity);
  gather.full_to_swa = fill.full_to_swa;
  gather.blocks_per_row = 0;
  ops.kv_gather(gather);
}

// Once a phase: the persistent tail becomes 0, the live locations are translated.
void update_swa_out(TensorOps& ops, const KvIndicesOpsArgs& args) {
  for (const KvIndicesArgs& fill : args.fills) {
    const SwaOutCacheLoc& out = fill.swa_out;
    if (out.swa_out_cache_loc == nullptr) continue;
    const std::int64_t length = std::max(args.swa_out_buffer_len, out.length);
    const std::int64_t live = out.num_locations;
    const Tensor buffer = vector_tensor(out.swa_out_cache_loc, IntType::kInt64, length);
    ops.zero_(ops.slice(buffer, 0, live, length));
    const Tensor destination = ops.slice(buffer, 0, 0, live);
    const Tensor mapping = vector_tensor(fill.full_to_swa, IntType::kInt64, args.full_to_swa_len);
    ops.copy_(destination,
              ops.index(mapping, vector_tensor(out.out_cache_loc, IntType::kInt64, live)));
  }
}

}  // namespace

int rebuild_kv_indices_aten(TensorOps& ops, DecodePhase phase, const KvIndicesOpsArgs& args) {
  if (is_empty(args)) return ops.status();
  check(phase, args);
  ops.end_rebuild();  // in case an earlier rebuild threw halfway
  if (phase == DecodePhase::kDraftDecode) {
    ops.kv_draft_fills(args.fills);
    if (args.plan == HostPlan::kDevice) ops.cpu(all_indptrs(args));
  } else {
    for (const KvIndicesArgs& fill : args.fills) {
      if (has_queries(phase)) {
        prefill_fill(ops, phase, args, fill);
      } else {
        decode_fill(ops, args, fill);
      }
    }
  }
  update_swa_out(ops, args);
  ops.end_rebuild();
  return ops.status();
}

int rebuild_kv_indices_device(TensorOps& ops, DecodePhase phase, const KvIndicesOpsArgs& args) {
  if (is_empty(args)) return ops.status();
  check(phase, args);
  ops.end_rebuild();
  if (phase == DecodePhase::kDraftDecode) {
    ops.kv_draft_fills(args.fills);
  } else {
    for (const KvIndicesArgs& fill : args.fills) device_fill(ops, fill);
  }
  update_swa_out(ops, args);
  ops.end_rebuild();
  return ops.status();
}

void reference_kv_gather(const KvGatherArgs& args) {
  const auto load = [](const void* data, IntType type, std::int64_t i) {
    return type == IntType::kInt64 ? static_cast<const std::int64_t*>(data)[i]
                                   : static_cast<const std::int32_t*>(data)[i];
  };
  for (std::int64_t row = 0; row < args.batch_size; ++row) {
    const std::int64_t pool_row = load(args.req_pool_indices, args.req_pool_indices_type, row);
    const std::int64_t length = load(args.lens, args.lens_type, row);
    const std::int64_t start =
        args.kv_start_idx == nullptr ? 0 : load(args.kv_start_idx, args.kv_start_idx_type, row);
    for (std::int64_t j = 0; j < length; ++j) {
      const std::int64_t to = args.kv_indptr[row] + j;
      if (to < 0 || to >= args.capacity) continue;
      const std::int64_t column = start + j;
      std::int32_t slot = -1;
      if (column >= 0 && column < args.req_to_token_stride) {
        slot = args.req_to_token[pool_row * args.req_to_token_stride + column];
      }
      if (args.full_to_swa != nullptr) {
        slot = slot < 0 ? -1 : static_cast<std::int32_t>(args.full_to_swa[slot]);
      }
      args.kv_indices[to] = slot;
    }
  }
}

}  // namespace tpjitter::kernels
