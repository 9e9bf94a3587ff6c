// How the page-table rows of one rebuild are split over blocks, for the fused kernel and for the
// bare gather it is compared with. Plain host arithmetic.
#pragma once

#include <cstdint>
#include <span>

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

// Blocks of a row.
inline std::int64_t row_parts(const DecodeMetadataArgs& args, std::int64_t pages_per_thread) {
  const std::int64_t pages = kMetadataThreads * pages_per_thread;
  const std::int64_t needed = (args.max_seq_pages + pages - 1) / pages;
  return needed > 0 ? needed : 1;
}

// Of several rebuilds in one launch, each with a grid of its own. Few pages: one per thread, so that
// the gather spreads over the most multiprocessors. Many: up to four per thread, so that all blocks
// are resident at once (1056 of 256 threads on an H200).
inline std::int32_t metadata_pages_per_thread(std::span<const DecodeMetadataArgs> rebuilds) {
  constexpr std::int64_t kResidentBlocks = 1056;
  for (const std::int32_t pages : {1, 2}) {
    std::int64_t blocks = 0;
    for (const DecodeMetadataArgs& args : rebuilds)
      blocks += row_parts(args, pages) * args.batch_size;
    if (blocks <= kResidentBlocks) return pages;
  }
  return 4;
}

// For the prefix sums and swa_out_cache_loc, in a grid of `y` blocks a column.
inline std::int32_t metadata_extra_columns(const DecodeMetadataArgs& args, std::int64_t y) {
  const std::int64_t swa_out_units =
      args.swa_out_cache_loc == nullptr
          ? 0
          : (args.swa_out_len + kMetadataThreads - 1) / kMetadataThreads;
  return static_cast<std::int32_t>((1 + swa_out_units + y - 1) / y);
}

inline MetadataGrid metadata_grid(const DecodeMetadataArgs& args) {
  MetadataGrid grid;
  grid.pages_per_thread = metadata_pages_per_thread({&args, 1});
  const std::int64_t y = row_parts(args, grid.pages_per_thread);
  grid.extra_columns = metadata_extra_columns(args, y);
  grid.x = static_cast<std::uint32_t>(grid.extra_columns + args.batch_size);
  grid.y = static_cast<std::uint32_t>(y);
  return grid;
}

}  // namespace tpjitter::kernels
