// NVTX ranges for profilers: inputs, rebuild, launch, step. Without nvToolsExt.h they are empty;
// without a profiler attached a push and a pop cost a few nanoseconds (bench_launch prints it).
#pragma once

#if TPJITTER_HAS_NVTX
#include <nvtx3/nvToolsExt.h>
#endif

namespace tpjitter {

class NvtxRange {
 public:
#if TPJITTER_HAS_NVTX
  explicit NvtxRange(const char* name) { nvtxRangePushA(name); }
  ~NvtxRange() { nvtxRangePop(); }
#else
  explicit NvtxRange(const char*) {}
  ~NvtxRange() {}
#endif
  NvtxRange(const NvtxRange&) = delete;
  NvtxRange& operator=(const NvtxRange&) = delete;
};

}  // namespace tpjitter
