// The rebuilds of several phases in one launch against the reference, word for word: phases of
// different batch, offset, query mode and window side by side, and refusals.
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/metadata_fused_multi.h"
#include "tests/gpu/gpu_test_main.h"
#include "tests/gpu/metadata_device_case.h"
#include "tests/metadata_cases.h"

namespace tpjitter {
namespace {

using kernels::DecodeMetadataArgs;
using kernels::PageColumns;
using kernels::QueryMode;
using test::CapturedGraph;
using test::check_cuda;
using test::DeviceCase;
using test::MetadataCase;
using test::MetadataOutputs;

// Up to eight phases, each a case with arrays of its own.
class Phases {
 public:
  explicit Phases(std::vector<MetadataCase> cases) : cases_(std::move(cases)) {
    for (const MetadataCase& c : cases_) devices_.push_back(std::make_unique<DeviceCase>(c));
  }

  kernels::FusedMultiLaunch prepared(PageColumns columns) const {
    std::vector<DecodeMetadataArgs> args;
    for (const auto& device : devices_) args.push_back(device->args(columns));
    kernels::FusedMultiLaunch launch;
    check_cuda(prepare_fused_multi(args, &launch));
    return launch;
  }

  void poison() {
    for (const auto& device : devices_) device->poison();
  }

  void set_new_values(std::uint64_t seed) {
    for (std::size_t i = 0; i < cases_.size(); ++i) {
      cases_[i] = with_new_values(cases_[i], seed + i);
      devices_[i]->set_inputs(cases_[i]);
    }
  }

  void expect_reference(PageColumns columns) const {
    for (std::size_t i = 0; i < cases_.size(); ++i) {
      ASSERT_EQ(first_difference(devices_[i]->outputs(), reference_outputs(cases_[i], columns)), "")
          << "phase " << i << ", " << cases_[i].name
          << (columns == PageColumns::kAll ? ", all" : ", live");
    }
  }

 private:
  std::vector<MetadataCase> cases_;
  std::vector<std::unique_ptr<DeviceCase>> devices_;
};

// Two draft passes without a window and target-verify with one, as in a step at 3/1/4.
std::vector<MetadataCase> step(std::int32_t batch, std::int32_t page_size, std::int32_t pages) {
  std::vector<MetadataCase> cases;
  for (const std::int32_t offset : {1, 2, 4}) {
    cases.push_back(test::make_random_case({.batch_size = batch,
                                            .page_size = page_size,
                                            .max_seq_pages = pages,
                                            .seqlen_offset = offset,
                                            .swa = offset == 4},
                                           static_cast<std::uint64_t>(offset)));
  }
  return cases;
}

class MetadataMultiGpu : public test::GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (!IsSkipped()) stream_ = std::make_unique<test::TestStream>();
  }

  void expect_equals_reference(const std::vector<MetadataCase>& cases) {
    Phases phases(cases);
    for (const PageColumns columns : {PageColumns::kAll, PageColumns::kLive}) {
      phases.poison();
      const kernels::FusedMultiLaunch launch = phases.prepared(columns);
      check_cuda(launch_fused_multi(launch, stream_->get()));
      stream_->sync();
      phases.expect_reference(columns);
    }
  }

  std::unique_ptr<test::TestStream> stream_;
};

TEST_F(MetadataMultiGpu, PhasesOfAStepEqualTheReferenceInEveryWord) {
  for (const std::int32_t batch : {1, 3, 8, 17, 64, 1025}) {
    ASSERT_NO_FATAL_FAILURE(expect_equals_reference(step(batch, 64, 40)));
  }
  // Two and four pages a thread; many parts of a row.
  ASSERT_NO_FATAL_FAILURE(expect_equals_reference(step(64, 16, 2048)));
  ASSERT_NO_FATAL_FAILURE(expect_equals_reference(step(256, 16, 1024)));
  ASSERT_NO_FATAL_FAILURE(expect_equals_reference(step(2, 1, 131072)));
}

TEST_F(MetadataMultiGpu, AnyCasesSideBySideEqualTheReference) {
  std::vector<MetadataCase> group;
  for (const MetadataCase& c : test::random_cases()) {
    group.push_back(c);
    if (group.size() < kernels::kMaxFusedPhases) continue;
    ASSERT_NO_FATAL_FAILURE(expect_equals_reference(group));
    group.clear();
  }
  if (!group.empty()) ASSERT_NO_FATAL_FAILURE(expect_equals_reference(group));
}

TEST_F(MetadataMultiGpu, IsOneKernelNodeThatSeesNewInputsEachReplay) {
  Phases phases(step(33, 16, 300));
  const kernels::FusedMultiLaunch launch = phases.prepared(PageColumns::kAll);
  const CapturedGraph graph(*stream_,
                            [&] { check_cuda(launch_fused_multi(launch, stream_->get())); });
  EXPECT_EQ(graph.count_nodes(), 1);
  EXPECT_EQ(graph.count_nodes(cudaGraphNodeTypeKernel), 1);
  for (const std::uint64_t seed : {10, 20, 30}) {
    phases.set_new_values(seed);
    phases.poison();
    graph.replay(*stream_);
    ASSERT_NO_FATAL_FAILURE(phases.expect_reference(PageColumns::kAll));
  }
}

TEST_F(MetadataMultiGpu, LaunchesNothingWithoutRows) {
  Phases phases(step(0, 64, 8));
  EXPECT_EQ(phases.prepared(PageColumns::kAll).kernel, nullptr);
  kernels::FusedMultiLaunch launch;
  EXPECT_EQ(kernels::prepare_fused_multi({}, &launch), cudaSuccess);
  EXPECT_EQ(launch.kernel, nullptr);
  check_cuda(launch_fused_multi(launch, stream_->get()));
}

TEST_F(MetadataMultiGpu, RefusesWhatOneLaunchCannotDo) {
  const MetadataCase c = test::make_random_case({.batch_size = 2, .swa = true}, 41);
  DeviceCase device(c);
  const DecodeMetadataArgs good = device.args(PageColumns::kAll);
  kernels::FusedMultiLaunch launch;
  std::vector<DecodeMetadataArgs> args(kernels::kMaxFusedPhases, good);
  EXPECT_EQ(prepare_fused_multi(args, &launch), cudaSuccess);
  args.push_back(good);
  EXPECT_EQ(prepare_fused_multi(args, &launch), cudaErrorInvalidValue);
  args = {good, device.args(PageColumns::kLive)};
  EXPECT_EQ(prepare_fused_multi(args, &launch), cudaErrorInvalidValue);
  args = {good, good};
  args[1].page_size = 48;
  EXPECT_EQ(prepare_fused_multi(args, &launch), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace tpjitter
