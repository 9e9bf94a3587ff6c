#include "harness/cuda/host_wait.h"

#include <fmt/format.h>

#include "harness/clock.h"
#include "harness/contract/error.h"
#include "harness/cuda/cuda_check.h"

namespace tpjitter {

void HostWait::check(const char* what, std::int64_t step) {
  // Made where it is needed only: from step 100 on the text is long enough to be allocated.
  const auto place = [&] {
    return step < 0 ? fmt::format("rank {}", context_.rank)
                    : fmt::format("rank {}, step {}", context_.rank, step);
  };
  if (context_.control->aborted()) {
    throw RunError(
        fmt::format("{} another rank or the launcher ended the run while {} waited for {}",
                    kStoppedPrefix, place(), what));
  }
  const std::int64_t now = now_ns();
  if (begin_ns_ == 0) begin_ns_ = now;
  if (now - begin_ns_ > deadline_ns_) {
    throw TimeoutError(fmt::format("{}: the GPU did not finish {} within {:.1f} s", place(), what,
                                   static_cast<double>(deadline_ns_) / 1e9));
  }
}

void wait_for_stream(const RankContext& context, cudaStream_t stream, std::int64_t deadline_ns,
                     const char* what) {
  HostWait wait(context, deadline_ns);
  for (;;) {
    const cudaError_t status = cudaStreamQuery(stream);
    if (status == cudaSuccess) return;
    if (status != cudaErrorNotReady) check_cuda(status);
    wait.poll(what, -1);
  }
}

}  // namespace tpjitter
