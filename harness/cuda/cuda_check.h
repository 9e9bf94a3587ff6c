// CUDA errors as exceptions. A function, not a macro: the place comes from std::source_location.
#pragma once

#include <source_location>
#include <string>

#include "harness/contract/error.h"

namespace tpjitter {

// Sticky or not, the rank process ends on it: nothing goes on on a context that failed.
class CudaError : public RunError {
 public:
  CudaError(const std::string& message, int status) : RunError(message), status_(status) {}
  int status() const { return status_; }  // cudaError_t

 private:
  int status_;
};

// Throws CudaError unless status (cudaError_t; kernel launchers return it as int) is success.
// Outside timed code only.
void check_cuda(int status, std::source_location where = std::source_location::current());

// "out of memory (cudaErrorMemoryAllocation)"
std::string cuda_error_text(int status);

}  // namespace tpjitter
