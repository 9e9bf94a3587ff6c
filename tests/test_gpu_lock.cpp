#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "harness/contract/error.h"
#include "harness/gpu_lock.h"

namespace tpjitter {
namespace {

class GpuLock : public ::testing::Test {
 protected:
  GpuLock() {
    std::string name = ::testing::TempDir() + "tpjitter_lock_XXXXXX";
    if (mkdtemp(name.data()) == nullptr) std::abort();
    directory_ = name;
  }
  ~GpuLock() override { std::filesystem::remove_all(directory_); }
  std::filesystem::path directory_;
};

TEST_F(GpuLock, ASecondRunOnTheSameGpuIsRefusedByName) {
  const int first = lock_gpu("GPU-1", directory_);
  ASSERT_GE(first, 0);
  try {
    lock_gpu("GPU-1", directory_);
    FAIL() << "two runs hold one GPU";
  } catch (const RunError& error) {
    EXPECT_NE(std::string(error.what()).find("GPU-1"), std::string::npos);
  }
  EXPECT_GE(lock_gpu("GPU-2", directory_), 0);  // another GPU is free
  close(first);
  EXPECT_GE(lock_gpu("GPU-1", directory_), 0);
}

TEST_F(GpuLock, AKilledProcessLeavesNoLock) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    const char held = lock_gpu("GPU-1", directory_) >= 0 ? 1 : 0;
    if (write(ready[1], &held, 1) != 1) _exit(1);
    for (;;) pause();
  }
  char held = 0;
  ASSERT_EQ(read(ready[0], &held, 1), 1);
  EXPECT_EQ(held, 1);
  EXPECT_THROW(lock_gpu("GPU-1", directory_), RunError);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_GE(lock_gpu("GPU-1", directory_), 0);
}

TEST_F(GpuLock, NoUuidAndNoPlaceForAFileAreNoError) {
  EXPECT_EQ(lock_gpu("", directory_), -1);
  EXPECT_EQ(lock_gpu("GPU-1", directory_ / "absent"), -1);
}

}  // namespace
}  // namespace tpjitter
