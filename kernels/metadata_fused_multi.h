// The decode-metadata rebuilds of several phases of a step in one launch: what the fused kernel does
// for each, side by side. Launchers return a cudaError_t; capturable.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/decode_metadata.h"
#include "kernels/metadata_fused.h"

namespace tpjitter::kernels {

// Seven draft passes and target-verify.
inline constexpr int kMaxFusedPhases = 8;

struct FusedMultiParams {
  FusedMetadataParams phases[kMaxFusedPhases];
};

// Made ready once and repeated while arguments stay.
struct FusedMultiLaunch {
  const void* kernel = nullptr;  // null: nothing to launch
  FusedMultiParams params;
  std::uint32_t grid_x = 0;
  std::uint32_t grid_y = 0;
  std::uint32_t phases = 0;
};

// Outputs of the rebuilds must not overlap; a batch of 0 rows writes nothing. cudaErrorInvalidValue
// where one of them is invalid alone, for more than kMaxFusedPhases, and where page_columns differ.
int prepare_fused_multi(std::span<const DecodeMetadataArgs> rebuilds, FusedMultiLaunch* launch);
int launch_fused_multi(const FusedMultiLaunch& launch, CUstream_st* stream);

}  // namespace tpjitter::kernels
