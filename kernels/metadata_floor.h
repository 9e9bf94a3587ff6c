// A bare gather with the accesses of the metadata rebuild and nothing else: the floor that the
// fused kernel's GPU time is held against. Its outputs are the gathered values, not metadata.
#pragma once

#include "kernels/decode_metadata.h"

struct CUstream_st;  // *cudaStream_t

namespace tpjitter::kernels {

// Inputs must hold no negative slot. Returns a cudaError_t; batch_size 0 launches nothing.
int launch_metadata_floor(const DecodeMetadataArgs& args, CUstream_st* stream);

}  // namespace tpjitter::kernels
