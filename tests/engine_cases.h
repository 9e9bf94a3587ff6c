// The rebuilds that the engines' own tests cross, as cases: SGLang's of the fused kernel (batches,
// offsets, query modes, sliding windows at one page size) and FlashAttention-3's of set_metadata
// (every page size, int64 lengths, offsets up to 5). The page-table kernel's matrix is in its tests.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "tests/metadata_cases.h"

namespace tpjitter::test {

inline std::vector<MetadataCase> engine_cases() {
  std::vector<MetadataCase> cases;
  std::uint64_t seed = 0;
  for (const std::int32_t batch : {1, 3, 8, 17}) {
    for (const std::int32_t offset : {0, 1, 4}) {
      for (const kernels::QueryMode q_mode :
           {kernels::QueryMode::kPreset, kernels::QueryMode::kCumsum,
            kernels::QueryMode::kStrided}) {
        for (const bool swa : {false, true}) {
          CaseSizes sizes = {.batch_size = batch, .page_size = 128, .max_seq_pages = 16};
          sizes.seqlen_offset = offset;
          sizes.q_mode = q_mode;
          sizes.swa = swa;
          sizes.pool_rows = 64;
          cases.push_back(make_random_case(sizes, ++seed));
        }
      }
    }
  }
  for (std::int32_t page = 1; page <= 128; page *= 2) {
    for (const std::int32_t batch : {1, 32, 64}) {
      for (const std::int32_t offset : {0, 1, 5}) {
        CaseSizes sizes = {.batch_size = batch, .page_size = page, .max_seq_pages = 1024 / page};
        sizes.seqlen_offset = offset;
        cases.push_back(with_types(make_random_case(sizes, ++seed), kernels::IntType::kInt64,
                                   kernels::IntType::kInt64, kernels::IntType::kInt32));
      }
    }
  }
  return cases;
}

}  // namespace tpjitter::test
