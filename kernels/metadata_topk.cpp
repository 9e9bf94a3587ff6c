// Tree-drafting metadata on the host: presets, checks and references.
#include "kernels/metadata_topk.h"

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <string>

namespace tpjitter::kernels {
namespace {

std::int64_t load(const void* data, IntType type, std::int64_t i) {
  return type == IntType::kInt64 ? static_cast<const std::int64_t*>(data)[i]
                                 : static_cast<const std::int32_t*>(data)[i];
}

bool table_is_valid(const TopkTable& table, std::int32_t rows, std::int32_t least_width) {
  return table.rows == rows && table.width >= least_width &&
         table.page_table_stride >= table.width && table.page_size >= 1 &&
         std::has_single_bit(static_cast<std::uint32_t>(table.page_size)) &&
         table.cache_seqlens != nullptr && table.cu_seqlens_k != nullptr &&
         table.page_table != nullptr;
}

// What the two kinds of arguments share.
template <class Args>
std::int32_t slot_at(const Args& args, std::int64_t pool_row, std::int64_t column) {
  if (column < 0 || column >= args.req_to_token_stride) return -1;
  return args.req_to_token[pool_row * args.req_to_token_stride + column];
}

template <class Args>
std::int64_t pool_row_of(const Args& args, std::int32_t row) {
  return load(args.req_pool_indices, args.req_pool_indices_type, row);
}

template <class Args>
std::int64_t tokens_of(const Args& args, std::int32_t row) {
  return load(args.seq_lens, args.seq_lens_type, row);
}

// Row `row` of the prefix object, of `tokens` cached tokens; the sums run in row order.
template <class Args>
void prefix_row(const Args& args, std::int32_t row, std::int64_t tokens) {
  const TopkTable& table = args.prefix;
  table.cache_seqlens[row] = static_cast<std::int32_t>(tokens);
  const std::int32_t before = row == 0 ? 0 : table.cu_seqlens_k[row];
  table.cu_seqlens_k[row + 1] = before + static_cast<std::int32_t>(tokens);
  const std::int64_t pages =
      std::clamp<std::int64_t>((tokens + table.page_size - 1) / table.page_size, 0, table.width);
  for (std::int64_t page = 0; page < pages; ++page) {
    const std::int32_t slot = slot_at(args, pool_row_of(args, row), page * table.page_size);
    table.page_table[row * table.page_table_stride + page] = slot / table.page_size;
  }
}

bool is_visible(const TopkVerifyArgs& args, std::int64_t mask_row, std::int64_t row,
                std::int64_t column) {
  const bool live = row < args.num_positions;
  const std::int64_t at = live ? mask_row + column : 0;
  return at < args.mask_len && args.custom_mask[at] != 0;
}

// Row `row` = request * q + i of the expand object; mask_row: where its last q mask bytes begin.
void verify_row(const TopkVerifyArgs& args, std::int32_t request, std::int64_t row,
                std::int64_t tokens, std::int64_t mask_row) {
  const TopkTable& table = args.expand;
  std::int32_t* columns = table.page_table + row * table.page_table_stride;
  std::int32_t place = 0;
  std::int32_t visible = 0;
  for (const bool wanted : {true, false}) {
    for (std::int32_t j = 0; j < args.draft_tokens; ++j) {
      if (is_visible(args, mask_row, row, j) != wanted) continue;
      columns[place++] = slot_at(args, pool_row_of(args, request), tokens + j);
    }
    if (wanted) visible = place;
  }
  table.cache_seqlens[row] = visible;
  table.cu_seqlens_k[row + 1] = (row == 0 ? 0 : table.cu_seqlens_k[row]) + visible;
}

template <class Args>
void check_prefix(const char* who, const Args& args, std::int32_t row, std::int64_t tokens,
                  std::int64_t read_tokens) {
  const std::string name = std::string(who) + ": row " + std::to_string(row) + " has " +
                           std::to_string(read_tokens) + " tokens, past ";
  if (read_tokens > args.req_to_token_stride) {
    throw std::invalid_argument(name + "the req_to_token row of " +
                                std::to_string(args.req_to_token_stride));
  }
  const std::int64_t room = std::int64_t{args.prefix.width} * args.prefix.page_size;
  if (tokens > room) {
    throw std::invalid_argument(name + "the prefix table of " + std::to_string(room));
  }
}

}  // namespace

bool is_valid(const TopkDraftArgs& args) {
  if (args.batch_size < 0 || args.topk < 2 || args.topk > kMaxTopk) return false;
  if (args.step < 0 || args.step >= args.num_steps || args.num_out_tokens < 0) return false;
  const std::int64_t all_tokens = std::int64_t{args.batch_size} * args.topk * args.num_steps;
  if (args.num_out_tokens > all_tokens || args.num_out_tokens % args.num_steps != 0) return false;
  if (args.out_cache_loc == nullptr && args.num_out_tokens > 0) return false;
  if (args.expand.page_size != args.prefix.page_size || args.req_to_token_stride < 0) return false;
  if (args.req_pool_indices == nullptr || args.seq_lens == nullptr ||
      args.req_to_token == nullptr) {
    return false;
  }
  return table_is_valid(args.prefix, args.batch_size, 0) &&
         table_is_valid(args.expand, args.batch_size * args.topk, args.step + 1);
}

bool is_valid(const TopkVerifyArgs& args) {
  if (args.batch_size < 0 || args.draft_tokens < 2 || args.draft_tokens > kMaxTreeTokens) {
    return false;
  }
  const std::int64_t all_tokens = std::int64_t{args.batch_size} * args.draft_tokens;
  if (args.num_positions < 0 || args.num_positions > all_tokens || args.mask_len < 0) return false;
  if (args.num_positions % args.draft_tokens != 0 || args.req_to_token_stride < 0) return false;
  if (args.req_pool_indices == nullptr || args.seq_lens == nullptr ||
      args.req_to_token == nullptr || args.custom_mask == nullptr) {
    return false;
  }
  return args.expand.page_size == 1 && args.expand.width == args.draft_tokens &&
         table_is_valid(args.prefix, args.batch_size, 0) &&
         table_is_valid(args.expand, args.batch_size * args.draft_tokens, args.draft_tokens);
}

std::int64_t tree_mask_length(const std::int64_t* seq_lens, std::int32_t batch_size,
                              std::int32_t draft_tokens) {
  std::int64_t length = 0;
  for (std::int32_t row = 0; row < batch_size; ++row) {
    length += (seq_lens[row] + draft_tokens) * draft_tokens;
  }
  return length;
}

void check_topk_draft(const TopkDraftArgs& args, const std::int64_t* seq_lens) {
  for (std::int32_t row = 0; row < args.batch_size; ++row) {
    const std::int64_t whole_pages = seq_lens[row] - seq_lens[row] % args.prefix.page_size;
    check_prefix("topk draft", args, row, whole_pages, seq_lens[row]);
  }
}

void check_topk_verify(const TopkVerifyArgs& args, const std::int64_t* seq_lens) {
  for (std::int32_t row = 0; row < args.batch_size; ++row) {
    check_prefix("topk verify", args, row, seq_lens[row], seq_lens[row] + args.draft_tokens);
  }
  const auto live = static_cast<std::int32_t>(args.num_positions / args.draft_tokens);
  const std::int64_t needed = tree_mask_length(seq_lens, live, args.draft_tokens);
  if (needed > args.mask_len) {
    throw std::invalid_argument("topk verify: custom_mask has " + std::to_string(args.mask_len) +
                                " entries, needed " + std::to_string(needed));
  }
}

void preset_topk_table(std::int32_t rows, std::int32_t query_step, std::int32_t draft_length,
                       std::int32_t* cu_seqlens_q, std::int32_t* cache_seqlens,
                       std::int32_t* cu_seqlens_k) {
  for (std::int32_t row = 0; row <= rows; ++row) {
    if (cu_seqlens_q != nullptr) cu_seqlens_q[row] = row * query_step;
    if (cu_seqlens_k != nullptr && (row == 0 || draft_length > 0)) {
      cu_seqlens_k[row] = row * draft_length;
    }
    if (cache_seqlens != nullptr && draft_length > 0 && row < rows) {
      cache_seqlens[row] = draft_length;
    }
  }
}

void reference_topk_draft(const TopkDraftArgs& args) {
  if (args.batch_size == 0) return;
  if (!is_valid(args)) {
    throw std::invalid_argument("topk draft: an array is missing, or a size makes no sense");
  }
  for (std::int32_t row = 0; row < args.batch_size; ++row) {
    const std::int64_t tokens = tokens_of(args, row);
    prefix_row(args, row, tokens - tokens % args.prefix.page_size);
  }
  reference_topk_draft_expand(args);
}

void reference_topk_draft_expand(const TopkDraftArgs& args) {
  const TopkTable& table = args.expand;
  const std::int64_t live_rows = args.num_out_tokens / args.num_steps;
  for (std::int64_t row = 0; row < table.rows; ++row) {
    const std::int64_t* slots = args.out_cache_loc + row * args.num_steps;
    std::int32_t* columns = table.page_table + row * table.page_table_stride;
    if (table.page_size == 1) {
      for (std::int32_t i = 0; row < live_rows && i <= args.step; ++i) {
        columns[i] = static_cast<std::int32_t>(slots[i]);
      }
      continue;
    }
    const std::int64_t begun =
        tokens_of(args, static_cast<std::int32_t>(row / args.topk)) % table.page_size;
    table.cache_seqlens[row] = static_cast<std::int32_t>(begun + args.step + 1);
    const std::int32_t before = row == 0 ? 0 : table.cu_seqlens_k[row];
    table.cu_seqlens_k[row + 1] = before + table.cache_seqlens[row];
    if (row >= live_rows) continue;
    std::int32_t pages = 0;
    for (std::int32_t i = 0; i <= args.step; ++i) {
      const auto page = static_cast<std::int32_t>(slots[i] / table.page_size);
      if (pages == 0 || columns[pages - 1] != page) columns[pages++] = page;
    }
    std::fill(columns + pages, columns + table.width, 0);
  }
}

void reference_topk_verify(const TopkVerifyArgs& args) {
  if (args.batch_size == 0) return;
  if (!is_valid(args)) {
    throw std::invalid_argument("topk verify: an array is missing, or a size makes no sense");
  }
  const std::int64_t q = args.draft_tokens;
  std::int64_t request_mask = 0;  // first mask byte of the request
  for (std::int32_t row = 0; row < args.batch_size; ++row) {
    const std::int64_t tokens = tokens_of(args, row);
    prefix_row(args, row, tokens);
    for (std::int64_t i = 0; i < q; ++i) {
      const std::int64_t mask_row = request_mask + i * (tokens + q) + tokens;
      verify_row(args, row, row * q + i, tokens, mask_row);
    }
    request_mask += (tokens + q) * q;
  }
}

}  // namespace tpjitter::kernels
