// Host-side waits for the GPU. Each polls with a deadline and watches the run's abort word: a host
// that waits for a dead peer's GPU must end with the others, not hang in the driver.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

#include "harness/backend.h"

namespace tpjitter {

// Polls between two looks at the abort word and the clock.
inline constexpr std::uint32_t kPollsPerCheck = 64;

// One wait of a rank. check() throws RunError when the run was aborted, TimeoutError past the
// deadline; both name the rank and `what`.
class HostWait {
 public:
  HostWait(const RankContext& context, std::int64_t deadline_ns)
      : context_(context), deadline_ns_(deadline_ns) {}

  // Call once a poll: cheap but for every kPollsPerCheck-th time.
  void poll(const char* what, std::int64_t step) {
    if (++polls_ % kPollsPerCheck == 0) check(what, step);
  }

 private:
  void check(const char* what, std::int64_t step);

  const RankContext& context_;
  std::int64_t deadline_ns_;
  std::int64_t begin_ns_ = 0;
  std::uint32_t polls_ = 0;
};

// Returns when the stream is empty.
void wait_for_stream(const RankContext& context, cudaStream_t stream, std::int64_t deadline_ns,
                     const char* what);

}  // namespace tpjitter
