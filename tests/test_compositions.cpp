// Compositions of attention backends without a device: which leaf each hook reaches, how often, with
// which rows; what a step consists of; what is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "harness/compositions/composition.h"
#include "harness/contract/scenario_fields.h"
#include "tests/composition_cases.h"
#include "tests/noted_leaves.h"

namespace tpjitter {
namespace {

using namespace test;

// A table that is read is rebuilt, by every hook, once; and no leaf is rebuilt that nobody reads.
TEST(Compositions, ForwardEveryHookToEachLeafThatThePhasesForwardReads) {
  for (const CaseConfig& config : all_cases("fused")) {
    Noted noted(config);
    for (int phase = 0; phase < static_cast<int>(noted.plan.phases.size()); ++phase) {
      const BatchView view = batch_view(phase, 8, 5);
      std::vector<LayerRun> runs;
      noted.backend->append_layers(view, 5, runs);
      std::vector<TableRows> read;
      for (const LayerRun& run : runs) {
        std::vector<TableRows> rows = run.halves;
        if (rows.empty()) rows.push_back(run.tables);
        for (const TableRows& each : rows) {
          if (std::find(read.begin(), read.end(), each) == read.end()) read.push_back(each);
        }
      }
      noted.backend->capture(view);
      const auto captured = noted.leaves.take("capture");
      noted.backend->out_graph(view);
      EXPECT_EQ(noted.leaves.take("out_graph"), captured) << name_of(config);
      noted.backend->in_graph(view);
      EXPECT_EQ(noted.leaves.take("in_graph"), captured) << name_of(config);
      EXPECT_EQ(captured.size(), read.size()) << name_of(config) << ", phase " << phase;
      for (const TableRows& rows : read) {
        EXPECT_EQ(std::count(captured.begin(), captured.end(), rows), 1) << name_of(config);
      }
    }
  }
}

TEST(Compositions, CoverAllLayersOfAForward) {
  for (const CaseConfig& config : all_cases("fused")) {
    const StepPlan plan = step_plan(config);
    const auto graphs = layers_by_graph(config, plan, 8, 5);
    for (int g = 0; g < plan.graphs; ++g) {
      int layers = 0;
      for (const LayerRun& run : graphs[g]) layers += run.layers;
      int expected = 0;
      for (int p = plan.first_phase(g); p < plan.last_phase(g); ++p) {
        expected += plan.phases[p].all_layers();
      }
      EXPECT_EQ(layers, expected) << name_of(config) << ", graph " << g;
    }
  }
}

TEST(Hybrid, DecodesWithPageTablesAndVerifiesAndExtendsWithIndexLists) {
  Noted noted(small_case("hybrid", "speculative", "fused"));
  const LeafId expected[] = {kPaged, kPaged, kKv, kKv};
  for (int phase = 0; phase < 4; ++phase) {
    noted.backend->out_graph(batch_view(phase, 8, 5));
    noted.backend->in_graph(batch_view(phase, 8, 5));
  }
  ASSERT_EQ(noted.leaves.calls.size(), 8u);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(noted.leaves.calls[i].leaf, expected[i / 2]) << i;
}

TEST(HybridLinear, RebuildsFullAttentionFirstAndLinearStateInTheTargetOnly) {
  Noted noted(small_case("hybrid_linear", "speculative", "fused"));
  for (int phase = 0; phase < 4; ++phase) {
    noted.backend->out_graph(batch_view(phase, 8, 5));
    const auto rows = noted.leaves.take("out_graph");
    const bool verify = phase == 2;
    ASSERT_EQ(rows.size(), verify ? 2u : 1u);
    EXPECT_EQ(rows[0].leaf, kPaged);
    if (verify) {
      EXPECT_EQ(rows[1].leaf, kLinear);
    }
  }
}

TEST(HybridLinear, HasFullAttentionInEveryFourthLayerAndTheLast) {
  std::vector<LayerRun> runs;
  Noted noted(small_case("hybrid_linear", "decode", "fused"));
  noted.backend->append_layers(batch_view(0, 8, 5), 6, runs);
  const LeafId expected[] = {kLinear, kLinear, kLinear, kPaged, kLinear, kPaged};
  ASSERT_EQ(runs.size(), 6u);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(runs[i].tables.leaf, expected[i]) << i;
}

TEST(TwoBatch, SplitsThePaddedBatchAndLeavesAnEmptyChildOut) {
  struct Split {
    std::int32_t rows, live;
    std::vector<BatchView> children;
  };
  const Split splits[] = {
      {8, 8, {{0, 0, 4, 0}, {0, 4, 4, 0}}},
      {8, 5, {{0, 0, 4, 0}, {0, 4, 4, 3}}},
      {8, 3, {{0, 0, 4, 1}, {0, 4, 4, 4}}},
      {5, 5, {{0, 0, 2, 0}, {0, 2, 3, 0}}},
      {1, 1, {{0, 0, 1, 0}}},
  };
  for (const Split& split : splits) {
    Noted noted(small_case("two_batch", "decode", "fused"));
    noted.backend->out_graph(batch_view(0, split.rows, split.live));
    const auto rows = noted.leaves.take("out_graph");
    ASSERT_EQ(rows.size(), 1 + split.children.size()) << split.rows;
    EXPECT_EQ(rows[0].leaf, kPaged);
    EXPECT_EQ(rows[0].view, batch_view(0, split.rows, split.live));
    const std::size_t empty = 2 - split.children.size();
    for (std::size_t i = 0; i < split.children.size(); ++i) {
      EXPECT_EQ(rows[1 + i].view, split.children[i]) << split.rows << ", " << split.live;
      EXPECT_EQ(rows[1 + i].leaf, (LeafId{LeafKind::kPaged, static_cast<int>(1 + empty + i)}));
    }
  }
}

TEST(MultiLayer, HasADraftExtendForEachDraftStepInGraphsOfTheirOwnOrInOne) {
  CaseConfig config = small_case("multi_layer", "speculative", "fused");
  config.draft_steps = 4;
  const StepPlan apart = step_plan(config);
  EXPECT_EQ(apart.graphs, 5);
  ASSERT_EQ(apart.phases.size(), 5u);
  EXPECT_EQ(apart.phases[0].rebuild, kernels::DecodePhase::kTargetVerify);
  for (int i = 1; i < 5; ++i) {
    EXPECT_EQ(apart.phases[i].rebuild, kernels::DecodePhase::kDraftExtendStrided);
    EXPECT_EQ(apart.phases[i].rotates, i > 1);
    EXPECT_TRUE(apart.phases[i].replays_hook);
  }
  config.composition = "multi_layer_one_graph";
  const StepPlan together = step_plan(config);
  EXPECT_EQ(together.graphs, 2);
  ASSERT_EQ(together.phases.size(), 2u);
  EXPECT_EQ(together.phases[1].forwards, 4);
  EXPECT_FALSE(together.phases[1].replays_hook);
}

TEST(Compositions, RefuseModesTheyDoNotHaveAndSkipWhatAddsNothing) {
  EXPECT_EQ(composition_problem(small_case("hybrid", "decode", "fused")),
            "hybrid has no step.mode = \"decode\"");
  EXPECT_EQ(composition_problem(small_case("frozen_kv", "decode", "fused")),
            "frozen_kv has no step.mode = \"decode\"");
  EXPECT_EQ(composition_problem(small_case("frozen_kv", "speculative", "fused")), "");
  CaseConfig config = small_case("hybrid_linear", "decode", "fused");
  config.layers = 1;
  EXPECT_NE(composition_problem(config).find("shape.layers"), std::string::npos);
  config = small_case("pattern_b", "speculative", "fused");
  EXPECT_EQ(composition_gap(config), "");
  config.draft_extend = "cumsum";
  EXPECT_NE(composition_gap(config).find("step.draft_extend"), std::string::npos);
}

TEST(Compositions, AreAllValuesOfTheKeyAndHaveAMode) {
  std::set<std::string> names;
  for (const Composition& composition : compositions()) {
    EXPECT_TRUE(names.insert(composition.name).second) << composition.name;
    EXPECT_TRUE(composition.decode || composition.speculative) << composition.name;
    EXPECT_NE(std::string(composition.summary), "");
    EXPECT_NE(std::string(composition.source), "");
    CaseConfig config;
    config.composition = composition.name;
    config.mode = composition.speculative ? "speculative" : "decode";
    EXPECT_EQ(case_from_json(case_to_json(config)), config) << composition.name;
  }
  const auto& values = std::get<Choices>(find_scenario_field("step.composition")->limits).values;
  EXPECT_EQ(std::set<std::string>(values.begin(), std::find(values.begin(), values.end(), nullptr)),
            names);
}

}  // namespace
}  // namespace tpjitter
