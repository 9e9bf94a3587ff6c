// Stale metadata cannot pass: a step whose rebuild or whose inputs are left out fails its checksum,
// and in speculative mode that of the graph that read them.
// Runs the parts of the backend by hand, so that a stage can be skipped.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "tests/gpu/case_by_hand.h"

namespace tpjitter {
namespace {

constexpr std::int64_t kSteps = 20;
constexpr std::int64_t kSkipped = 7;

enum class Skip { kNothing, kRebuild, kInputs };

using test::CaseByHand;
using Failures = std::vector<std::pair<std::int64_t, std::int32_t>>;  // step and graph

CaseConfig small_case(const std::string& path, bool swa) {
  CaseConfig config;
  config.path = path;
  config.swa = config.draft_swa = swa;
  config.batch_size = 5;
  config.capture_batch_sizes = {5, 8};
  config.context_tokens = 500;
  config.page_size = 16;
  config.hidden_size = 256;
  config.layers = 2;
  config.layer_us = 5;
  config.block_steps = kSteps;
  return config;
}

class StaleMetadata : public test::GpuTest, public testing::WithParamInterface<bool> {
 protected:
  CaseConfig decode(const std::string& path) { return small_case(path, GetParam()); }
  CaseConfig speculative(const std::string& path) {
    CaseConfig config = decode(path);
    config.mode = "speculative";
    return config;
  }

  // In step kSkipped a stage of one phase is left out.
  Failures run(const CaseConfig& config, Skip skip, int skipped_phase = 0) {
    const StepPlan plan = step_plan(config);
    const int phases = static_cast<int>(plan.phases.size());
    CaseByHand parts(config);
    parts.capture();
    for (std::int64_t step = 0; step < kSteps; ++step) {
      parts.device.wait_accept(step - 1);
      for (int phase = 0; phase < phases; ++phase) {
        const bool here = step == kSkipped && phase == skipped_phase;
        if (!here || skip != Skip::kInputs) parts.device.copy_inputs(phase);
        if (!here || skip != Skip::kRebuild) parts.device.rebuild_metadata(phase);
        if (plan.phases[phase].launches) parts.device.launch_graph(plan.phases[phase].graph);
      }
      parts.device.stage_inputs(step + 1);
    }
    const auto [failed, checks] = parts.failures(kSteps);
    EXPECT_EQ(checks.steps_checked, kSteps);
    EXPECT_EQ(checks.checksum_failures, static_cast<std::int64_t>(failed.size()));
    if (!failed.empty()) {
      const auto [step, graph] = failed[0];
      const PlannedPhase& last = plan.phases[plan.last_phase(graph) - 1];
      const std::string place = "rank 0, step " + std::to_string(step) + ", phase " +
                                phase_name(last.phase) + ", graph " + std::to_string(graph) + ":";
      EXPECT_EQ(checks.first_failure.find(place), 0u) << checks.first_failure;
    }
    return failed;
  }
};
INSTANTIATE_TEST_SUITE_P(SlidingWindow, StaleMetadata, testing::Bool());

constexpr const char* kPaths[] = {"aten", "page_table_kernel", "fused", "fused_in_graph"};
constexpr const char* kEagerPaths[] = {"aten", "page_table_kernel", "fused"};

TEST_P(StaleMetadata, IsNotSeenWhereNothingIsLeftOut) {
  for (const char* path : kPaths) {
    EXPECT_TRUE(run(decode(path), Skip::kNothing).empty()) << path;
    EXPECT_TRUE(run(speculative(path), Skip::kNothing).empty()) << path;
  }
}

TEST_P(StaleMetadata, OfThePreviousStepFailsThatStepAndNoOther) {
  for (const char* path : kEagerPaths) {
    EXPECT_EQ(run(decode(path), Skip::kRebuild), (Failures{{kSkipped, 0}})) << path;
  }
}

TEST_P(StaleMetadata, OfOnePhaseFailsTheGraphThatReadsItAndNoOther) {
  for (const char* path : kEagerPaths) {
    for (const char* layout : {"merged", "per_pass"}) {
      CaseConfig config = speculative(path);
      config.graph_layout = layout;
      const StepPlan plan = step_plan(config);
      for (int phase = 0; phase < static_cast<int>(plan.phases.size()); ++phase) {
        EXPECT_EQ(run(config, Skip::kRebuild, phase),
                  (Failures{{kSkipped, plan.phases[phase].graph}}))
            << path << ", " << layout << ", phase " << phase;
      }
    }
  }
}

TEST_P(StaleMetadata, FromThePreviousStepsInputsFails) {
  for (const char* path : kPaths) {
    for (const CaseConfig& config : {decode(path), speculative(path)}) {
      const Failures failed = run(config, Skip::kInputs);
      ASSERT_FALSE(failed.empty()) << path << ", " << config.mode;
      EXPECT_EQ(failed[0].first, kSkipped) << path << ", " << config.mode;
    }
  }
}

TEST_P(StaleMetadata, FromDraftExtendsOldLengthsFailsDraftExtendOnly) {
  for (const char* path : kPaths) {
    for (const char* form : {"strided", "cumsum"}) {
      CaseConfig config = speculative(path);
      config.draft_extend = form;
      const StepPlan plan = step_plan(config);
      EXPECT_EQ(run(config, Skip::kInputs, static_cast<int>(plan.phases.size()) - 1),
                (Failures{{kSkipped, plan.graphs - 1}}))
          << path << ", " << form;
    }
  }
}

}  // namespace
}  // namespace tpjitter
