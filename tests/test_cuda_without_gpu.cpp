// What a CUDA build says about the machine, with a driver and without one: neither may stop it.
#include <gtest/gtest.h>

#include <string>

#include "harness/control.h"
#include "harness/cuda/cuda_backend.h"
#include "harness/cuda/host_wait.h"
#include "tests/allocation_count.h"

namespace tpjitter {
namespace {

TEST(CudaEnvironment, IsDescribedWithAndWithoutADevice) {
  Json environment = Json::object();
  Json versions = Json::object();
  describe_cuda(environment, versions);
  std::string reason;
  EXPECT_EQ(static_cast<int>(environment["gpus"].size()), cuda_capacity(&reason));
  EXPECT_FALSE(reason.empty());
  for (const Json& gpu : environment["gpus"]) {
    EXPECT_EQ(gpu["uuid"].get<std::string>().substr(0, 4), "GPU-");
    EXPECT_FALSE(gpu["name"].get<std::string>().empty());
  }
  EXPECT_NE(versions["cuda_runtime"].get<std::string>().find('.'), std::string::npos);
  EXPECT_TRUE(versions.contains("nvidia_driver"));
}

TEST(CudaEnvironment, HasNoNumaNodeForAGpuThatIsNotThere) {
  EXPECT_EQ(cuda_numa_node(1000), std::nullopt);
}

TEST(CudaSkipReason, NamesWhatACaseAsksTooMuchOf) {
  CaseConfig config;
  EXPECT_EQ(cuda_skip_reason(config, 8), "");
  EXPECT_NE(cuda_skip_reason(config, 9).find("8 ranks"), std::string::npos);
  config.capture_batch_sizes = {4096};
  config.hidden_size = 8192;
  EXPECT_NE(cuda_skip_reason(config, 2).find("67108864 bytes"), std::string::npos);
}

// It is part of every step. The place in its messages is longer from step 100 on.
TEST(HostWait, AllocatesNothingHoweverLongItPolls) {
  ControlSegment control = ControlSegment::create(1, 0, 16, "{}", 1.0);
  const RankContext context{0, 1, &control};
  HostWait wait(context, 3'600'000'000'000);
  const long before = allocation_count();
  for (std::uint32_t poll = 0; poll < 4 * kPollsPerCheck; ++poll) wait.poll("the result", 123'456);
  EXPECT_EQ(allocation_count(), before);
}

}  // namespace
}  // namespace tpjitter
