// A decode forward in miniature, the body of every captured graph: per layer an attention stand-in
// that reads the metadata, an all-reduce, a load of a given duration, an all-reduce; at the end an
// accept kernel. Everything live is folded into an order-free 64-bit checksum, so that one stale
// page id, length or reduced value shows. This header holds what host and device share: the fold,
// the accept counts and the all-reduce values.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/attention_tables.h"
#include "kernels/decode_metadata.h"
#include "kernels/spin.h"
#include "kernels/stamps.h"

namespace tpjitter::kernels {

// splitmix64's finaliser (Steele, Lea, Flood 2014): every input bit reaches every output bit.
TPJITTER_HOST_DEVICE inline std::uint64_t mix64(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// What is folded, so that equal values of different tables do not cancel.
enum class FoldTag : std::uint32_t {
  kCacheSeqlens = 1,
  kCuSeqlensK = 2,
  kCuSeqlensQ = 3,
  kPageTable = 4,
  kOutCacheLoc = 5,
  kSwaPageTable = 6,
  kSwaOutCacheLoc = 7,
  kKvIndptr = 8,
  kKvIndices = 9,
  kQoIndptr = 10,
  kKvLastPageLen = 11,
  kSwaKvIndptr = 12,
  kSwaKvIndices = 13,
  kSwaQoIndptr = 14,
  kSwaKvLastPageLen = 15,
  kStateIndices = 32,
  kQueryStartLoc = 33,
};
// Tags 1 to 7 of a second set of paged tables (the second half of a batch, a tree's expand object)
// are these much higher: 17 to 23.
inline constexpr std::uint32_t kSecondSet = 16;

// Contribution of one live value; the sum over all of them, modulo 2^64, is a layer's fold.
// position: row for lengths and locations, row * max_seq_pages + column for page tables.
TPJITTER_HOST_DEVICE inline std::uint64_t fold(FoldTag tag, std::uint64_t position,
                                               std::int64_t value) {
  return mix64(static_cast<std::uint64_t>(value) + position * 0x9e3779b97f4a7c15ULL +
               static_cast<std::uint64_t>(tag) * 0xd1b54a32d192ed03ULL);
}

// Weight of layer l's fold, and of all-reduce ordinal n's sum. Odd, so nothing is lost.
TPJITTER_HOST_DEVICE inline std::uint64_t fold_weight(std::uint64_t n) { return 2 * n + 1; }

// Tokens that step `step` accepts for batch row `row`: 1 to 4. Host and device compute the same.
inline constexpr int kMaxAccept = 4;
TPJITTER_HOST_DEVICE inline std::int32_t accepted_tokens(std::uint64_t seed, std::int64_t step,
                                                         std::int32_t row) {
  return 1 + static_cast<std::int32_t>(
                 mix64(seed + static_cast<std::uint64_t>(step) * 0x9e3779b97f4a7c15ULL +
                       static_cast<std::uint64_t>(row) * 0xd1b54a32d192ed03ULL) &
                 3);
}

// Element i of rank's input to all-reduce `ordinal` of step `step`: a small integer, so that sums
// over up to 16 ranks are exact in bf16 (integers to 256 are).
TPJITTER_HOST_DEVICE inline std::int32_t all_reduce_value(std::int32_t rank, std::int64_t step,
                                                          std::int32_t ordinal, std::int64_t i) {
  return static_cast<std::int32_t>((3 * rank + step + 5 * ordinal + (i & 3)) & 7);
}

struct DecodeBodyShape {
  std::int32_t layers = 1;
  std::int32_t world_size = 1;
  std::int64_t all_reduce_elements = 0;  // tokens * hidden_size of one all-reduce, bf16
  bool swa = false;
};
inline constexpr int kAllReducesPerLayer = 2;

// Fold of the tables that a full-attention (sliding = false) or sliding layer reads, host memory.
// Reads page-table columns below ceil(cache_seqlens / page_size) only, out_cache_loc's live prefix,
// and all of swa_out_cache_loc's view.
std::uint64_t reference_metadata_fold(const DecodeMetadataArgs& metadata, bool sliding);
// Fold of what a layer of that kind reads, host memory: of each table its live values, which are
//   page tables   columns below ceil(cache_seqlens / page_size); lengths and prefix sums of all rows
//   index lists   kv_indptr, and kv_indices below the last prefix sum and the capacity
//   linear        all of state_indices and query_start_loc, no locations
std::uint64_t reference_tables_fold(const DecodeMetadataArgs& metadata,
                                    const AttentionTables& tables, LayerKind layer);

// One forward in a graph: its layers read this metadata and, but for kPaged, these tables. Layers
// and all-reduce ordinals count on over the forwards of a graph.
struct GraphForward {
  DecodeMetadataArgs metadata;
  std::int32_t layers = 1;
  bool swa = false;
  AttentionTables tables = {};
};

// Checksum that a replay of a graph must give; shape.layers and shape.swa are not used.
std::uint64_t reference_graph_checksum(std::span<const GraphForward> forwards,
                                       const DecodeBodyShape& shape, std::int64_t step);
// The same of a graph with one forward.
std::uint64_t reference_step_checksum(const DecodeMetadataArgs& metadata,
                                      const DecodeBodyShape& shape, std::int64_t step);

// What the accept kernel writes to mapped memory, `step` last.
struct alignas(64) AcceptResult {
  std::int64_t step;             // step + 1 of the result; 0: none yet
  std::uint64_t checksum;        // of the step's last graph
  std::int64_t accepted_tokens;  // summed over the live rows
  std::uint32_t abort;           // 1: a device wait passed its deadline or a peer did
  std::uint32_t reserved;
};

// Below: the GPU's side. Every kernel returns at once when the communicator is aborted, but for the
// accept kernel, which then tells the host.

// Device memory; zero before the first step. The accept kernel moves it on.
struct DecodeBodyState {
  std::int64_t step;        // of the batch; what all-reduce values and accept counts come from
  std::int64_t replay;      // graph replays since the ring was made
  std::int64_t ring_entry;  // replay % capacity: StampRing::entry points here
  std::uint64_t checksum;   // of the replay so far
};

// What full-attention layers need besides the metadata, as a multi-CTA attention kernel with fp8 KV
// does. The counters are self-resetting: each block counts its arrival at its row, and the last one
// sets the row's counter back to 0, so that zeroing them once is enough. A counter that is not 0
// between launches stays wrong for good: nobody is the last block any more.
struct AttentionScratch {
  std::int32_t* counters = nullptr;  // [counter_rows], device; null: none are kept
  std::int64_t counter_rows = 0;     // at least the forward's num_out_tokens
  const float* kv_scales[2] = {};    // device scalars of k and v, 1.0; null: none are read
};

// Rows that a forward of `max_requests` running requests and a padding row needs at most.
TPJITTER_HOST_DEVICE inline std::int64_t attention_counter_rows(std::int64_t max_requests,
                                                                std::int64_t draft_tokens) {
  return (max_requests + 1) * (draft_tokens > 1 ? draft_tokens : 1);
}

// Of one forward in a graph; only metadata, shape.swa, stamp_begin and the tables of DecodeBodyArgs
// differ between forwards. What every kernel of the body takes: tables travel only with the
// attention that reads them, so that a paged forward's launches carry no more than this.
struct DecodeBodyCommon {
  DecodeMetadataArgs metadata;  // the rebuilt tables; cu_seqlens_q set, whoever filled it
  DecodeBodyShape shape;        // layers of the whole graph; all_reduce_elements a multiple of 8
  DecodeBodyState* state = nullptr;  // device
  std::int32_t* kv = nullptr;        // [kv_slots] written through out_cache_loc
  std::int32_t* swa_kv = nullptr;    // [swa_kv_slots] through swa_out_cache_loc; null: no SWA
  std::int64_t kv_slots = 0;
  std::int64_t swa_kv_slots = 0;
  const void* reduced = nullptr;  // bf16, output of the previous all-reduce
  void* inputs[2] = {};           // bf16, all-reduce inputs of even and odd ordinals
  std::int64_t layer_ns = 0;      // of a load kernel
  std::int32_t rank = 0;
  bool stamp_begin = false;  // layer 0's attention is the graph's first node
  bool pdl = false;          // see launch_attention
  AttentionScratch scratch;
  StampRing ring;
  SpinGuard guard;
};
struct DecodeBodyArgs : DecodeBodyCommon {
  AttentionTables tables;  // kPaged: metadata's are read
};

struct AcceptArgs {
  DecodeBodyState* state = nullptr;  // device
  std::int32_t* seq_lens = nullptr;  // [live_rows], device
  AcceptResult* result = nullptr;    // device or mapped memory
  std::uint64_t seed = 0;
  std::int32_t live_rows = 0;
  bool end_of_step = true;  // false: the step has a graph after this one; only the replay ends
  bool pdl = false;
  StampRing ring;
  SpinGuard guard;
};

// In the order of a graph: per layer attention, all-reduce 2l, load, all-reduce 2l + 1 (and empty
// nodes); then head and accept. Layers count on over the forwards of a graph. Each folds the output
// of the all-reduce before it; attention and load make the input of the one after. Return
// cudaError_t; capturable. launch_attention returns cudaErrorInvalidValue where counter_rows are
// too few or the kind of the tables is not one of the enumeration.
// pdl: launched with programmatic stream serialization. The kernel may start before the one ahead
// of it in the stream has ended, and waits for its end before it touches memory or takes a stamp.
int launch_attention(const DecodeBodyArgs& args, int layer, CUstream_st* stream);
int launch_load(const DecodeBodyCommon& args, int layer, CUstream_st* stream);
int launch_empty_node(CUstream_st* stream, bool pdl = false);
// Sets `count` 32-bit words: what a fill baked into a graph replays. Never with pdl, as engines'.
int launch_fill(void* words, std::uint32_t value, std::int64_t count, CUstream_st* stream);
int launch_head(const DecodeBodyCommon& args, CUstream_st* stream);
int launch_accept(const AcceptArgs& args, CUstream_st* stream);

}  // namespace tpjitter::kernels
