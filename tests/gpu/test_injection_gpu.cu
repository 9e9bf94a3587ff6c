// Delays injected on the GPU through the backend's seam, one rank on one GPU: they stand in the
// steps that the scenario says, between the first node and the first all-reduce, and the step's
// work stays right.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "harness/control.h"
#include "harness/cuda/cuda_backend.h"
#include "harness/step_plan.h"
#include "tests/gpu/gpu_test_main.h"

namespace tpjitter {
namespace {

constexpr std::int64_t kDelayNs = 300'000;
constexpr std::int64_t kSteps = 40;

CaseConfig delayed_case(const std::string& path) {
  CaseConfig config;
  config.path = path;
  config.swa = true;
  config.batch_size = 4;
  config.context_tokens = 600;
  config.page_size = 16;
  config.hidden_size = 1024;
  config.layers = 2;
  config.warmup_steps = 4;
  config.steps = kSteps;
  config.block_steps = kSteps;
  config.inject_where = "gpu";
  config.inject_pattern = "rotating";  // of one rank: that one
  config.inject_delay_us = static_cast<double>(kDelayNs) / 1000;
  config.inject_every_steps = 3;
  return config;
}

class DelayOnTheGpu : public test::GpuTest {
 protected:
  void expect_delays(const CaseConfig& config) {
    const std::unique_ptr<Backend> backend = make_cuda_backend(context_);
    const std::size_t phases = step_plan(config).phases.size();
    const CaseChecks prepared = backend->prepare(config);
    EXPECT_TRUE(prepared.bit_equal) << prepared.first_failure;
    std::vector<PhaseRow> scratch(phases);
    std::int64_t step = 0;
    while (step < config.warmup_steps) backend->run_step(step++, scratch);
    EXPECT_EQ(backend->finish_block({}).checksum_failures, 0);
    std::vector<PhaseRow> rows(kSteps * phases);
    for (std::int64_t i = 0; i < kSteps; ++i) {
      backend->run_step(step++, std::span(rows).subspan(i * phases, phases));
    }
    const CaseChecks checks = backend->finish_block(rows);
    EXPECT_EQ(checks.checksum_failures, 0) << checks.first_failure;
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const PhaseRow& row = rows[r];
      const std::int64_t of_case = config.warmup_steps + static_cast<std::int64_t>(r / phases);
      const bool hit = of_case % config.inject_every_steps == 0;
      EXPECT_EQ(row.injected_ns, hit ? kDelayNs : 0);
      if ((row.flags & kFlagNoLaunch) != 0) continue;
      const std::int64_t before_all_reduce = row.first_all_reduce_own_ns - row.gpu_begin_ns;
      EXPECT_EQ(before_all_reduce >= kDelayNs, hit && row.graph == 0)
          << "step " << of_case << ", graph " << row.graph << ": " << before_all_reduce << " ns";
    }
  }

  ControlSegment control_ = ControlSegment::create(1, 0, 1024, "{}", 1.0);
  RankContext context_{0, 1, &control_};
};

TEST_F(DelayOnTheGpu, StandsBeforeTheFirstAllReduceOnEveryPath) {
  for (const char* path : {"aten", "page_table_kernel", "fused", "fused_in_graph"}) {
    expect_delays(delayed_case(path));
  }
}

TEST_F(DelayOnTheGpu, StandsInTheFirstGraphOfASpeculativeStepOnly) {
  CaseConfig config = delayed_case("fused");
  config.mode = "speculative";
  expect_delays(config);
}

TEST_F(DelayOnTheGpu, GoesWithProgrammaticLaunchAndBakedFills) {
  CaseConfig config = delayed_case("fused_in_graph");
  config.pdl = true;
  config.fills = "baked";
  expect_delays(config);
}

}  // namespace
}  // namespace tpjitter
