// The scheduler's view of a decode batch: requests with their pool rows, lengths and KV slots.
// It makes each step's inputs change the way a serving engine's do: every row grows by its accepted
// tokens, requests leave and join (a row of the batch moves to another pool row and length), new
// tokens get new slots. All of it follows from the seed, so every rank, the device and the checker
// agree without talking.
#pragma once

#include <cstdint>
#include <vector>

#include "harness/contract/scenario.h"

namespace tpjitter {

// Sizes that follow from a case. Elements unless said.
struct ServingShape {
  std::int32_t live_batch = 0;      // requests in the batch
  std::int32_t batch_size = 0;      // captured bucket, >= live_batch; the rest are padded rows
  std::int32_t max_batch = 0;       // largest captured bucket: length of per-token buffers
  std::int32_t page_size = 0;       // tokens
  std::int32_t max_seq_pages = 0;   // static page-table width
  std::int64_t max_context = 0;     // req_to_token row stride, tokens
  std::int32_t query_len = 1;       // tokens a row in target-verify and draft-extend
  std::int32_t draft_passes = 0;    // speculative mode; 0: decode
  std::int32_t topk = 1;            // branches of a request's draft tree
  std::int32_t draft_steps = 0;     // slots of a branch; 0: decode
  std::int32_t pool_rows = 0;       // rows of req_to_token; row 0 is reserved for padding
  std::int64_t num_slots = 0;       // KV slots, page 0 reserved for padding
  std::int32_t context_tokens = 0;  // longest prefix a request joins with
  bool needs_mapping = false;       // a phase has sliding-window attention
  std::uint64_t seed = 0;

  static ServingShape of(const CaseConfig& config);
  // Of target-verify's mask at the longest lengths: each draft token sees all before it.
  std::int64_t custom_mask_bytes() const {
    return max_batch * (max_context + query_len) * query_len;
  }
};

// A new token, or the first slot of a row that changes hands: req_to_token[flat] = slot.
struct TokenWrite {
  std::int64_t flat = 0;  // pool_row * max_context + position
  std::int32_t slot = 0;
  std::int32_t reserved = 0;
};

// A row whose request was replaced: the device takes its length from here.
struct LengthReset {
  std::int32_t row = 0;      // batch row
  std::int32_t seq_len = 0;  // tokens
};

// Inputs of one step, valid until the next advance(). No allocation after construction.
struct StepInputs {
  std::int64_t step = -1;
  std::vector<std::int64_t> req_pool_indices;  // [batch_size], padded rows 0
  std::vector<std::int32_t> seq_lens;          // [batch_size], padded rows 1; includes this token
  // Slots that this step writes; padded rows 0. Decode: [batch_size], of token seq_lens - 1.
  // Speculative: [batch_size, query_len], of the draft tokens seq_lens, seq_lens + 1, ...
  std::vector<std::int64_t> out_cache_loc;
  // [draft_passes, batch_size, topk], of draft token `pass`; in a tree of the branch's.
  std::vector<std::int64_t> draft_cache_loc;
  // The same slots as the engine's draft step allocates them, [batch_size, topk, draft_steps], with a
  // last one that no pass writes. Trees only.
  std::vector<std::int64_t> tree_cache_loc;
  std::vector<std::int32_t> accept_lens;  // [batch_size] tokens that this step accepts; padded
                                          // rows query_len; what draft-extend (cumsum) reads
  std::vector<TokenWrite> writes;         // see max_writes()
  std::vector<LengthReset> resets;        // capacity live_batch; all rows in step 0
};

class ServingState {
 public:
  explicit ServingState(const ServingShape& shape);

  // Inputs of the next step (0, then 1, ...): applies the accept of the step before.
  const StepInputs& advance();

  const ServingShape& shape() const { return shape_; }
  // Host mirror of req_to_token after the last advance(), [pool_rows, max_context].
  const std::vector<std::int32_t>& req_to_token() const { return req_to_token_; }
  // Before the first advance() it holds every prefix: what the device is initialised with.
  // Full pool to SWA pool, [num_slots + page_size + 1], page granular, some pages out of the window
  // (-1), last element -1.
  const std::vector<std::int64_t>& full_to_swa() const { return full_to_swa_; }
  // Largest number of token writes that one step can make.
  std::int64_t max_writes() const;

 private:
  std::int32_t slot_of(std::int32_t pool_row, std::int64_t position) const;
  std::int32_t tree_slot(std::int32_t pool_row, std::int32_t branch, std::int64_t position) const;
  void locate_branches(std::int32_t row);
  void write(std::int64_t flat, std::int32_t slot);
  void give_up(std::int32_t pool_row);
  void take_over(std::int32_t pool_row);
  void join(std::int32_t row);
  void grow(std::int32_t row);
  void locate(std::int32_t row);

  ServingShape shape_;
  StepInputs inputs_;
  std::vector<std::int32_t> req_to_token_;
  std::vector<std::int64_t> full_to_swa_;
  std::vector<std::int32_t> pages_;          // shuffled page ids; see first_page_
  std::vector<std::int64_t> first_page_;     // per pool row, index into pages_; its branches' last
  std::vector<std::int32_t> prefix_tokens_;  // per pool row, length at which a request joins
  std::vector<std::int32_t> generation_;     // per pool row, requests it has carried
  std::vector<std::int32_t> free_rows_;      // pool rows without a request, a ring
  std::size_t free_head_ = 0;
  std::vector<std::int32_t> pool_row_;  // per batch row
  std::vector<std::int32_t> written_;   // per batch row, tokens that have a slot
};

}  // namespace tpjitter
