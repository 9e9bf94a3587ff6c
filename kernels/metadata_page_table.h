// The rebuild without a host sync: a few tensor operations for the lengths, then one kernel that
// builds the page table from the lengths on the device. Its grid covers a static bound on the pages
// of a row, and every row is guarded by its own length, so the host needs no maximum. Between the
// op-by-op form (metadata_aten.h) and the fused kernel (metadata_fused.h).
#pragma once

#include <cstdint>

#include "kernels/decode_metadata.h"
#include "kernels/metadata_aten.h"

struct CUstream_st;  // *cudaStream_t

namespace tpjitter::kernels {

// What the kernel reads and writes. Only the live columns of a row are written,
// min(ceil(cache_seqlens / page_size), max_seq_pages) of them; the rest keep their value.
// Negative slots are guarded as in the fused kernel: page 0 for slots above -page_size (truncation
// towards zero), SWA page -1. The engine's kernel has no guard and reads the mapping out of bounds.
struct PageTableArgs {
  const void* req_pool_indices = nullptr;       // [batch_size] rows of req_to_token
  const std::int32_t* cache_seqlens = nullptr;  // [batch_size] tokens, offset included
  const std::int32_t* req_to_token = nullptr;   // [pool, req_to_token_stride] slot of each token
  const std::int64_t* full_to_swa = nullptr;    // null: no SWA
  std::int32_t* page_table = nullptr;           // [batch_size, page_table_stride]
  std::int32_t* swa_page_table = nullptr;       // [batch_size, swa_page_table_stride]; null: no SWA
  std::int64_t req_to_token_stride = 0;         // elements, as the other strides
  std::int64_t page_table_stride = 0;
  std::int64_t swa_page_table_stride = 0;
  std::int32_t batch_size = 0;     // 0: nothing is launched
  std::int32_t max_seq_pages = 0;  // the static bound, pages a row
  std::int32_t page_size = 1;      // tokens, a power of two
  IntType req_pool_indices_type = IntType::kInt64;
};

PageTableArgs page_table_args(const DecodeMetadataArgs& metadata);

// A power-of-two page size, arrays present, and a mapping where there is an SWA table.
bool is_valid(const PageTableArgs& args);

// The obvious version, on host memory. Throws std::invalid_argument for arguments that are not
// valid.
void reference_page_table(const PageTableArgs& args);

// Returns a cudaError_t: cudaErrorInvalidValue for arguments that are not valid. Capturable. A row
// longer than the static bound cannot be seen from the host: it is cut to max_seq_pages columns,
// never written past; check_static_bound refuses it where lengths are known.
int launch_page_table(const PageTableArgs& args, CUstream_st* stream);

// Throws std::invalid_argument that names row, length and bound if a row of seq_lens + seqlen_offset
// tokens needs more pages than the static bound. `seq_lens`: host memory, [batch_size].
void check_static_bound(const DecodeMetadataArgs& metadata, const std::int64_t* seq_lens);

struct PageTableMetadataArgs {
  DecodeMetadataArgs metadata;       // page_columns is not used: always live
  std::int64_t full_to_swa_len = 0;  // entries, with the -1 at the end; SWA only
  // The persistent buffer, zeroed to its end, whatever swa_out_len says; 0: swa_out_len.
  std::int64_t swa_out_buffer_len = 0;
  // Host, [batch_size] tokens before seqlen_offset: checked against the static bound. Null in a
  // timed rebuild, where only the device knows the lengths.
  const std::int64_t* known_seq_lens = nullptr;
};

// Returns ops.status(). Every output equals reference_decode_metadata's with PageColumns::kLive, but
// that a null out_cache_loc leaves swa_out_cache_loc as it is. No item(), no host maximum.
// Throws std::invalid_argument for a phase that does not fit q_mode or seqlen_offset, for more
// out_cache_loc entries than swa_out_cache_loc has room for, and as check_static_bound.
// With batch_size 0 nothing is done.
int rebuild_metadata_page_table(TensorOps& ops, DecodePhase phase,
                                const PageTableMetadataArgs& args);

}  // namespace tpjitter::kernels
