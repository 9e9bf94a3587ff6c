// NCCL behind the same calls, where the build has it. A watchdog thread aborts the communicator
// when the run is aborted: a collective whose peer is dead waits for ever otherwise.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>

#include "harness/backend.h"
#include "harness/contract/error.h"

namespace tpjitter {

class NcclError : public RunError {
 public:
  NcclError(const std::string& message, int status) : RunError(message), status_(status) {}
  int status() const { return status_; }  // ncclResult_t

 private:
  int status_;
};

class NcclCommunicator {
 public:
  static bool available();       // was this built with NCCL?
  static std::string version();  // "2.28.9"; empty without

  // Collective. The id travels through rank 0's exchange area.
  explicit NcclCommunicator(const RankContext& context);
  ~NcclCommunicator();  // aborts rather than destroys when the run has failed
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  // bf16 sum; capturable.
  void all_reduce(const void* input, void* output, std::int64_t elements, cudaStream_t stream);
  // A buffer of NCCL's own allocator, registered as a symmetric window, which lets NCCL take its
  // faster kernels; freed with the communicator. Collective. Null: this NCCL has no windows.
  void* registered_buffer(std::int64_t bytes);
  void abort() noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tpjitter
