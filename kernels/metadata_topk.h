// Metadata of tree drafting (topk > 1) for a backend that reads the cached prefix and the tree in
// two attention calls and merges them: two objects, `prefix` and `expand`.
//
//   draft step s    prefix: a row a request, all k branches query it; expand: a row a branch, over
//                   the s + 1 tokens that the branch has drafted
//   target-verify   prefix: a row a request; expand: a row a draft token, over the draft tokens
//                   that the tree's mask shows it, gathered in front
//
// Capture: here a runner cannot let capture run the replay fill, as it does for topk = 1, because
// the capture call has no out_cache_loc, and the dummy verify input has no positions and a mask
// sized for fill lengths only. It binds both objects of the batch size and returns; warm-ups then
// run over zeroed tables (slot 0), and the first replay fills them.
#pragma once

#include <cstdint>

#include "kernels/decode_metadata.h"

struct CUstream_st;  // *cudaStream_t

namespace tpjitter::kernels {

class TensorOps;

inline constexpr std::int32_t kMaxTopk = 8;
inline constexpr std::int32_t kMaxTreeTokens = 64;  // draft tokens of a request in target-verify

// One metadata object, in persistent buffers.
struct TopkTable {
  std::int32_t* cache_seqlens = nullptr;       // [rows] tokens
  std::int32_t* cu_seqlens_k = nullptr;        // [rows + 1]; entry 0 is preset to 0, never written
  const std::int32_t* cu_seqlens_q = nullptr;  // [rows + 1], preset, never written: see the rebuild
  std::int32_t* page_table = nullptr;          // [rows, page_table_stride] pages of page_size
  std::int64_t page_table_stride = 0;          // elements, >= width
  std::int32_t rows = 0;
  std::int32_t width = 0;      // columns, static
  std::int32_t page_size = 1;  // tokens, a power of two
};

// Draft step `step` of 0...num_steps - 1.
//   prefix   rows bs, cu_seqlens_q step topk. Cached tokens of whole pages: cache_seqlens =
//            seq_lens - seq_lens % page_size; live columns are written, the rest keep their value
//   expand   rows bs * topk, cu_seqlens_q step 1, width >= step + 1.
//            Page size 1: cache_seqlens (step + 1) and cu_seqlens_k are preset, never written;
//            columns 0...step = the branch's slots.
//            Larger pages: cache_seqlens = seq_lens % page_size + step + 1, since a branch's first
//            page holds a copy of the prefix's last, begun one; columns = its pages in order, each
//            once, and 0 up to width (stale pages stayed there in an earlier engine version).
// Branch rows past num_out_tokens / num_steps keep their page_table: the engine passes the live
// rows' slots, not the padded ones'.
struct TopkDraftArgs {
  const void* req_pool_indices = nullptr;       // [bs] rows of req_to_token
  const void* seq_lens = nullptr;               // [bs] cached tokens
  const std::int32_t* req_to_token = nullptr;   // [pool, req_to_token_stride] slot of each token
  const std::int64_t* out_cache_loc = nullptr;  // [bs, topk, num_steps] slots of all draft steps
  TopkTable prefix, expand;
  std::int64_t req_to_token_stride = 0;  // elements
  std::int64_t num_out_tokens = 0;       // entries of out_cache_loc, live rows only
  std::int32_t batch_size = 0;           // 0: nothing is written
  std::int32_t topk = 2;                 // 2 to kMaxTopk
  std::int32_t num_steps = 2;
  std::int32_t step = 0;
  IntType req_pool_indices_type = IntType::kInt64;
  IntType seq_lens_type = IntType::kInt64;
};

// Target-verify of a tree of q = draft_tokens a request.
//   prefix   rows bs, cu_seqlens_q step q, cache_seqlens = seq_lens
//   expand   rows bs * q, cu_seqlens_q step 1, width q, page size 1: cache_seqlens = draft tokens
//            that row i sees, cu_seqlens_k their sums; columns = slots req_to_token[r, seq_len + j],
//            the seen ones first, each group in the order of j. All q columns are written.
// custom_mask holds for each request q rows of seq_len + q bytes (0: hidden), one after the other;
// only the last q bytes of a row are read. Rows past num_positions (padding) take byte 0 of the
// whole mask for each of their bytes, as the engine's guard against reading past its end does.
struct TopkVerifyArgs {
  const void* req_pool_indices = nullptr;      // [bs]
  const void* seq_lens = nullptr;              // [bs] cached tokens, draft tokens not counted
  const std::int32_t* req_to_token = nullptr;  // [pool, req_to_token_stride]
  const std::uint8_t* custom_mask = nullptr;   // [mask_len]
  TopkTable prefix, expand;
  std::int64_t req_to_token_stride = 0;
  std::int64_t mask_len = 0;       // bytes; a byte past it reads as hidden
  std::int64_t num_positions = 0;  // live draft tokens, a multiple of draft_tokens
  std::int32_t batch_size = 0;     // 0: nothing is written
  std::int32_t draft_tokens = 2;   // q, 2 to kMaxTreeTokens
  IntType req_pool_indices_type = IntType::kInt64;
  IntType seq_lens_type = IntType::kInt64;
};

bool is_valid(const TopkDraftArgs& args);
bool is_valid(const TopkVerifyArgs& args);

// Entries of custom_mask that live rows of these lengths (host memory, [batch_size]) need.
std::int64_t tree_mask_length(const std::int64_t* seq_lens, std::int32_t batch_size,
                              std::int32_t draft_tokens);

// Throw std::invalid_argument that names row, needed and available where a row of known length does
// not fit its table or its row of req_to_token, or where custom_mask is too short.
// `seq_lens`: host memory, [batch_size].
void check_topk_draft(const TopkDraftArgs& args, const std::int64_t* seq_lens);
void check_topk_verify(const TopkVerifyArgs& args, const std::int64_t* seq_lens);

// Values of a table's presets, to host memory: cu_seqlens_q = i * query_step, cu_seqlens_k[0] = 0,
// and with draft_length > 0 (expand of a draft step with page size 1) cache_seqlens and
// cu_seqlens_k too. Arrays that are null are left out.
void preset_topk_table(std::int32_t rows, std::int32_t query_step, std::int32_t draft_length,
                       std::int32_t* cu_seqlens_q, std::int32_t* cache_seqlens,
                       std::int32_t* cu_seqlens_k);

// The obvious versions, on host memory. Throw std::invalid_argument for arguments that are not
// valid. A page id is slot / page_size towards zero; columns past a row of req_to_token read as -1.
void reference_topk_draft(const TopkDraftArgs& args);
void reference_topk_verify(const TopkVerifyArgs& args);

// Op by op, as SGLang's FlashAttention backend (the calls of each operation after PyTorch's source,
// not measured). `seq_lens_cpu`: the host mirror, [batch_size], whose maximum bounds the prefix's
// columns: [0, P) of every row are written. Null: the form that can be captured, all columns up to the
// static width. Division is floor: a negative slot gives another page than the reference. Return
// ops.status(); throw std::invalid_argument for arguments that are not valid or lengths past the
// prefix's width.
int rebuild_topk_draft_aten(TensorOps& ops, const TopkDraftArgs& args,
                            const std::int64_t* seq_lens_cpu, std::int64_t pool_rows);
int rebuild_topk_verify_aten(TensorOps& ops, const TopkVerifyArgs& args,
                             const std::int64_t* seq_lens_cpu, std::int64_t pool_rows);

// One launch each, both objects; no host sync, no host length: a row is cut at the static width.
// Return a cudaError_t: cudaErrorInvalidValue for arguments that are not valid. Capturable.
int launch_topk_draft(const TopkDraftArgs& args, CUstream_st* stream);
int launch_topk_verify(const TopkVerifyArgs& args, CUstream_st* stream);
// The expand object of a draft step alone: what the op-by-op path calls for pages larger than 1.
int launch_topk_draft_expand(const TopkDraftArgs& args, CUstream_st* stream);
void reference_topk_draft_expand(const TopkDraftArgs& args);

}  // namespace tpjitter::kernels
