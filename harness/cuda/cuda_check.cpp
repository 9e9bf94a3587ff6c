#include "harness/cuda/cuda_check.h"

#include <cuda_runtime.h>
#include <fmt/format.h>

#include <string_view>

namespace tpjitter {

std::string cuda_error_text(int status) {
  const auto error = static_cast<cudaError_t>(status);
  return fmt::format("{} ({})", cudaGetErrorString(error), cudaGetErrorName(error));
}

void check_cuda(int status, std::source_location where) {
  if (status == cudaSuccess) return;
  std::string_view file = where.file_name();
  if (const auto slash = file.rfind('/'); slash != file.npos) file.remove_prefix(slash + 1);
  throw CudaError(fmt::format("CUDA: {} at {}:{}", cuda_error_text(status), file, where.line()),
                  status);
}

}  // namespace tpjitter
