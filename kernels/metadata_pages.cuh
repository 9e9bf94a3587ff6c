// What the metadata kernels share on the device: loading an index of either width, and the sign
// rules of a page id (a slot truncates towards zero, an SWA slot below 0 is page -1).
#pragma once

#include <cstdint>

#include "kernels/decode_metadata.h"

namespace tpjitter::kernels {

__device__ __forceinline__ std::int64_t load_int(const void* __restrict__ data, IntType type,
                                                 std::int64_t i) {
  return type == IntType::kInt64 ? __ldg(static_cast<const long long*>(data) + i)
                                 : __ldg(static_cast<const int*>(data) + i);
}

// slot / page_size towards zero, without a division.
__device__ __forceinline__ std::int32_t page_of(std::int32_t slot, std::int32_t page_shift) {
  const std::int32_t rounding = (slot >> 31) & ((1 << page_shift) - 1);
  return (slot + rounding) >> page_shift;
}

__device__ __forceinline__ std::int32_t swa_page_of(std::int64_t swa_slot,
                                                    std::int32_t page_shift) {
  return swa_slot < 0 ? -1 : static_cast<std::int32_t>(swa_slot >> page_shift);
}

}  // namespace tpjitter::kernels
