#include "harness/serving_state.h"

#include <algorithm>
#include <random>

#include "harness/contract/error.h"
#include "kernels/decode_body.h"

namespace tpjitter {
namespace {

using kernels::accepted_tokens;
using kernels::kMaxAccept;
using kernels::mix64;

// A request leaves after about this many steps even when it has room to grow.
constexpr std::uint64_t kMeanStepsPerRequest = 128;
// One page in this many is out of the sliding window: its mapping is -1.
constexpr std::uint64_t kUnmappedPageOneIn = 16;

std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

// Requests join with a prefix between a quarter of the context and all of it, as in the published
// measurements of this rebuild.
std::int32_t prefix_of(const ServingShape& s, std::int32_t pool_row) {
  const std::int32_t low = std::max(1, s.context_tokens / 4);
  const auto span = static_cast<std::uint64_t>(s.context_tokens - low + 1);
  return low + static_cast<std::int32_t>(mix64(s.seed * 31 + pool_row) % span);
}

// Tokens past seq_lens that have a slot: what a step may write or accept.
std::int32_t reach(const ServingShape& s) {
  return std::max({kMaxAccept, s.query_len, s.draft_passes});
}

// The pages past the prefix exist twice: successive requests of a row use other slots there.
std::int64_t own_pages(const ServingShape& s, std::int32_t pool_row) {
  const std::int64_t prefix_pages = (prefix_of(s, pool_row) + s.page_size - 1) / s.page_size;
  return prefix_pages + 2 * (s.max_seq_pages - prefix_pages);
}

// Of a tree's branch: it begins in a page of its own at the place where the cached tokens end.
std::int64_t branch_pages(const ServingShape& s) {
  return (s.page_size - 1 + s.draft_steps + s.page_size - 1) / s.page_size;
}

// Successive steps draft into other pages, or a stale table of branches would look right.
constexpr std::int64_t kTreeSets = 3;

std::int64_t pages_of(const ServingShape& s, std::int32_t pool_row) {
  return own_pages(s, pool_row) + (s.topk > 1 ? kTreeSets * s.topk * branch_pages(s) : 0);
}

}  // namespace

ServingShape ServingShape::of(const CaseConfig& config) {
  ServingShape s;
  s.live_batch = static_cast<std::int32_t>(config.batch_size);
  s.batch_size = s.live_batch;
  if (!config.capture_batch_sizes.empty()) {
    std::int64_t bucket = 0;  // smallest captured batch size that holds the batch
    for (const std::int64_t b : config.capture_batch_sizes) {
      if (b >= config.batch_size && (bucket == 0 || b < bucket)) bucket = b;
    }
    if (bucket == 0) {
      throw ConfigError("shape.batch_size: no captured batch size is as large as " +
                        std::to_string(config.batch_size) + "; add one to capture_batch_sizes");
    }
    s.batch_size = static_cast<std::int32_t>(bucket);
  }
  s.max_batch = s.batch_size;
  for (const std::int64_t b : config.capture_batch_sizes) {
    s.max_batch = std::max(s.max_batch, static_cast<std::int32_t>(b));
  }
  if (config.mode == "speculative") {
    s.query_len = static_cast<std::int32_t>(config.draft_tokens);
    s.draft_passes = static_cast<std::int32_t>(config.draft_steps) - 1;
    s.topk = static_cast<std::int32_t>(config.topk);
    s.draft_steps = static_cast<std::int32_t>(config.draft_steps);
  }
  s.page_size = static_cast<std::int32_t>(config.page_size);
  const std::int64_t room =
      config.max_context_tokens > 0 ? config.max_context_tokens : config.context_tokens + 1024;
  s.max_context = round_up(room, config.page_size);
  s.max_seq_pages = static_cast<std::int32_t>(s.max_context / config.page_size);
  if (room < config.context_tokens + reach(s)) {
    throw ConfigError("key `shape.max_context_tokens`: " + std::to_string(room) +
                      " leaves no room for the tokens of a step after context_tokens; allowed: " +
                      std::to_string(config.context_tokens + reach(s)) + " or more");
  }
  // Spare rows for requests that join, so that a joining request finds its prefix in place.
  s.pool_rows = 1 + s.live_batch + std::max(1, s.live_batch / 4);
  s.needs_mapping = config.swa || (config.mode == "speculative" && config.draft_swa);
  s.seed = static_cast<std::uint64_t>(config.inject_seed);

  s.context_tokens = static_cast<std::int32_t>(config.context_tokens);
  std::int64_t pages = 1;
  for (std::int32_t row = 1; row < s.pool_rows; ++row) pages += pages_of(s, row);
  s.num_slots = pages * s.page_size;
  if (s.num_slots > INT32_MAX) {
    throw ConfigError("shape: the KV pool would need " + std::to_string(s.num_slots) +
                      " slots, more than int32 slot ids hold; lower batch_size or context_tokens");
  }
  return s;
}

ServingState::ServingState(const ServingShape& shape) : shape_(shape) {
  const ServingShape& s = shape_;
  first_page_.resize(s.pool_rows);
  prefix_tokens_.resize(s.pool_rows);
  generation_.assign(s.pool_rows, 0);
  std::int64_t next_page = 0;
  for (std::int32_t row = 1; row < s.pool_rows; ++row) {
    prefix_tokens_[row] = prefix_of(s, row);
    first_page_[row] = next_page;
    next_page += pages_of(s, row);
  }
  pages_.resize(next_page);
  for (std::int64_t i = 0; i < next_page; ++i) pages_[i] = static_cast<std::int32_t>(1 + i);
  std::mt19937_64 random(s.seed);
  for (std::int64_t i = next_page - 1; i > 0;
       --i) {  // own shuffle: std's differs between libraries
    std::swap(pages_[i], pages_[random() % (i + 1)]);
  }

  req_to_token_.assign(s.pool_rows * s.max_context, 0);
  for (std::int32_t row = 1; row < s.pool_rows; ++row) {
    for (std::int64_t t = 0; t < prefix_tokens_[row]; ++t) {
      req_to_token_[row * s.max_context + t] = slot_of(row, t);
    }
  }
  if (s.needs_mapping) {
    full_to_swa_.assign(s.num_slots + s.page_size + 1, -1);
    const std::int64_t pages = s.num_slots / s.page_size + 1;  // the padding page included
    for (std::int64_t page = 0; page < pages; ++page) {
      const std::uint64_t h = mix64(s.seed ^ (0x5157ULL << 32) ^ static_cast<std::uint64_t>(page));
      if (page > 0 && h % kUnmappedPageOneIn == 0) continue;
      const std::int64_t swa_page = page == 0 ? 0 : 1 + static_cast<std::int64_t>(h >> 8) % pages;
      for (std::int64_t t = 0; t < s.page_size; ++t) {
        full_to_swa_[page * s.page_size + t] = swa_page * s.page_size + t;
      }
    }
  }

  inputs_.req_pool_indices.assign(s.batch_size, 0);
  inputs_.seq_lens.assign(s.batch_size, 1);
  inputs_.out_cache_loc.assign(std::int64_t{s.batch_size} * s.query_len, 0);
  inputs_.draft_cache_loc.assign(std::int64_t{s.batch_size} * s.draft_passes * s.topk, 0);
  if (s.topk > 1) {
    inputs_.tree_cache_loc.assign(std::int64_t{s.batch_size} * s.topk * s.draft_steps, 0);
  }
  inputs_.accept_lens.assign(s.batch_size, s.query_len);
  inputs_.writes.reserve(max_writes());
  inputs_.resets.reserve(s.live_batch);
  pool_row_.assign(s.live_batch, 0);
  written_.assign(s.live_batch, 0);
  for (std::int32_t row = 1; row < s.pool_rows; ++row) free_rows_.push_back(row);
  // The first batch takes its rows in advance(), as joining requests do.
}

std::int64_t ServingState::max_writes() const {
  // New tokens; and of a request that leaves and the one that joins, a slot each.
  return static_cast<std::int64_t>(shape_.live_batch) * (reach(shape_) + 2);
}

void ServingState::write(std::int64_t flat, std::int32_t slot) {
  req_to_token_[flat] = slot;
  inputs_.writes.push_back({flat, slot, 0});
}

// As the next owner of a row would: whoever reads it after its request has left reads a wrong page.
void ServingState::give_up(std::int32_t pool_row) { write(pool_row * shape_.max_context, 0); }

// The prefix is in place but for what give_up() took.
void ServingState::take_over(std::int32_t pool_row) {
  const std::int64_t flat = pool_row * shape_.max_context;
  const std::int32_t slot = slot_of(pool_row, 0);
  if (req_to_token_[flat] == slot) return;  // its first request
  // A row may be given up and taken over in one step, and no two writes may name one place.
  for (TokenWrite& earlier : inputs_.writes) {
    if (earlier.flat != flat) continue;
    req_to_token_[flat] = earlier.slot = slot;
    return;
  }
  write(flat, slot);
}

std::int32_t ServingState::slot_of(std::int32_t pool_row, std::int64_t position) const {
  const std::int64_t page = position / shape_.page_size;
  const std::int64_t prefix_pages =
      (prefix_tokens_[pool_row] + shape_.page_size - 1) / shape_.page_size;
  std::int64_t index = first_page_[pool_row] + page;
  if (page >= prefix_pages) {
    const std::int64_t alternate = generation_[pool_row] & 1;
    index = first_page_[pool_row] + prefix_pages + 2 * (page - prefix_pages) + alternate;
  }
  return static_cast<std::int32_t>(std::int64_t{pages_[index]} * shape_.page_size +
                                   position % shape_.page_size);
}

std::int32_t ServingState::tree_slot(std::int32_t pool_row, std::int32_t branch,
                                     std::int64_t position) const {
  const std::int64_t set = inputs_.step % kTreeSets;
  const std::int64_t page =
      (set * shape_.topk + branch) * branch_pages(shape_) + position / shape_.page_size;
  const std::int64_t index = first_page_[pool_row] + own_pages(shape_, pool_row) + page;
  return static_cast<std::int32_t>(std::int64_t{pages_[index]} * shape_.page_size +
                                   position % shape_.page_size);
}

// Slots of a draft tree are the draft step's own and never in req_to_token.
void ServingState::locate_branches(std::int32_t row) {
  const std::int64_t begun = inputs_.seq_lens[row] % shape_.page_size;
  for (std::int32_t branch = 0; branch < shape_.topk; ++branch) {
    const std::int64_t at = std::int64_t{row} * shape_.topk + branch;
    for (std::int32_t i = 0; i < shape_.draft_steps; ++i) {
      const std::int32_t slot = tree_slot(pool_row_[row], branch, begun + i);
      inputs_.tree_cache_loc[at * shape_.draft_steps + i] = slot;
      if (i == shape_.draft_passes) continue;  // no pass writes it
      inputs_.draft_cache_loc[std::int64_t{i} * shape_.batch_size * shape_.topk + at] = slot;
    }
  }
}

void ServingState::join(std::int32_t row) {
  // The row that leaves takes the place of the one that joins: the last to be reused.
  const std::int32_t joined = free_rows_[free_head_];
  free_rows_[free_head_] = pool_row_[row];
  give_up(pool_row_[row]);
  free_head_ = (free_head_ + 1) % free_rows_.size();
  pool_row_[row] = joined;
  ++generation_[joined];
  take_over(joined);
  inputs_.seq_lens[row] = prefix_tokens_[joined];
  written_[row] = prefix_tokens_[joined];
  inputs_.resets.push_back({row, inputs_.seq_lens[row]});
}

void ServingState::grow(std::int32_t row) {
  const std::int32_t pool_row = pool_row_[row];
  const auto until = static_cast<std::int32_t>(
      std::min<std::int64_t>(inputs_.seq_lens[row] + reach(shape_), shape_.max_context));
  for (std::int32_t t = written_[row]; t < until; ++t) {
    write(pool_row * shape_.max_context + t, slot_of(pool_row, t));
  }
  written_[row] = std::max(written_[row], until);
}

void ServingState::locate(std::int32_t row) {
  const std::int64_t base = std::int64_t{pool_row_[row]} * shape_.max_context;
  const bool speculative = shape_.draft_passes > 0;
  const std::int64_t first = base + inputs_.seq_lens[row] - (speculative ? 0 : 1);
  for (std::int32_t j = 0; j < shape_.query_len; ++j) {
    inputs_.out_cache_loc[std::int64_t{row} * shape_.query_len + j] = req_to_token_[first + j];
  }
  if (shape_.topk > 1) {
    locate_branches(row);
  } else {
    for (std::int32_t pass = 0; pass < shape_.draft_passes; ++pass) {
      inputs_.draft_cache_loc[std::int64_t{pass} * shape_.batch_size + row] =
          req_to_token_[first + pass];
    }
  }
  inputs_.accept_lens[row] = accepted_tokens(shape_.seed, inputs_.step, row);
}

const StepInputs& ServingState::advance() {
  const std::int64_t step = ++inputs_.step;
  inputs_.writes.clear();
  inputs_.resets.clear();
  for (std::int32_t row = 0; row < shape_.live_batch; ++row) {
    if (step == 0) {
      // Rows 1..live_batch first, the spare ones stay in the ring.
      pool_row_[row] = row + 1;
      ++generation_[row + 1];
      inputs_.seq_lens[row] = written_[row] = prefix_tokens_[row + 1];
      inputs_.resets.push_back({row, inputs_.seq_lens[row]});
    } else {
      inputs_.seq_lens[row] += accepted_tokens(shape_.seed, step - 1, row);
      const bool full = inputs_.seq_lens[row] + reach(shape_) > shape_.max_context;
      const std::uint64_t h = mix64(shape_.seed * 77 + static_cast<std::uint64_t>(step) * 4099 +
                                    static_cast<std::uint64_t>(row));
      if (full || h % kMeanStepsPerRequest == 0) join(row);
    }
    grow(row);
    inputs_.req_pool_indices[row] = pool_row_[row];
    locate(row);
  }
  if (step == 0) free_rows_.erase(free_rows_.begin(), free_rows_.begin() + shape_.live_batch);
  return inputs_;
}

}  // namespace tpjitter
