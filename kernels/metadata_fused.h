// The whole decode-metadata rebuild in one kernel launch. Semantics: reference_decode_metadata, in
// every word that page_columns promises. Launchers return a cudaError_t; capturable.
#pragma once

#include <cstdint>

#include "kernels/decode_metadata.h"
#include "kernels/metadata_grid.h"

struct CUstream_st;  // *cudaStream_t

namespace tpjitter::kernels {

struct FusedMetadataParams {
  DecodeMetadataArgs args;
  std::int32_t page_shift = 0;  // log2(page_size)
  std::int32_t extra_columns = 1;
};

// A launch made ready once and repeated while arguments stay: nothing is left to do per step but
// the launch itself.
struct FusedMetadataLaunch {
  const void* kernel = nullptr;  // null: nothing to launch
  FusedMetadataParams params;
  std::uint32_t grid_x = 0;
  std::uint32_t grid_y = 0;
};

// cudaErrorInvalidValue for a page size that is no power of two or for an array that is missing.
int prepare_fused_metadata(const DecodeMetadataArgs& args, FusedMetadataLaunch* launch);
int launch_fused_metadata(const FusedMetadataLaunch& launch, CUstream_st* stream);

// Both in one. batch_size 0 launches nothing.
int launch_fused_metadata(const DecodeMetadataArgs& args, CUstream_st* stream);

}  // namespace tpjitter::kernels
