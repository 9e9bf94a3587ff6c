// The linear-state kernel and the op-by-op form on a GPU against the reference, word for word;
// captured, and replayed with other requests.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "tests/gpu/device_ops.h"
#include "tests/gpu/gpu_test_main.h"
#include "tests/linear_state_cases.h"

namespace tpjitter {
namespace {

using kernels::DecodePhase;
using kernels::IntType;
using kernels::LinearStateArgs;
using test::check_cuda;
using test::DeviceArray;
using test::LinearCase;
using test::LinearOutputs;

DecodePhase phase_of(const LinearCase& c) {
  return c.query_len == 1 ? DecodePhase::kNormalDecode : DecodePhase::kTargetVerify;
}

class DeviceCase {
 public:
  explicit DeviceCase(const LinearCase& c)
      : case_(c), mapping_(c.mapping), preset_(query_start_preset(c)) {
    const LinearOutputs fresh(c);
    state_indices_ = DeviceArray<std::int32_t>(fresh.state_indices);
    query_start_loc_ = DeviceArray<std::int32_t>(fresh.query_start_loc);
    req_pool_indices_ = DeviceArray<std::int64_t>(fresh.req_pool_indices);
    std::vector<std::int32_t> narrow(c.req_pool_indices.begin(), c.req_pool_indices.end());
    req_pool_indices32_ = DeviceArray<std::int32_t>(narrow);
  }
  void reset(const LinearCase& c) {
    case_ = c;
    const LinearOutputs fresh(c);
    state_indices_.write(fresh.state_indices);
    query_start_loc_.write(fresh.query_start_loc);
    req_pool_indices_.write(fresh.req_pool_indices);
  }
  LinearStateArgs args(bool zeroes) const {
    LinearOutputs none(case_);
    LinearStateArgs args = bind(case_, none);
    args.req_pool_indices = req_pool_indices_.data();
    args.mapping = mapping_.data();
    args.state_indices = state_indices_.data();
    args.query_start_loc = query_start_loc_.data();
    args.query_start_preset = preset_.data();
    args.zero_padded_requests = zeroes;
    return args;
  }
  void* narrow_requests() const { return req_pool_indices32_.data(); }
  LinearOutputs outputs() const {
    LinearOutputs outputs(case_);
    outputs.state_indices = state_indices_.read();
    outputs.query_start_loc = query_start_loc_.read();
    outputs.req_pool_indices = req_pool_indices_.read();
    return outputs;
  }
  LinearOutputs expected(bool zeroes) const {
    LinearOutputs outputs(case_);
    LinearStateArgs args = bind(case_, outputs);
    args.zero_padded_requests = zeroes;
    reference_linear_state(phase_of(case_), args);
    return outputs;
  }

 private:
  LinearCase case_;
  DeviceArray<std::int32_t> mapping_, preset_, state_indices_, query_start_loc_,
      req_pool_indices32_;
  DeviceArray<std::int64_t> req_pool_indices_;
};

class LinearStateGpu : public test::GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (!IsSkipped()) stream_ = std::make_unique<test::TestStream>();
  }
  std::unique_ptr<test::TestStream> stream_;
};

TEST_F(LinearStateGpu, TheKernelEqualsTheReferenceInEveryWord) {
  for (const LinearCase& c : test::random_linear_cases()) {
    for (const bool zeroes : {false, true}) {
      const DeviceCase device(c);
      check_cuda(launch_linear_state(device.args(zeroes), stream_->get()));
      stream_->sync();
      ASSERT_EQ(device.outputs(), device.expected(zeroes)) << c.req_pool_indices.size();
    }
    const DeviceCase device(c);
    LinearStateArgs args = device.args(false);
    args.req_pool_indices = device.narrow_requests();
    args.req_pool_indices_type = IntType::kInt32;
    check_cuda(launch_linear_state(args, stream_->get()));
    stream_->sync();
    ASSERT_EQ(device.outputs(), device.expected(false)) << c.req_pool_indices.size();
  }
}

TEST_F(LinearStateGpu, TheOperationsEqualTheReferenceInEveryWord) {
  test::DeviceOps ops(stream_->get());
  for (const LinearCase& c : test::random_linear_cases()) {
    const DeviceCase device(c);
    check_cuda(rebuild_linear_state_aten(*ops, phase_of(c), device.args(true)));
    stream_->sync();
    ASSERT_EQ(device.outputs(), device.expected(true)) << c.req_pool_indices.size();
  }
}

TEST_F(LinearStateGpu, IsOneNodeThatReplaysNewRequests) {
  LinearCase c = test::random_linear_cases()[13];
  DeviceCase device(c);
  const test::CapturedGraph graph(
      *stream_, [&] { check_cuda(launch_linear_state(device.args(true), stream_->get())); });
  EXPECT_EQ(graph.count_nodes(), 1);
  for (int replay = 0; replay < 3; ++replay) {
    device.reset(c);
    graph.replay(*stream_);
    EXPECT_EQ(device.outputs(), device.expected(true)) << replay;
    std::rotate(c.req_pool_indices.begin(), c.req_pool_indices.begin() + 1,
                c.req_pool_indices.end());
  }
}

TEST_F(LinearStateGpu, ReadsNothingOutsideOfTheMapping) {
  LinearCase c;
  c.req_pool_indices = {0, 4, -1, std::int64_t{1} << 40};
  c.mapping = {9, 8, 7, 6};
  const DeviceCase device(c);
  check_cuda(launch_linear_state(device.args(false), stream_->get()));
  stream_->sync();
  EXPECT_EQ(device.outputs(), device.expected(false));
  EXPECT_EQ(device.outputs().state_indices[1], kernels::kPaddedState);
}

TEST_F(LinearStateGpu, RefusesWhatMakesNoSenseAndLaunchesNothingForAnEmptyBatch) {
  const DeviceCase device(test::random_linear_cases()[5]);
  LinearStateArgs args = device.args(false);
  args.num_padding = args.batch_size + 1;
  EXPECT_EQ(launch_linear_state(args, stream_->get()), cudaErrorInvalidValue);
  args.batch_size = 0;
  EXPECT_EQ(launch_linear_state(args, stream_->get()), cudaSuccess);
}

}  // namespace
}  // namespace tpjitter
