// main of every GPU test program.
#include "tests/gpu/gpu_test_main.h"

namespace tpjitter::test {

int gpu_count(std::string* reason) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaSuccess && count > 0) return count;
  if (reason != nullptr) {
    *reason = status == cudaSuccess ? "no device is visible" : cudaGetErrorString(status);
  }
  cudaGetLastError();  // so that a later check does not see it
  return 0;
}

}  // namespace tpjitter::test

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const int status = RUN_ALL_TESTS();
  const auto& unit = *::testing::UnitTest::GetInstance();
  constexpr int kSkipped = 77;
  if (status == 0 && unit.test_to_run_count() > 0 &&
      unit.skipped_test_count() == unit.test_to_run_count()) {
    return kSkipped;
  }
  return status;
}
