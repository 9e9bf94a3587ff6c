// Cases of the decode-metadata rebuild for the tests of every path: the known answers under
// tests/golden/metadata and seeded random ones. Inputs and outputs are host vectors; outputs start
// poisoned, with row strides wider than the width, so that a write too many is seen.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/decode_metadata.h"
#include "kernels/metadata_aten.h"

namespace tpjitter::test {

inline constexpr std::int32_t kPoison = -7;
inline constexpr std::int64_t kSwaOutPoison = 123;

struct MetadataOutputs {
  std::vector<std::int32_t> cache_seqlens;
  std::vector<std::int32_t> cu_seqlens_k;
  std::vector<std::int32_t> cu_seqlens_q;    // empty with kPreset
  std::vector<std::int32_t> page_table;      // [batch_size, page_table_stride]
  std::vector<std::int32_t> swa_page_table;  // empty without SWA
  std::vector<std::int64_t> swa_out_cache_loc;
  bool operator==(const MetadataOutputs&) const = default;
};

struct MetadataCase {
  std::string name;
  kernels::DecodeMetadataArgs scalars;  // strides, sizes, modes and types; no pointers
  std::vector<std::byte> req_pool_indices, seq_lens, q_lens;  // of the types in `scalars`
  std::vector<std::int32_t> req_to_token;
  std::vector<std::int64_t> full_to_swa;    // empty: no SWA
  std::vector<std::int64_t> out_cache_loc;  // scalars.num_out_tokens entries and more
  bool has_out_cache_loc = false;
  std::vector<std::int64_t> seq_lens_cpu;
  std::vector<std::int64_t> strided_indices;
  std::int64_t pool_rows = 0;

  bool has_swa() const { return !full_to_swa.empty(); }
};

// Golden answers, without the stride padding.
struct GoldenCase {
  MetadataCase inputs;
  bool negative_slot = false;
  std::vector<std::int32_t> cache_seqlens, cu_seqlens_k, cu_seqlens_q, page_table, swa_page_table;
  std::vector<std::int64_t> swa_out_cache_loc;
};
std::vector<GoldenCase> load_golden_cases();

// Batches 0 to 1025, pages 1 to 256, offsets 0, 1, 4, the query modes, SWA, types, padded rows,
// lengths at page boundaries and past the width, negative slots. Same list on every call.
std::vector<MetadataCase> random_cases();
// A random case of the given sizes; context_tokens = max_seq_pages * page_size.
struct CaseSizes {
  std::int32_t batch_size = 1;
  std::int32_t page_size = 64;
  std::int32_t max_seq_pages = 8;
  std::int32_t seqlen_offset = 0;
  kernels::QueryMode q_mode = kernels::QueryMode::kPreset;
  bool swa = false;
  bool negative_slots = false;
  std::int64_t pool_rows = 0;  // 0: batch_size + 2
};
MetadataCase make_random_case(const CaseSizes& sizes, std::uint64_t seed);

// Other values in arrays of the same sizes and types, as the next step brings them.
MetadataCase with_new_values(MetadataCase c, std::uint64_t seed);
// The same values in other types.
MetadataCase with_types(MetadataCase c, kernels::IntType seq_lens, kernels::IntType indices,
                        kernels::IntType q_lens);

MetadataOutputs poisoned_outputs(const MetadataCase& c);
// The arguments over the case's and the outputs' own memory.
kernels::DecodeMetadataArgs bind(const MetadataCase& c, MetadataOutputs& outputs);
kernels::AtenMetadataArgs bind_aten(const MetadataCase& c, MetadataOutputs& outputs);

MetadataOutputs reference_outputs(const MetadataCase& c, kernels::PageColumns columns);
// What the aten path must give: floor division, columns below P only, an absent out_cache_loc
// leaves swa_out_cache_loc alone. Written apart from the reference and from the composition.
MetadataOutputs aten_outputs(const MetadataCase& c);

// Phases whose op-by-op form can compute this case (draft-extend adds no offset, and so on).
std::vector<kernels::DecodePhase> aten_phases(const MetadataCase& c);
// The same case with what the op-by-op form refuses taken out: lengths past the width,
// out_cache_loc longer than its view, an offset in draft-extend.
MetadataCase fit_for_aten(MetadataCase c);

// Empty if equal, else the first differing output and index with both values.
std::string first_difference(const MetadataOutputs& actual, const MetadataOutputs& expected);

}  // namespace tpjitter::test
