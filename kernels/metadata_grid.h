// How the page-table rows of one rebuild are split over blocks, for the fused kernel and for the
// bare gather it is compared with. Plain host arithmetic.
#pragma once

#include <cstdint>

#include "kernels/decode_metadata.h"

namespace tpjitter::kernels {

inline constexpr int kMetadataThreads = 256;

// Grid: x = extra columns (prefix sums, swa_out_cache_loc), then one column a request; y = parts of
// a row. In the extra columns, work unit x * grid_y + y is the prefix sums (unit 0) or 256 entries
// of swa_out_cache_loc.
struct MetadataGrid {
  std::int32_t pages_per_thread = 1;  // 1, 2 or 4: loads in flight per thread
  std::int32_t extra_columns = 1;
  std::uint32_t x = 1;
  std::uint32_t y = 1;
};

inline MetadataGrid metadata_grid(const DecodeMetadataArgs& args) {
  // Few pages: one per thread, so that the gather spreads over the most multiprocessors. Many: up
  // to four per thread, so that all blocks are resident at once (1056 of 256 threads on an H200).
  constexpr std::int64_t kResidentBlocks = 1056;
  const auto parts = [&](std::int64_t pages_per_thread) {
    const std::int64_t pages = kMetadataThreads * pages_per_thread;
    const std::int64_t needed = (args.max_seq_pages + pages - 1) / pages;
    return needed > 0 ? needed : 1;
  };
  MetadataGrid grid;
  while (grid.pages_per_thread < 4 &&
         parts(grid.pages_per_thread) * args.batch_size > kResidentBlocks) {
    grid.pages_per_thread *= 2;
  }
  const std::int64_t y = parts(grid.pages_per_thread);
  const std::int64_t swa_out_units =
      args.swa_out_cache_loc == nullptr
          ? 0
          : (args.swa_out_len + kMetadataThreads - 1) / kMetadataThreads;
  grid.extra_columns = static_cast<std::int32_t>((1 + swa_out_units + y - 1) / y);
  grid.x = static_cast<std::uint32_t>(grid.extra_columns + args.batch_size);
  grid.y = static_cast<std::uint32_t>(y);
  return grid;
}

}  // namespace tpjitter::kernels
