// Linear-attention state metadata on the host: reference, checks, and the operations of the engine
// (SGLang's mamba and gated-delta-net backends, one function for capture and replay).
#include "kernels/linear_state.h"

#include <stdexcept>
#include <string>

#include "kernels/tensor_ops.h"

namespace tpjitter::kernels {
namespace {

std::int64_t load_index(const LinearStateArgs& args, std::int64_t row) {
  return args.req_pool_indices_type == IntType::kInt64
             ? static_cast<const std::int64_t*>(args.req_pool_indices)[row]
             : static_cast<const std::int32_t*>(args.req_pool_indices)[row];
}

void zero_index(const LinearStateArgs& args, std::int64_t row) {
  if (args.req_pool_indices_type == IntType::kInt64) {
    static_cast<std::int64_t*>(args.req_pool_indices)[row] = 0;
  } else {
    static_cast<std::int32_t*>(args.req_pool_indices)[row] = 0;
  }
}

std::int32_t state_of(const LinearStateArgs& args, std::int64_t pool_row) {
  const bool inside = pool_row >= 0 && pool_row < args.mapping_len;
  return inside ? args.mapping[pool_row] : kPaddedState;
}

}  // namespace

std::int32_t count_fill_lengths(const std::int64_t* seq_lens_cpu, std::int32_t batch_size,
                                std::int64_t fill) {
  std::int32_t count = 0;
  if (seq_lens_cpu == nullptr) return count;
  for (std::int32_t row = 0; row < batch_size; ++row) count += seq_lens_cpu[row] == fill ? 1 : 0;
  return count;
}

bool is_valid(const LinearStateArgs& args) {
  if (args.batch_size < 0 || args.num_padding < 0 || args.num_padding > args.batch_size) {
    return false;
  }
  if (args.query_len < 1 || args.mapping_len < 0) return false;
  return args.req_pool_indices != nullptr && args.mapping != nullptr &&
         args.state_indices != nullptr && args.query_start_loc != nullptr;
}

void check_linear_state(DecodePhase phase, const LinearStateArgs& args) {
  if (phase != DecodePhase::kNormalDecode && phase != DecodePhase::kTargetVerify) {
    throw std::invalid_argument(
        "linear state: only decode and target-verify have it; a draft pass or draft-extend runs "
        "the draft model");
  }
  if (phase == DecodePhase::kNormalDecode && args.query_len != 1) {
    throw std::invalid_argument("linear state: decode has one token a request, not " +
                                std::to_string(args.query_len));
  }
  if (args.batch_size == 0) return;
  if (args.num_padding < 0 || args.num_padding > args.batch_size) {
    throw std::invalid_argument("linear state: " + std::to_string(args.num_padding) +
                                " padded rows in a batch of " + std::to_string(args.batch_size));
  }
  if (!is_valid(args)) {
    throw std::invalid_argument("linear state: an array is missing, or a size makes no sense");
  }
}

void check_linear_mapping(const LinearStateArgs& args) {
  for (std::int32_t row = 0; row < args.batch_size - args.num_padding; ++row) {
    const std::int64_t pool_row = load_index(args, row);
    if (pool_row >= 0 && pool_row < args.mapping_len) continue;
    throw std::invalid_argument("linear state: row " + std::to_string(row) + " is request " +
                                std::to_string(pool_row) + ", outside of the state mapping of " +
                                std::to_string(args.mapping_len));
  }
}

void reference_linear_state(DecodePhase phase, const LinearStateArgs& args) {
  check_linear_state(phase, args);
  if (args.batch_size == 0) return;
  const std::int32_t live = args.batch_size - args.num_padding;
  args.query_start_loc[0] = 0;
  for (std::int32_t row = 0; row < args.batch_size; ++row) {
    const bool padded = row >= live;
    args.state_indices[row] = padded ? kPaddedState : state_of(args, load_index(args, row));
    args.query_start_loc[row + 1] = (padded ? live : row + 1) * args.query_len;
    if (padded && args.zero_padded_requests) zero_index(args, row);
  }
}

int rebuild_linear_state_aten(TensorOps& ops, DecodePhase phase, const LinearStateArgs& args) {
  check_linear_state(phase, args);
  const std::int64_t batch_size = args.batch_size;
  if (batch_size == 0) return ops.status();
  if (args.query_start_preset == nullptr) {
    throw std::invalid_argument("linear state: query_start_preset is missing");
  }
  ops.end_rebuild();  // in case an earlier rebuild threw halfway
  const std::int64_t live = batch_size - args.num_padding;
  const Tensor requests =
      vector_tensor(args.req_pool_indices, args.req_pool_indices_type, batch_size);
  if (args.zero_padded_requests) ops.fill_(ops.slice(requests, 0, live, batch_size), 0);

  const Tensor mapping = vector_tensor(args.mapping, IntType::kInt32, args.mapping_len);
  const Tensor states = ops.index(mapping, requests);
  ops.fill_(ops.slice(states, 0, live, batch_size), kPaddedState);
  const Tensor state_indices = vector_tensor(args.state_indices, IntType::kInt32, batch_size);
  ops.copy_(ops.slice(state_indices, 0, 0, batch_size), states);

  // With padding the engine copies entries below the live count and fills from there, the count's
  // own entry included.
  const Tensor starts = vector_tensor(args.query_start_loc, IntType::kInt32, batch_size + 1);
  const Tensor preset = vector_tensor(args.query_start_preset, IntType::kInt32, batch_size + 1);
  if (args.num_padding == 0) {
    ops.copy_(starts, ops.slice(preset, 0, 0, batch_size + 1));
  } else {
    const Tensor live_starts = ops.slice(starts, 0, 0, live);
    ops.copy_(live_starts, ops.slice(preset, 0, 0, live));
    ops.fill_(ops.slice(starts, 0, live, batch_size + 1), live * args.query_len);
  }
  ops.end_rebuild();
  return ops.status();
}

}  // namespace tpjitter::kernels
