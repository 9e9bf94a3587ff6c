// Cases of the kv_indptr / kv_indices fills for the tests on the host and on a GPU. Inputs and
// outputs are host vectors; outputs start poisoned and are longer than what a fill may write, so
// that a write too many is seen.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "kernels/metadata_kv_indices.h"
#include "tests/array_difference.h"

namespace tpjitter::test {

inline constexpr std::int32_t kKvPoison = -7;
inline constexpr std::size_t kKvTail = 5;  // entries behind each output that nothing may write

struct KvIndicesOutputs {
  std::vector<std::int32_t> kv_indptr, kv_indices, qo_indptr;  // qo_indptr empty without q_stride
  bool operator==(const KvIndicesOutputs&) const = default;
};

struct KvIndicesCase {
  std::string name;
  kernels::KvIndicesArgs scalars;  // sizes, strides and types; no pointers but capacity
  std::vector<std::int64_t> req_pool_indices, seq_lens, kv_start_idx;  // kv_start_idx may be empty
  std::vector<std::int32_t> req_to_token;
  std::vector<std::int64_t> full_to_swa;  // empty: slots are not translated
};

struct KvIndicesSizes {
  std::int32_t batch_size = 1;
  std::int32_t context = 100;  // columns of req_to_token that hold slots, tokens
  std::int32_t seqlen_offset = 0;
  std::int32_t sliding_window = kernels::kNoWindow;
  std::int32_t q_stride = 0;
  bool translated = false;
  bool starts = false;
  bool negative_slots = false;
  std::int32_t pool_rows = 0;  // 0: batch_size + 2
  std::int64_t capacity = -1;  // -1: exactly what is needed, so that one entry too many is seen
};

// Entries the rows need, from the lengths alone.
inline std::int64_t needed_entries(const KvIndicesCase& c) {
  std::int64_t entries = 0;
  for (const std::int64_t seq_len : c.seq_lens) {
    std::int64_t tokens = std::max<std::int64_t>(seq_len + c.scalars.seqlen_offset, 0);
    if (c.scalars.sliding_window >= 0) {
      tokens = std::min<std::int64_t>(tokens, c.scalars.sliding_window + 1);
    }
    entries += tokens;
  }
  return entries;
}

inline KvIndicesCase make_kv_case(const KvIndicesSizes& sizes, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](std::int64_t limit) {
    return static_cast<std::int64_t>(random() %
                                     static_cast<std::uint64_t>(std::max<std::int64_t>(limit, 1)));
  };
  KvIndicesCase c;
  c.name = "batch " + std::to_string(sizes.batch_size) + ", context " +
           std::to_string(sizes.context) + ", offset " + std::to_string(sizes.seqlen_offset) +
           ", window " + std::to_string(sizes.sliding_window) + ", seed " + std::to_string(seed);
  const std::int64_t pool_rows = sizes.pool_rows > 0 ? sizes.pool_rows : sizes.batch_size + 2;
  c.scalars.batch_size = sizes.batch_size;
  c.scalars.seqlen_offset = sizes.seqlen_offset;
  c.scalars.sliding_window = sizes.sliding_window;
  c.scalars.q_stride = sizes.q_stride;
  c.scalars.req_to_token_stride = sizes.context + 3;
  c.req_to_token.resize(static_cast<std::size_t>(pool_rows * c.scalars.req_to_token_stride));
  const std::int64_t slots = std::min<std::int64_t>(pool_rows * sizes.context, 1 << 20);
  for (std::int32_t& slot : c.req_to_token) slot = static_cast<std::int32_t>(below(slots));
  if (sizes.negative_slots) {
    for (std::size_t i = 0; i < c.req_to_token.size(); i += 7) c.req_to_token[i] = -1;
  }
  const std::int64_t longest = std::max<std::int64_t>(sizes.context - sizes.seqlen_offset, 0);
  for (std::int32_t row = 0; row < sizes.batch_size; ++row) {
    c.req_pool_indices.push_back(below(pool_rows));
    // A fifth of the rows is empty, a fifth as long as can be: boundaries of shares and tiles.
    const std::int64_t kind = below(5);
    c.seq_lens.push_back(kind == 0 ? 0 : kind == 1 ? longest : below(longest + 1));
    if (sizes.starts) c.kv_start_idx.push_back(below(longest - c.seq_lens.back() + 1));
  }
  if (sizes.translated) {
    c.full_to_swa.resize(static_cast<std::size_t>(slots + 1));
    for (std::int64_t& slot : c.full_to_swa) slot = below(slots + 4) - 4;
    c.full_to_swa.back() = -1;
  }
  c.scalars.wrapper.capacity = sizes.capacity >= 0 ? sizes.capacity : needed_entries(c);
  return c;
}

// Other values in arrays of the same sizes, as the next step brings them: lengths, requests and
// slots change, the capacity does not (rows past it are cut).
inline KvIndicesCase with_new_values(const KvIndicesCase& c, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  KvIndicesCase other = c;
  std::shuffle(other.req_pool_indices.begin(), other.req_pool_indices.end(), random);
  for (std::int64_t& seq_len : other.seq_lens) {
    seq_len -= static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(seq_len / 2 + 1));
  }
  std::shuffle(other.seq_lens.begin(), other.seq_lens.end(), random);
  std::shuffle(other.req_to_token.begin(), other.req_to_token.end(), random);
  if (!other.full_to_swa.empty()) {
    std::shuffle(other.full_to_swa.begin(), other.full_to_swa.end() - 1, random);
  }
  // A start must leave its row inside the request.
  for (std::int64_t& start : other.kv_start_idx) start = 0;
  return other;
}

inline KvIndicesOutputs poisoned_outputs(const KvIndicesCase& c) {
  const auto rows = static_cast<std::size_t>(c.scalars.batch_size);
  KvIndicesOutputs outputs;
  outputs.kv_indptr.assign(rows + 1 + kKvTail, kKvPoison);
  outputs.kv_indptr[0] = 0;
  outputs.kv_indices.assign(static_cast<std::size_t>(c.scalars.wrapper.capacity) + kKvTail,
                            kKvPoison);
  if (c.scalars.q_stride > 0) outputs.qo_indptr.assign(rows + 1 + kKvTail, kKvPoison);
  return outputs;
}

// The arguments over the case's and the outputs' own memory; indices and lengths are int64.
inline kernels::KvIndicesArgs bind(const KvIndicesCase& c, KvIndicesOutputs& outputs) {
  kernels::KvIndicesArgs args = c.scalars;
  args.req_pool_indices = c.req_pool_indices.data();
  args.seq_lens = c.seq_lens.data();
  args.kv_start_idx = c.kv_start_idx.empty() ? nullptr : c.kv_start_idx.data();
  args.req_to_token = c.req_to_token.data();
  args.full_to_swa = c.full_to_swa.empty() ? nullptr : c.full_to_swa.data();
  args.wrapper.kv_indptr = outputs.kv_indptr.data();
  args.wrapper.kv_indices = outputs.kv_indices.data();
  args.wrapper.qo_indptr = outputs.qo_indptr.empty() ? nullptr : outputs.qo_indptr.data();
  return args;
}

// Written apart from the reference: one list a request, cut and joined at the end.
inline KvIndicesOutputs joined_lists(const KvIndicesCase& c) {
  std::vector<std::int32_t> joined;
  KvIndicesOutputs outputs = poisoned_outputs(c);
  const auto& s = c.scalars;
  for (std::size_t row = 0; row < c.seq_lens.size(); ++row) {
    const auto pool_begin =
        c.req_to_token.begin() +
        static_cast<std::ptrdiff_t>(c.req_pool_indices[row] * s.req_to_token_stride);
    const auto tokens = static_cast<std::ptrdiff_t>(c.seq_lens[row] + s.seqlen_offset);
    const auto first =
        static_cast<std::ptrdiff_t>(c.kv_start_idx.empty() ? 0 : c.kv_start_idx[row]);
    std::vector<std::int32_t> list(pool_begin + first, pool_begin + first + tokens);
    const auto wanted = static_cast<std::size_t>(s.sliding_window) + 1;
    if (s.sliding_window >= 0 && list.size() > wanted) {
      list.erase(list.begin(), list.end() - static_cast<std::ptrdiff_t>(wanted));
    }
    joined.insert(joined.end(), list.begin(), list.end());
    outputs.kv_indptr[row + 1] = static_cast<std::int32_t>(joined.size());
    if (s.q_stride == 0) continue;
    outputs.qo_indptr[0] = 0;
    outputs.qo_indptr[row + 1] = outputs.qo_indptr[row] + s.q_stride;
  }
  if (!c.full_to_swa.empty()) {
    for (std::int32_t& slot : joined) {
      slot =
          slot < 0 ? -1 : static_cast<std::int32_t>(c.full_to_swa[static_cast<std::size_t>(slot)]);
    }
  }
  joined.resize(std::min(joined.size(), static_cast<std::size_t>(s.wrapper.capacity)));
  std::copy(joined.begin(), joined.end(), outputs.kv_indices.begin());
  return outputs;
}

// Batches around a tile of 1024 rows, windows around a length, every fill of the header's table.
inline std::vector<KvIndicesCase> random_kv_cases() {
  std::vector<KvIndicesCase> cases;
  std::uint64_t seed = 0;
  for (const std::int32_t batch : {1, 2, 7, 33, 256, 1023, 1024, 1025, 3000}) {
    const std::int32_t context = batch > 300 ? 40 : 700;
    for (const std::int32_t window : {kernels::kNoWindow, 0, 1, 15, 127, 4096}) {
      for (const bool translated : {false, true}) {
        KvIndicesSizes sizes;
        sizes.batch_size = batch;
        sizes.context = context;
        sizes.sliding_window = window;
        sizes.translated = translated;
        sizes.negative_slots = seed % 3 == 0;
        sizes.pool_rows = batch > 300 ? 50 : 0;
        cases.push_back(make_kv_case(sizes, ++seed));
        sizes.seqlen_offset = 4;  // target-verify
        sizes.q_stride = 4;
        cases.push_back(make_kv_case(sizes, ++seed));
        sizes.seqlen_offset = 0;  // draft-extend
        sizes.q_stride = 5;
        sizes.starts = window == kernels::kNoWindow;
        cases.push_back(make_kv_case(sizes, ++seed));
      }
    }
  }
  return cases;
}

// The phase whose fill this is, by its offset and query stride.
inline kernels::DecodePhase phase_of(const KvIndicesCase& c) {
  if (c.scalars.q_stride == 0) return kernels::DecodePhase::kNormalDecode;
  return c.scalars.seqlen_offset > 0 ? kernels::DecodePhase::kTargetVerify
                                     : kernels::DecodePhase::kDraftExtendStrided;
}

// Empty if equal, else the first differing output and index with both values.
inline std::string first_difference(const KvIndicesOutputs& actual,
                                    const KvIndicesOutputs& expected) {
  for (const std::string& text :
       {array_difference("kv_indptr", actual.kv_indptr, expected.kv_indptr),
        array_difference("kv_indices", actual.kv_indices, expected.kv_indices),
        array_difference("qo_indptr", actual.qo_indptr, expected.qo_indptr)}) {
    if (!text.empty()) return text;
  }
  return {};
}

}  // namespace tpjitter::test
