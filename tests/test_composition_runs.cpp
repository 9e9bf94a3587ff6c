// Compositions of attention backends on the host, with real tables: capture and replay, in-graph and
// out-of-graph rebuilds, the runners' input buffers, and the whole backend.
#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "harness/contract/error.h"
#include "harness/control.h"
#include "harness/host/host_backend.h"
#include "harness/host/host_case.h"
#include "harness/host/host_metadata.h"
#include "harness/path_operations.h"
#include "tests/composition_cases.h"
#include "tests/noted_leaves.h"

namespace tpjitter {
namespace {

using namespace test;

// Launches of the tables' own rebuilds, and nothing else.
class CountedExecution final : public HostExecution {
 public:
  int kernels = 0;
  kernels::TensorOps& operations(std::int64_t) override { throw std::logic_error("op by op"); }
  void launch_kernel() override { ++kernels; }
  void launch_glue_graph(std::int64_t) override { throw std::logic_error("a glue graph"); }
  bool computes() const override { return false; }
};

TEST(FusedMulti, LaunchesOnceForAllThatTheStepsBeginHasAndOnceForDraftExtend) {
  for (const char* extend : {"strided", "cumsum"}) {
    for (const std::int64_t steps : {2, 3, 8}) {
      CaseConfig config = small_case("single", "speculative", "fused_multi");
      config.draft_extend = extend;
      config.draft_steps = steps;
      const Json operations = path_operations(config);
      EXPECT_EQ(operations.at("kernel_launches"), 2);
      EXPECT_EQ(operations.at("calls"), 2);
      std::vector<int> launches;
      for (const Json& phase : operations.at("phases")) launches.push_back(phase.at("calls"));
      std::vector<int> wanted(static_cast<std::size_t>(steps) + 1, 0);
      wanted.front() = wanted.back() = 1;
      EXPECT_EQ(launches, wanted);
    }
  }
}

TEST(FusedMulti, IsOfSpeculativeStepsAndOneBackend) {
  const CaseConfig single = small_case("single", "speculative", "fused");
  EXPECT_TRUE(path_exists(single, metadata_path("fused_multi")));
  EXPECT_FALSE(path_exists(small_case("single", "decode", "fused"), metadata_path("fused_multi")));
  EXPECT_EQ(phases_ready_at_begin(step_plan(single)), (std::vector<int>{0, 1, 2}));
  for (const Composition& composition : compositions()) {
    if (composition.name == std::string("single")) continue;
    const CaseConfig other = small_case(composition.name, "speculative", "fused_multi");
    EXPECT_NE(composition_gap(other).find("built for composition single"), std::string::npos)
        << composition.name;
  }
}

// On the in-graph path: nothing before a replay, and in the graph one kernel for each set of tables,
// but for draft passes over index lists, of which one kernel fills all.
TEST(InGraphPath, LaunchesNothingBeforeAReplayAndOneKernelALeafInTheGraph) {
  for (const CaseConfig& config : all_cases("fused_in_graph")) {
    CountedExecution counted;
    ServingState state(ServingShape::of(config));
    HostMetadata metadata(config, metadata_path(config.path), state, counted);
    metadata.set_inputs(state.advance());
    const StepPlan plan = step_plan(config);
    for (int phase = 0; phase < static_cast<int>(plan.phases.size()); ++phase) {
      metadata.composition().out_graph(batch_view(phase, 5, 5));
    }
    EXPECT_EQ(counted.kernels, 0) << name_of(config);

    Noted noted(config);
    for (int g = 0; g < plan.graphs; ++g) {
      int leaves = 0;
      for (int phase = plan.first_phase(g); phase < plan.last_phase(g); ++phase) {
        noted.backend->in_graph(batch_view(phase, 5, 5));
        for (const TableRows& rows : noted.leaves.take("in_graph")) {
          leaves += rows.leaf != kKv || plan.phases[phase].draft_pass == 0;
        }
      }
      EXPECT_EQ(metadata.rebuild_nodes(g), leaves) << name_of(config) << ", graph " << g;
      counted.kernels = 0;
      metadata.replay(g);
      EXPECT_EQ(counted.kernels, leaves) << name_of(config) << ", graph " << g;
    }
  }
}

TEST(EagerPaths, RecordNothingInTheGraphButWhereTheRunnerNeverCallsTheHost) {
  for (const char* path : {"aten", "page_table_kernel", "glue_graph", "fused"}) {
    for (const CaseConfig& config : all_cases(path)) {
      const HostCase c(config, DeviceModel{}, 2);
      for (int g = 0; g < c.plan.graphs; ++g) {
        const bool own = !c.plan.phases[c.plan.first_phase(g)].replays_hook;
        EXPECT_EQ(c.computed.rebuild_nodes(g) > 0, own) << name_of(config) << ", graph " << g;
      }
    }
  }
}

// Padded rows, requests that come and go, every step's inputs others; twice over each graph.
TEST(Compositions, GiveTheReferencesChecksumInEveryStepOnEveryPath) {
  for (const char* path : paths()) {
    for (CaseConfig config : all_cases(path)) {
      for (const std::vector<std::int64_t>& sizes :
           {std::vector<std::int64_t>{5}, std::vector<std::int64_t>{3, 8}}) {
        config.capture_batch_sizes = sizes;
        ASSERT_EQ(path_difference(config, 0), "") << name_of(config);
        HostCase c(config, DeviceModel{}, 2);
        for (int step = 0; step < 25; ++step) {
          c.advance();
          for (int g = 0; g < c.plan.graphs; ++g) {
            ASSERT_EQ(c.checksum_fault(1, g), "") << name_of(config);
          }
        }
      }
    }
  }
}

// A hook that is left out leaves the tables of the step before.
TEST(Compositions, AStepWithoutItsRebuildFailsTheChecksumOfTheGraphThatReadsIt) {
  for (const CaseConfig& config : all_cases("fused")) {
    HostCase c(config, DeviceModel{}, 2);
    for (int g = 0; g < c.plan.graphs; ++g) {
      if (!c.plan.phases[c.plan.first_phase(g)].replays_hook) continue;
      c.advance();
      EXPECT_EQ(c.checksum_fault(1, g), "");
      const std::int64_t step = c.advance().step;
      const std::uint64_t stale =
          kernels::reference_graph_checksum(c.computed.forwards(g), c.bodies[g], step);
      EXPECT_NE(stale, c.expected.checksum(g)) << name_of(config);
    }
  }
}

TEST(CapturedSizes, AReplayOfASizeThatWasNeverCapturedNamesItAndTheCapturedOnes) {
  for (const CaseConfig& config : all_cases("fused")) {
    ServingState state(ServingShape::of(config));
    const auto computing = make_computing_execution();
    HostMetadata metadata(config, metadata_path(config.path), state, *computing);
    metadata.composition().out_graph(batch_view(0, 8, 5));
    try {
      metadata.composition().out_graph(batch_view(0, 6, 5));
      FAIL() << name_of(config);
    } catch (const RunError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("no metadata was captured for a batch of 6 rows"), std::string::npos)
          << text;
      EXPECT_NE(text.find("captured: 4, 5, 8"), std::string::npos) << text;
    }
  }
}

// The accepted lengths are not known at capture: a maximum of one token a row must not be baked in.
TEST(Capture, RestoresTheQueryLengthOfADraftExtendWithPrefixSums) {
  CaseConfig config = small_case("single", "speculative", "aten");
  config.draft_extend = "cumsum";
  HostCase c(config, DeviceModel{}, 2);
  EXPECT_EQ(c.computed.forwards(2).front().metadata.num_out_tokens, 5 * config.draft_tokens);
  for (int step = 0; step < 5; ++step) {
    c.advance();
    EXPECT_EQ(c.checksum_fault(0, 2), "");
  }
}

TEST(MultiLayerOneGraph, RebuildsOnceInTheGraphAndNeverOnTheHost) {
  for (const char* path : paths()) {
    const CaseConfig config = small_case("multi_layer_one_graph", "speculative", path);
    const Json operations = path_operations(config);
    const Json& extend = operations.at("phases").at(1);
    EXPECT_EQ(extend.at("phase"), "draft_extend_strided");
    EXPECT_EQ(extend.at("calls"), 0) << path;
    HostCase c(config, DeviceModel{}, 2);
    EXPECT_GT(c.computed.rebuild_nodes(1), 0) << path;
    if (std::string(path) == "fused_in_graph") {
      EXPECT_EQ(c.computed.rebuild_nodes(1), 1);
    }
    EXPECT_EQ(c.computed.forwards(1).size(), 3u);
  }
}

TEST(MultiLayer, KeepsStalePoolRowsAndAcceptLengthsOfMinusOneInPaddedRows) {
  CaseConfig config = small_case("multi_layer", "speculative", "fused");
  config.capture_batch_sizes = {8};
  const ServingShape shape = ServingShape::of(config);
  const StepPlan plan = step_plan(config);
  ServingState state(shape);
  RunnerInputs inputs(shape, plan.phases[1]);
  const StepInputs& step = state.advance();
  inputs.set(step);
  const PhaseArrays arrays = inputs.arrays(state);
  EXPECT_EQ(arrays.seq_lens_type, kernels::IntType::kInt32);
  const auto* lengths = static_cast<const std::int32_t*>(arrays.seq_lens);
  for (int row = 0; row < 8; ++row) {
    const bool live = row < 5;
    EXPECT_EQ(arrays.req_pool_indices[row], live ? step.req_pool_indices[row] : kStalePoolRow);
    EXPECT_EQ(arrays.accept_lens[row], live ? step.accept_lens[row] : -1);
    EXPECT_EQ(lengths[row], live ? step.seq_lens[row] + 4 : 1);
  }
}

TEST(Eagle, ResetsPoolRowsAndPadsAcceptLengthsWithTheDraftTokens) {
  CaseConfig config = small_case("single", "speculative", "fused");
  config.capture_batch_sizes = {8};
  const ServingShape shape = ServingShape::of(config);
  const StepPlan plan = step_plan(config);
  ServingState state(shape);
  RunnerInputs inputs(shape, plan.phases.back());
  inputs.set(state.advance());
  const PhaseArrays arrays = inputs.arrays(state);
  EXPECT_EQ(arrays.seq_lens_type, kernels::IntType::kInt64);
  for (int row = 5; row < 8; ++row) {
    EXPECT_EQ(arrays.req_pool_indices[row], 0);
    EXPECT_EQ(arrays.accept_lens[row], 4);
    EXPECT_EQ(static_cast<const std::int64_t*>(arrays.seq_lens)[row], 1);
  }
}

TEST(FrozenKv, ServesAllDraftForwardsByOneRebuildAndWritesNoSlot) {
  CaseConfig config = small_case("frozen_kv", "speculative", "fused");
  config.draft_layers = 2;
  HostCase c(config, DeviceModel{}, 2);
  ASSERT_EQ(c.plan.phases.size(), 2u);
  EXPECT_EQ(c.plan.graphs, 2);
  EXPECT_EQ(c.plan.phases[0].rebuild, kernels::DecodePhase::kNormalDecode);
  EXPECT_EQ(c.plan.phases[1].rebuild, kernels::DecodePhase::kTargetVerify);
  ASSERT_EQ(c.computed.forwards(0).size(), 3u);
  for (const kernels::GraphForward& forward : c.computed.forwards(0)) {
    EXPECT_EQ(forward.layers, 2);
    EXPECT_EQ(forward.metadata.num_out_tokens, 0);
    EXPECT_EQ(forward.metadata.swa_out_len, 0);
    EXPECT_EQ(forward.metadata.seq_lens_type, kernels::IntType::kInt64);
    EXPECT_TRUE(forward.swa) << "the target's window, whatever draft_swa says";
    EXPECT_EQ(forward.metadata.page_table, c.computed.forwards(0)[0].metadata.page_table);
  }
  EXPECT_EQ(path_operations(config).at("kernel_launches"), 2);
}

// Slots that the sliding layers write, of each phase, in the checksum and not those of an earlier
// step.
TEST(PatternB, SlidingLayersWriteTranslatedSlotsThatMustBeOfThisStep) {
  CaseConfig config = small_case("pattern_b", "speculative", "fused");
  config.draft_swa = true;
  config.capture_batch_sizes = {8};
  HostCase c(config, DeviceModel{}, 2);
  std::vector<std::vector<std::int64_t>> before(4);
  for (int step = 0; step < 3; ++step) {
    const std::int64_t at = c.advance().step;
    for (int g = 0; g < c.plan.graphs; ++g) {
      ASSERT_EQ(c.checksum_fault(0, g), "");
      for (const kernels::GraphForward& forward : c.computed.forwards(g)) {
        const kernels::DecodeMetadataArgs& m = forward.metadata;
        ASSERT_EQ(m.swa_out_len, m.num_out_tokens);
        ASSERT_GT(m.swa_out_len, 0);
        for (std::int64_t i = 0; i < m.swa_out_len; ++i) {
          const std::int64_t mapped = c.expected.state().full_to_swa()[m.out_cache_loc[i]];
          EXPECT_EQ(m.swa_out_cache_loc[i], mapped < 0 ? -1 : mapped);
        }
      }
      // Of the first forward: even layers of a graph slide.
      const kernels::DecodeMetadataArgs& m = c.computed.forwards(g).front().metadata;
      const std::vector<std::int64_t> now(m.swa_out_cache_loc, m.swa_out_cache_loc + m.swa_out_len);
      if (!before[g].empty()) {
        std::copy(before[g].begin(), before[g].end(), m.swa_out_cache_loc);
        EXPECT_NE(kernels::reference_graph_checksum(c.computed.forwards(g), c.bodies[g], at),
                  c.expected.checksum(g))
            << "graph " << g;
      }
      before[g] = now;
    }
  }
}

// One kernel for all draft steps.
TEST(PatternB, FillsTheListsOfAllDraftPassesInTheFirst) {
  CaseConfig config = small_case("pattern_b", "speculative", "fused");
  config.draft_steps = 4;
  const Json phases = path_operations(config).at("phases");
  EXPECT_EQ(phases.at(0).at("kernel_launches"), 1);
  EXPECT_EQ(phases.at(1).at("kernel_launches"), 0);
  EXPECT_EQ(phases.at(2).at("kernel_launches"), 0);
  EXPECT_EQ(phases.at(3).at("kernel_launches"), 1);
}

// The whole backend, timed loop included.
class OnTheHostBackend : public testing::TestWithParam<const char*> {};

TEST_P(OnTheHostBackend, EveryStepOfEveryCompositionIsVerified) {
  for (CaseConfig config : all_cases(GetParam())) {
    ControlSegment control = ControlSegment::create(1, 0, 1, "", 100.0);
    const auto backend = make_host_backend({0, 1, &control});
    const CaseChecks prepared = backend->prepare(config);
    EXPECT_TRUE(prepared.bit_equal) << prepared.first_failure;
    const std::size_t phases = step_plan(config).phases.size();
    std::vector<PhaseRow> rows(8 * phases);
    for (std::int64_t step = 0; step < 8; ++step) {
      backend->run_step(step, std::span(rows).subspan(step * phases, phases));
    }
    const CaseChecks checks = backend->finish_block(rows);
    EXPECT_EQ(checks.steps_checked, 8);
    EXPECT_EQ(checks.checksum_failures, 0) << name_of(config) << ": " << checks.first_failure;
  }
}
INSTANTIATE_TEST_SUITE_P(Paths, OnTheHostBackend, testing::ValuesIn(paths()));

}  // namespace
}  // namespace tpjitter
