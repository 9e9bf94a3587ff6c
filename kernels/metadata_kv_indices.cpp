// The fills of FlashInfer's form on the host: reference, checks, and the arguments of each phase.
#include "kernels/metadata_kv_indices.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

namespace tpjitter::kernels {
namespace {

constexpr std::int64_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();

std::int64_t load(const void* data, IntType type, std::int64_t i) {
  return type == IntType::kInt64 ? static_cast<const std::int64_t*>(data)[i]
                                 : static_cast<const std::int32_t*>(data)[i];
}

struct RowRange {
  std::int64_t start = 0;
  std::int64_t length = 0;
};

RowRange row_range(const KvIndicesArgs& args, std::int64_t row, std::int64_t seq_len) {
  const std::int64_t tokens = std::clamp<std::int64_t>(seq_len + args.seqlen_offset, 0, kMaxInt32);
  if (args.sliding_window != kNoWindow) {
    const std::int64_t length = std::min(tokens, std::int64_t{args.sliding_window} + 1);
    return {.start = tokens - length, .length = length};
  }
  if (args.kv_start_idx == nullptr) return {.start = 0, .length = tokens};
  const std::int64_t start = load(args.kv_start_idx, args.kv_start_idx_type, row);
  return {.start = std::clamp<std::int64_t>(start, 0, kMaxInt32), .length = tokens};
}

std::int32_t entry_of(const KvIndicesArgs& args, std::int64_t pool_row, std::int64_t column) {
  if (column >= args.req_to_token_stride) return -1;
  const std::int32_t slot = args.req_to_token[pool_row * args.req_to_token_stride + column];
  if (args.full_to_swa == nullptr) return slot;
  return slot < 0 ? -1 : static_cast<std::int32_t>(args.full_to_swa[slot]);
}

void reference_swa_out(const KvIndicesArgs& args) {
  const SwaOutCacheLoc& out = args.swa_out;
  if (out.swa_out_cache_loc == nullptr) return;
  for (std::int64_t i = 0; i < out.length; ++i) {
    const bool live = i < out.num_locations;
    const std::int64_t location = live ? out.out_cache_loc[i] : 0;
    out.swa_out_cache_loc[i] = !live ? 0 : location < 0 ? -1 : args.full_to_swa[location];
  }
}

}  // namespace

KvIndicesArgs kv_indices_args(DecodePhase phase, const DecodeMetadataArgs& metadata,
                              const KvIndicesWrapper& wrapper) {
  KvIndicesArgs args = {.req_pool_indices = metadata.req_pool_indices,
                        .seq_lens = metadata.seq_lens,
                        .req_to_token = metadata.req_to_token,
                        .wrapper = wrapper,
                        .req_to_token_stride = metadata.req_to_token_stride,
                        .batch_size = metadata.batch_size,
                        .seqlen_offset = metadata.seqlen_offset,
                        .req_pool_indices_type = metadata.req_pool_indices_type,
                        .seq_lens_type = metadata.seq_lens_type};
  switch (phase) {
    case DecodePhase::kNormalDecode:
    case DecodePhase::kDraftDecode:
      args.wrapper.qo_indptr = nullptr;
      break;
    case DecodePhase::kTargetVerify:
      args.q_stride = metadata.seqlen_offset;
      break;
    case DecodePhase::kDraftExtendStrided:
      args.q_stride = metadata.q_stride;
      break;
    case DecodePhase::kDraftExtendCumsum:
      throw std::invalid_argument("kv_indices: draft-extend has a fixed query stride in this form");
  }
  return args;
}

KvIndicesArgs with_sliding_window(KvIndicesArgs full, std::int32_t sliding_window,
                                  const std::int64_t* full_to_swa,
                                  const KvIndicesWrapper& wrapper) {
  const bool has_queries = full.wrapper.qo_indptr != nullptr;
  full.sliding_window = sliding_window;
  full.full_to_swa = full_to_swa;
  full.wrapper = wrapper;
  if (!has_queries) full.wrapper.qo_indptr = nullptr;
  return full;
}

void draft_step_fills(const KvIndicesArgs& first, std::int64_t kv_indptr_stride,
                      std::int64_t kv_indices_stride, std::span<KvIndicesArgs> fills) {
  std::int32_t step = 0;
  for (KvIndicesArgs& fill : fills) {
    fill = first;
    fill.seqlen_offset += step + 1;
    fill.wrapper.kv_indptr += step * kv_indptr_stride;
    fill.wrapper.kv_indices += step * kv_indices_stride;
    fill.wrapper.capacity = std::min(first.wrapper.capacity, kv_indices_stride);
    ++step;
  }
}

bool is_valid(const KvIndicesArgs& args) {
  const KvIndicesWrapper& wrapper = args.wrapper;
  if (args.batch_size < 0 || wrapper.capacity < 0 || args.req_to_token_stride < 0) return false;
  if (args.sliding_window < kNoWindow) return false;
  if (args.sliding_window != kNoWindow && args.kv_start_idx != nullptr) return false;
  if (wrapper.qo_indptr != nullptr && args.q_stride < 1) return false;
  if (wrapper.kv_indptr == nullptr) return false;
  const SwaOutCacheLoc& out = args.swa_out;
  if (out.swa_out_cache_loc != nullptr &&
      (args.full_to_swa == nullptr || out.out_cache_loc == nullptr || out.num_locations < 0 ||
       out.num_locations > out.length)) {
    return false;
  }
  if (wrapper.kv_indices == nullptr && wrapper.capacity > 0) return false;
  return args.req_pool_indices != nullptr && args.seq_lens != nullptr &&
         args.req_to_token != nullptr;
}

void reference_kv_indices(const KvIndicesArgs& args) {
  if (args.batch_size == 0) return;
  if (!is_valid(args)) {
    throw std::invalid_argument(
        "kv_indices: an array is missing, or a size, the window or the query stride makes no "
        "sense");
  }
  reference_swa_out(args);
  const KvIndicesWrapper& wrapper = args.wrapper;
  if (wrapper.qo_indptr != nullptr) wrapper.qo_indptr[0] = 0;
  std::int64_t begin = 0;  // of the row in kv_indices
  for (std::int64_t row = 0; row < args.batch_size; ++row) {
    const RowRange range = row_range(args, row, load(args.seq_lens, args.seq_lens_type, row));
    const std::int64_t pool_row = load(args.req_pool_indices, args.req_pool_indices_type, row);
    for (std::int64_t j = 0; j < range.length && begin + j < wrapper.capacity; ++j) {
      wrapper.kv_indices[begin + j] = entry_of(args, pool_row, range.start + j);
    }
    begin += range.length;
    wrapper.kv_indptr[row + 1] = static_cast<std::int32_t>(begin);
    if (wrapper.qo_indptr != nullptr) {
      wrapper.qo_indptr[row + 1] = static_cast<std::int32_t>((row + 1) * args.q_stride);
    }
  }
}

void check_kv_indices(const KvIndicesArgs& args, const std::int64_t* seq_lens) {
  std::int64_t end = 0;
  for (std::int64_t row = 0; row < args.batch_size; ++row) {
    const std::string who = "kv_indices: row " + std::to_string(row);
    const std::int64_t tokens = seq_lens[row] + args.seqlen_offset;
    if (tokens > args.req_to_token_stride) {
      throw std::invalid_argument(who + " has " + std::to_string(tokens) +
                                  " tokens, past the req_to_token row of " +
                                  std::to_string(args.req_to_token_stride));
    }
    std::int64_t length = std::max<std::int64_t>(tokens, 0);
    if (args.sliding_window != kNoWindow) {
      length = std::min(length, std::int64_t{args.sliding_window} + 1);
    }
    end += length;
    if (end <= std::min(args.wrapper.capacity, kMaxInt32)) continue;
    const bool too_large = args.wrapper.capacity > kMaxInt32;
    throw std::invalid_argument(
        who + " of " + std::to_string(length) + " tokens needs " + std::to_string(end) +
        " entries with the rows before it, " +
        (too_large ? "more than the int32 of kv_indptr holds"
                   : "but kv_indices has " + std::to_string(args.wrapper.capacity)));
  }
}

}  // namespace tpjitter::kernels
