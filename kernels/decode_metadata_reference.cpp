// The decode-metadata rebuild as plain loops: what every path must equal. The one subtle thing is
// the sign rule: a page id truncates towards zero, an SWA page id of anything negative is -1.
#include <algorithm>
#include <stdexcept>
#include <string>

#include "kernels/decode_metadata.h"

namespace tpjitter::kernels {
namespace {

std::int64_t load_int(const void* data, IntType type, std::int64_t i) {
  return type == IntType::kInt64 ? static_cast<const std::int64_t*>(data)[i]
                                 : static_cast<const std::int32_t*>(data)[i];
}

// int32 sums wrap, as they do on the GPU.
std::int32_t add_wrapping(std::int32_t a, std::int32_t b) {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(a) + static_cast<std::uint32_t>(b));
}

void fill_row(const DecodeMetadataArgs& args, std::int64_t row) {
  const std::int64_t pool_row = load_int(args.req_pool_indices, args.req_pool_indices_type, row);
  const std::int32_t* slots = args.req_to_token + pool_row * args.req_to_token_stride;
  std::int64_t columns = args.max_seq_pages;
  if (args.page_columns == PageColumns::kLive) {
    const std::int64_t tokens = std::max(args.cache_seqlens[row], 0);
    columns = std::min(columns, (tokens + args.page_size - 1) / args.page_size);
  }
  for (std::int64_t column = 0; column < columns; ++column) {
    const std::int32_t slot = slots[column * args.page_size];
    args.page_table[row * args.page_table_stride + column] = slot / args.page_size;
    if (args.swa_page_table == nullptr) continue;
    const std::int64_t swa_slot = slot < 0 ? -1 : args.full_to_swa[slot];
    args.swa_page_table[row * args.swa_page_table_stride + column] =
        swa_slot < 0 ? -1 : static_cast<std::int32_t>(swa_slot / args.page_size);
  }
}

void fill_swa_out_cache_loc(const DecodeMetadataArgs& args) {
  for (std::int64_t i = 0; i < args.swa_out_len; ++i) {
    const bool live = args.out_cache_loc != nullptr && i < args.num_out_tokens;
    const std::int64_t location = live ? args.out_cache_loc[i] : 0;
    args.swa_out_cache_loc[i] = !live ? 0 : location < 0 ? -1 : args.full_to_swa[location];
  }
}

}  // namespace

void reference_decode_metadata(const DecodeMetadataArgs& args) {
  std::int32_t sum_k = 0;
  std::int32_t sum_q = 0;
  for (std::int64_t row = 0; row < args.batch_size; ++row) {
    const std::int64_t tokens = load_int(args.seq_lens, args.seq_lens_type, row);
    args.cache_seqlens[row] = static_cast<std::int32_t>(tokens + args.seqlen_offset);
    sum_k = add_wrapping(sum_k, args.cache_seqlens[row]);
    args.cu_seqlens_k[row + 1] = sum_k;
    if (args.q_mode == QueryMode::kCumsum) {
      sum_q = add_wrapping(sum_q,
                           static_cast<std::int32_t>(load_int(args.q_lens, args.q_lens_type, row)));
      args.cu_seqlens_q[row + 1] = sum_q;
    } else if (args.q_mode == QueryMode::kStrided) {
      args.cu_seqlens_q[row + 1] = static_cast<std::int32_t>((row + 1) * args.q_stride);
    }
    fill_row(args, row);
  }
  if (args.batch_size > 0 && args.swa_out_cache_loc != nullptr) fill_swa_out_cache_loc(args);
}

void check_swa_mapping(const std::int64_t* mapping, std::int64_t length, std::int64_t num_slots,
                       std::int32_t page_size) {
  const std::int64_t needed = num_slots + page_size + 1;
  if (length != needed) {
    throw std::invalid_argument("SWA mapping: " + std::to_string(length) + " entries, needed " +
                                std::to_string(needed) + " for " + std::to_string(num_slots) +
                                " slots, a padding page of " + std::to_string(page_size) +
                                " and the -1 at the end");
  }
  if (mapping[length - 1] != -1) {
    throw std::invalid_argument("SWA mapping: the last entry is " +
                                std::to_string(mapping[length - 1]) + ", not -1");
  }
}

}  // namespace tpjitter::kernels
