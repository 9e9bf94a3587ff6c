// Metadata cases as the page-table path takes them, and what it writes of them.
#pragma once

#include <algorithm>

#include "tests/metadata_cases.h"

namespace tpjitter::test {

// Takes out what the path refuses; lengths past the static bound stay.
inline MetadataCase fit_for_page_table(MetadataCase c) {
  if (c.scalars.q_mode != kernels::QueryMode::kPreset) c.scalars.seqlen_offset = 0;
  c.scalars.num_out_tokens = std::min(c.scalars.num_out_tokens, c.scalars.swa_out_len);
  return c;
}

inline MetadataOutputs page_table_outputs(const MetadataCase& c) {
  MetadataOutputs outputs = reference_outputs(c, kernels::PageColumns::kLive);
  if (!c.has_out_cache_loc) outputs.swa_out_cache_loc = poisoned_outputs(c).swa_out_cache_loc;
  return outputs;
}

}  // namespace tpjitter::test
