// Cases of the tree-drafting metadata for the tests on the host and on a GPU. Outputs start
// poisoned, with row strides wider than the width, so that a write too many is seen.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "kernels/metadata_topk.h"
#include "tests/array_difference.h"

namespace tpjitter::test {

inline constexpr std::int32_t kTopkPoison = -7;
inline constexpr std::int32_t kTopkStridePadding = 3;

// The arrays of one table, on the host.
struct TopkArrays {
  std::vector<std::int32_t> cache_seqlens, cu_seqlens_k, cu_seqlens_q, page_table;
  bool operator==(const TopkArrays&) const = default;
};

struct TopkOutputs {
  TopkArrays prefix, expand;
  bool operator==(const TopkOutputs&) const = default;
};

struct TopkCase {
  std::string name;
  bool verify = false;
  std::int32_t batch_size = 1;  // padded rows included
  std::int32_t live_rows = 1;
  std::int32_t topk = 2, num_steps = 3, step = 0;  // draft step
  std::int32_t draft_tokens = 4;                   // verify
  std::int32_t page_size = 1;
  std::int32_t width = 8;   // of the prefix table, pages
  std::int64_t stride = 0;  // of req_to_token
  std::int64_t pool_rows = 0;
  std::vector<std::int64_t> req_pool_indices, seq_lens, out_cache_loc;
  std::vector<std::int32_t> req_to_token;
  std::vector<std::uint8_t> custom_mask;

  std::int32_t expand_rows() const { return batch_size * (verify ? draft_tokens : topk); }
  std::int32_t expand_width() const { return verify ? draft_tokens : num_steps; }
  std::int32_t query_step() const { return verify ? draft_tokens : topk; }
};

// Poisoned, with what the owner of the buffers presets.
inline TopkOutputs poisoned_outputs(const TopkCase& c) {
  const auto arrays = [](std::int32_t rows, std::int32_t width) {
    const auto size = static_cast<std::size_t>(rows);
    TopkArrays a;
    a.cache_seqlens.assign(size + 1, kTopkPoison);
    a.cu_seqlens_k.assign(size + 2, kTopkPoison);
    a.cu_seqlens_q.assign(size + 1, kTopkPoison);
    a.page_table.assign(size * static_cast<std::size_t>(width + kTopkStridePadding), kTopkPoison);
    return a;
  };
  TopkOutputs outputs{arrays(c.batch_size, c.width), arrays(c.expand_rows(), c.expand_width())};
  kernels::preset_topk_table(c.batch_size, c.query_step(), 0, outputs.prefix.cu_seqlens_q.data(),
                             outputs.prefix.cache_seqlens.data(),
                             outputs.prefix.cu_seqlens_k.data());
  const std::int32_t preset = !c.verify && c.page_size == 1 ? c.step + 1 : 0;
  kernels::preset_topk_table(c.expand_rows(), 1, preset, outputs.expand.cu_seqlens_q.data(),
                             outputs.expand.cache_seqlens.data(),
                             outputs.expand.cu_seqlens_k.data());
  return outputs;
}

inline kernels::TopkTable table_of(TopkArrays& arrays, std::int32_t rows, std::int32_t width,
                                   std::int32_t page_size) {
  return {.cache_seqlens = arrays.cache_seqlens.data(),
          .cu_seqlens_k = arrays.cu_seqlens_k.data(),
          .cu_seqlens_q = arrays.cu_seqlens_q.data(),
          .page_table = arrays.page_table.data(),
          .page_table_stride = width + kTopkStridePadding,
          .rows = rows,
          .width = width,
          .page_size = page_size};
}

// Both kinds of arguments over the case's and the outputs' own memory; lengths are int64.
inline kernels::TopkDraftArgs bind_draft(const TopkCase& c, TopkOutputs& outputs) {
  kernels::TopkDraftArgs args;
  args.req_pool_indices = c.req_pool_indices.data();
  args.seq_lens = c.seq_lens.data();
  args.req_to_token = c.req_to_token.data();
  args.out_cache_loc = c.out_cache_loc.data();
  args.prefix = table_of(outputs.prefix, c.batch_size, c.width, c.page_size);
  args.expand = table_of(outputs.expand, c.expand_rows(), c.expand_width(), c.page_size);
  args.req_to_token_stride = c.stride;
  args.num_out_tokens = static_cast<std::int64_t>(c.out_cache_loc.size());
  args.batch_size = c.batch_size;
  args.topk = c.topk;
  args.num_steps = c.num_steps;
  args.step = c.step;
  args.seq_lens_type = kernels::IntType::kInt64;
  return args;
}

inline kernels::TopkVerifyArgs bind_verify(const TopkCase& c, TopkOutputs& outputs) {
  kernels::TopkVerifyArgs args;
  args.req_pool_indices = c.req_pool_indices.data();
  args.seq_lens = c.seq_lens.data();
  args.req_to_token = c.req_to_token.data();
  args.custom_mask = c.custom_mask.data();
  args.prefix = table_of(outputs.prefix, c.batch_size, c.width, c.page_size);
  args.expand = table_of(outputs.expand, c.expand_rows(), c.expand_width(), 1);
  args.req_to_token_stride = c.stride;
  args.mask_len = static_cast<std::int64_t>(c.custom_mask.size());
  args.num_positions = std::int64_t{c.live_rows} * c.draft_tokens;
  args.batch_size = c.batch_size;
  args.draft_tokens = c.draft_tokens;
  args.seq_lens_type = kernels::IntType::kInt64;
  return args;
}

inline TopkOutputs reference_outputs(const TopkCase& c) {
  TopkOutputs outputs = poisoned_outputs(c);
  if (c.verify) {
    reference_topk_verify(bind_verify(c, outputs));
  } else {
    reference_topk_draft(bind_draft(c, outputs));
  }
  return outputs;
}

// What the op-by-op form leaves: prefix columns [0, P) of every row, P of the longest mirror.
inline TopkOutputs aten_outputs(const TopkCase& c) {
  TopkOutputs outputs = reference_outputs(c);
  const std::int64_t longest = *std::max_element(c.seq_lens.begin(), c.seq_lens.end());
  const std::int64_t pages =
      (longest + (c.verify ? c.page_size - 1 : 0)) / c.page_size;  // a draft's are whole pages
  for (std::int64_t row = 0; row < c.batch_size; ++row) {
    for (std::int64_t page = 0; page < pages; ++page) {
      const std::int32_t slot =
          c.req_to_token[c.req_pool_indices[row] * c.stride + page * c.page_size];
      outputs.prefix.page_table[row * (c.width + kTopkStridePadding) + page] = slot / c.page_size;
    }
  }
  return outputs;
}

// Lengths, requests, slots, and a mask whose tree part is random but for each token seeing itself.
inline void fill_case(TopkCase& c, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](std::int64_t limit) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(limit));
  };
  c.pool_rows = c.batch_size + 2;
  c.stride = std::int64_t{c.width} * c.page_size + c.draft_tokens + 5;
  c.req_to_token.resize(static_cast<std::size_t>(c.pool_rows * c.stride));
  for (std::int32_t& slot : c.req_to_token) slot = static_cast<std::int32_t>(below(1 << 20));
  c.req_pool_indices.clear();
  c.seq_lens.clear();
  c.custom_mask.clear();
  for (std::int32_t row = 0; row < c.batch_size; ++row) {
    const bool padded = row >= c.live_rows;
    const std::int64_t context = std::int64_t{c.width} * c.page_size;
    c.req_pool_indices.push_back(padded ? 0 : 1 + below(c.pool_rows - 1));
    c.seq_lens.push_back(padded ? 1 : row == 0 ? context : 1 + below(context));
    for (std::int32_t i = 0; !padded && i < c.draft_tokens; ++i) {
      for (std::int64_t j = 0; j < c.seq_lens.back(); ++j) c.custom_mask.push_back(1);
      for (std::int32_t j = 0; j < c.draft_tokens; ++j) {
        c.custom_mask.push_back(static_cast<std::uint8_t>(j == i || below(2) == 0 ? 1 : 0));
      }
    }
  }
  c.out_cache_loc.clear();
  const std::int64_t locations = std::int64_t{c.live_rows} * c.topk * c.num_steps;
  for (std::int64_t i = 0; i < locations; ++i) {
    // Steps of a branch follow each other, so that they share pages.
    const bool follows = i % c.num_steps != 0 && below(4) != 0;
    c.out_cache_loc.push_back(follows ? c.out_cache_loc.back() + 1 : below(1 << 20));
  }
}

inline std::vector<TopkCase> random_topk_cases() {
  std::vector<TopkCase> cases;
  std::uint64_t seed = 0;
  for (const std::int32_t batch : {1, 2, 7, 33, 130}) {
    for (const std::int32_t page_size : {1, 4, 64}) {
      for (const std::int32_t branches : {2, 3, 8}) {
        TopkCase c;
        c.batch_size = batch;
        c.live_rows = batch - batch / 4;
        c.page_size = page_size;
        c.width = page_size == 1 ? 300 : 9;
        c.topk = branches;
        c.num_steps = 2 + static_cast<std::int32_t>(seed % 4);
        c.step = static_cast<std::int32_t>(seed) % c.num_steps;
        c.draft_tokens = branches == 2 ? 4 : branches == 3 ? 16 : 64;
        if (batch == 130 && branches == 8) c.draft_tokens = 33;
        for (const bool verify : {false, true}) {
          c.verify = verify;
          c.name = std::string(verify ? "verify" : "draft") + ", batch " + std::to_string(batch) +
                   ", page " + std::to_string(page_size) + ", topk " + std::to_string(branches) +
                   ", step " + std::to_string(c.step);
          fill_case(c, ++seed);
          cases.push_back(c);
        }
      }
    }
  }
  return cases;
}

// Empty if equal, else the first differing output and index with both values.
inline std::string first_difference(const TopkOutputs& actual, const TopkOutputs& expected) {
  const auto tables = [](const char* name, const TopkArrays& a, const TopkArrays& b) {
    for (const std::string& text :
         {array_difference("cache_seqlens", a.cache_seqlens, b.cache_seqlens),
          array_difference("cu_seqlens_k", a.cu_seqlens_k, b.cu_seqlens_k),
          array_difference("cu_seqlens_q", a.cu_seqlens_q, b.cu_seqlens_q),
          array_difference("page_table", a.page_table, b.page_table)}) {
      if (!text.empty()) return std::string(name) + " " + text;
    }
    return std::string();
  };
  const std::string prefix = tables("prefix", actual.prefix, expected.prefix);
  return prefix.empty() ? tables("expand", actual.expand, expected.expand) : prefix;
}

}  // namespace tpjitter::test
