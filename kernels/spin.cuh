// Device side of spin.h: the GPU's clock, ordered flag accesses, the abort test, the expiry report.
#pragma once

#include <cstdint>

#include "kernels/spin.h"

namespace tpjitter::kernels {

// Spins between two looks at the abort word and the clock: reading the clock in every one costs
// about 1 % of an all-reduce (SGLang's SpinDeadline).
inline constexpr std::uint32_t kSpinsPerCheck = 4096;

// ns; steps 32 ns on Hopper.
__device__ __forceinline__ std::int64_t globaltimer_ns() {
  std::int64_t t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)::"memory");
  return t;
}

__device__ __forceinline__ std::uint32_t load_acquire_system(const std::uint32_t* address) {
  std::uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}

// With the relaxed store after it, a release; apart from it, so that a stamp can stand between.
// __threadfence_system() is the sequentially consistent fence, which costs more.
__device__ __forceinline__ void fence_release_system() {
  asm volatile("fence.acq_rel.sys;" ::: "memory");
}

__device__ __forceinline__ std::uint32_t load_relaxed_system(const std::uint32_t* address) {
  std::uint32_t value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}

__device__ __forceinline__ void store_relaxed_system(std::uint32_t* address, std::uint32_t value) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

__device__ __forceinline__ bool aborted(const SpinGuard& guard) {
  return guard.abort != nullptr && load_relaxed_system(guard.abort) != 0;
}

// The test on entry of a kernel with barriers: one answer for the whole block.
__device__ __forceinline__ bool block_aborted(const SpinGuard& guard) {
  return __syncthreads_or(threadIdx.x == 0 && aborted(guard)) != 0;
}

// A wait passed its deadline: the first one of this rank says which, then everybody is released.
__device__ __forceinline__ void report_expiry(const SpinGuard& guard, const DeviceFault& fault) {
  const bool first = guard.abort == nullptr || atomicExch_system(guard.abort, 1u) == 0;
  if (first && guard.fault != nullptr) {
    volatile DeviceFault* out = guard.fault;
    out->rank = fault.rank;
    out->peer = fault.peer;
    out->ordinal = fault.ordinal;
    out->expected = fault.expected;
    out->seen = fault.seen;
    __threadfence_system();
    out->written = 1;
  }
  for (int p = 0; p < kMaxAllReduceRanks; ++p) {
    if (guard.peer_abort[p] != nullptr) store_relaxed_system(guard.peer_abort[p], 1u);
  }
}

}  // namespace tpjitter::kernels
