// The delay node: how long it really delays, in which steps, and that it never outlasts the
// deadline. Measured by the GPU's own clock, from its stamp to that of a node behind it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/delay.h"
#include "kernels/stamps.h"
#include "tests/gpu/gpu_test_main.h"

namespace tpjitter {
namespace {

using kernels::AllReduceStamp;
using kernels::DelayArgs;
using kernels::GraphStamp;
using kernels::StampPoint;
using test::check_cuda;
using test::DeviceArray;

class DelayNode : public test::GpuTest {
 protected:
  void SetUp() override {
    test::GpuTest::SetUp();
    if (IsSkipped()) return;
    stream_ = std::make_unique<test::TestStream>();
    step_ = DeviceArray<std::int64_t>(std::vector<std::int64_t>{0});
    entry_ = DeviceArray<std::int64_t>(std::vector<std::int64_t>{0});
    abort_ = DeviceArray<std::uint32_t>(std::vector<std::uint32_t>{0});
    graphs_ = DeviceArray<GraphStamp>(std::vector<GraphStamp>(1));
    all_reduces_ = DeviceArray<AllReduceStamp>(std::vector<AllReduceStamp>(1));
    ring_.graphs = graphs_.data();
    ring_.all_reduces = all_reduces_.data();
    ring_.entry = entry_.data();
    ring_.all_reduces_per_replay = 1;
  }

  void set_delays(const std::vector<std::int32_t>& delays_ns) {
    table_ = DeviceArray<std::int32_t>(delays_ns);
    args_.delays_ns = table_.data();
    args_.steps = static_cast<std::int64_t>(delays_ns.size());
    args_.step = step_.data();
    args_.ring = ring_;
    args_.guard.abort = abort_.data();
  }

  // From the delay's begin to the node behind it, ns; median of some replays of one graph.
  std::int64_t took(std::int64_t step) {
    if (!graph_) {
      graph_ = std::make_unique<test::CapturedGraph>(*stream_, [&] {
        check_cuda(kernels::launch_delay(args_, stream_->get()));
        check_cuda(kernels::launch_stamp({ring_, StampPoint::kAllReduceBegin, 0}, stream_->get()));
      });
    }
    step_.write({step});
    std::vector<std::int64_t> times;
    for (int i = 0; i < 21; ++i) {
      graph_->replay(*stream_);
      times.push_back(all_reduces_.read()[0].own_ns - graphs_.read()[0].begin_ns);
    }
    std::nth_element(times.begin(), times.begin() + 10, times.end());
    return times[10];
  }

  std::unique_ptr<test::TestStream> stream_;
  DeviceArray<std::int64_t> step_, entry_;
  DeviceArray<std::uint32_t> abort_;
  DeviceArray<GraphStamp> graphs_;
  DeviceArray<AllReduceStamp> all_reduces_;
  DeviceArray<std::int32_t> table_;
  kernels::StampRing ring_;
  DelayArgs args_;
  std::unique_ptr<test::CapturedGraph> graph_;
};

TEST_F(DelayNode, DelaysWithinAMicrosecondOfWhatTheTableSays) {
  const std::vector<std::int32_t> delays = {0, 1'000, 5'000, 20'000, 50'000, 250'000, 1'000'000};
  set_delays(delays);
  const std::int64_t without = took(0);
  EXPECT_LT(without, 20'000);
  for (std::size_t step = 1; step < delays.size(); ++step) {
    const std::int64_t delay = took(static_cast<std::int64_t>(step)) - without;
    EXPECT_NEAR(static_cast<double>(delay), delays[step], 1'000) << "step " << step;
  }
}

TEST_F(DelayNode, OfOneGraphFollowsTheStepOnTheGpu) {
  set_delays({0, 200'000, 0, 200'000});
  for (std::int64_t step = 0; step < 4; ++step) {
    EXPECT_EQ(took(step) > 150'000, step % 2 == 1) << "step " << step;
  }
}

TEST_F(DelayNode, DelaysNothingOutsideTheTable) {
  set_delays({500'000});
  EXPECT_LT(took(1), 100'000);
  EXPECT_LT(took(-1), 100'000);
  EXPECT_GT(took(0), 400'000);
}

TEST_F(DelayNode, EndsAtTheDeadline) {
  set_delays({2'000'000'000});
  args_.guard.deadline_ns = 3'000'000;
  const std::int64_t time = took(0);
  EXPECT_GE(time, 3'000'000);
  EXPECT_LT(time, 4'000'000);
}

TEST_F(DelayNode, OfAnAbortedRunReturnsAtOnceAndStampsNothing) {
  set_delays({50'000'000});
  abort_.write({1});
  step_.write({0});
  check_cuda(kernels::launch_delay(args_, stream_->get()));
  stream_->sync();
  EXPECT_EQ(graphs_.read()[0].begin_ns, 0);
}

TEST_F(DelayNode, DelaysWithoutARing) {
  set_delays({1'000'000});
  args_.ring = {};
  check_cuda(kernels::launch_stamp({ring_, StampPoint::kGraphBegin, 0}, stream_->get()));
  check_cuda(kernels::launch_delay(args_, stream_->get()));
  check_cuda(kernels::launch_stamp({ring_, StampPoint::kAllReduceBegin, 0}, stream_->get()));
  stream_->sync();
  EXPECT_GE(all_reduces_.read()[0].own_ns - graphs_.read()[0].begin_ns, 1'000'000);
}

}  // namespace
}  // namespace tpjitter
