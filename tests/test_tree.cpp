// Draft trees (step.topk above 1) on the host: the slots and masks that a step hands to the two
// metadata objects, capture that only binds them, and what is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "harness/host/host_case.h"
#include "harness/host/host_metadata.h"
#include "harness/path_operations.h"
#include "kernels/tree_mask.h"
#include "tests/composition_cases.h"

namespace tpjitter {
namespace {

using namespace test;

CaseConfig tree_case(const std::string& path) { return small_case("tree", "speculative", path); }

TEST(TreeSlots, AreTheBranchesOwnAndOtherOnesInTheNextStep) {
  for (const std::int64_t page_size : {1, 16}) {
    CaseConfig config = tree_case("fused");
    config.page_size = page_size;
    const ServingShape shape = ServingShape::of(config);
    ServingState state(shape);
    std::vector<std::int64_t> before;
    for (int step = 0; step < 30; ++step) {
      const StepInputs& in = state.advance();
      const std::size_t live = static_cast<std::size_t>(shape.live_batch * 4 * 3);
      ASSERT_EQ(in.tree_cache_loc.size(), static_cast<std::size_t>(shape.batch_size * 4 * 3));
      const std::set<std::int64_t> slots(in.tree_cache_loc.begin(),
                                         in.tree_cache_loc.begin() + live);
      EXPECT_EQ(slots.size(), live) << "two branches share a slot";
      EXPECT_GE(*slots.begin(), page_size) << "page 0 is for padding";
      EXPECT_LT(*slots.rbegin(), shape.num_slots);
      for (const std::int32_t slot : state.req_to_token()) EXPECT_EQ(slots.count(slot), 0u);
      for (std::size_t i = 0; i < live; ++i) {
        if (!before.empty()) {
          EXPECT_NE(in.tree_cache_loc[i], before[i]) << "step " << step;
        }
      }
      before = in.tree_cache_loc;
      for (int row = 0; row < shape.live_batch; ++row) {
        for (int branch = 0; branch < 4; ++branch) {
          const int at = row * 4 + branch;
          for (int i = 0; i < 3; ++i) {
            const std::int64_t slot = in.tree_cache_loc[at * 3 + i];
            EXPECT_EQ(slot % page_size, (in.seq_lens[row] + i) % page_size);
            if (i < shape.draft_passes) {
              EXPECT_EQ(in.draft_cache_loc[i * shape.batch_size * 4 + at], slot);
            }
          }
        }
      }
    }
  }
}

TEST(TreeMask, ShowsEachDraftTokenItselfTheRootAndWhatItsParentSees) {
  std::set<std::vector<std::uint64_t>> trees;
  for (std::int64_t step = 0; step < 20; ++step) {
    std::vector<std::uint64_t> seen(64);
    kernels::tree_rows(5, step, 3, 64, seen.data());
    EXPECT_EQ(seen[0], 1u);
    for (std::int32_t i = 1; i < 64; ++i) {
      const std::int32_t parent = kernels::tree_parent(5, step, 3, i);
      ASSERT_GE(parent, 0);
      ASSERT_LT(parent, i);
      EXPECT_EQ(seen[i], seen[parent] | (std::uint64_t{1} << i));
      EXPECT_TRUE(seen[i] & 1);
    }
    trees.insert(seen);
  }
  EXPECT_EQ(trees.size(), 20u) << "a tree came twice";
}

TEST(TreeMask, IsWrittenIntoTheLastBytesOfEachRowAndNotPastTheEnd) {
  const std::vector<std::int32_t> lengths = {3, 1};
  const std::int64_t step = 4;
  const std::int64_t bytes = (3 + 4) * 4 + (1 + 4) * 4;
  std::vector<std::uint8_t> mask(bytes + 1, 9);
  kernels::TreeMaskArgs args;
  args.seq_lens = lengths.data();
  args.step = &step;
  args.custom_mask = mask.data();
  args.mask_len = bytes;
  args.live_rows = 2;
  args.draft_tokens = 4;
  reference_tree_mask(args);
  std::size_t at = 0;
  for (std::int32_t row = 0; row < 2; ++row) {
    std::uint64_t seen[4];
    kernels::tree_rows(0, step, row, 4, seen);
    for (int i = 0; i < 4; ++i) {
      for (std::int32_t j = 0; j < lengths[row]; ++j) EXPECT_EQ(mask[at++], 9);
      for (int j = 0; j < 4; ++j) EXPECT_EQ(mask[at++], seen[i] >> j & 1);
    }
  }
  EXPECT_EQ(mask[at], 9);
  std::fill(mask.begin(), mask.end(), 9);
  args.mask_len = 6;
  reference_tree_mask(args);
  EXPECT_EQ(std::count(mask.begin(), mask.end(), 9), bytes + 1 - 3) << "bytes 3 to 5 only";
}

class CountedExecution final : public HostExecution {
 public:
  int kernels = 0;
  kernels::TensorOps& operations(std::int64_t) override { throw std::logic_error("op by op"); }
  void launch_kernel() override { ++kernels; }
  void launch_glue_graph(std::int64_t) override {}
  bool computes() const override { return false; }
};

// Capture has neither slots nor a mask. Of three captured sizes the draft-extends are filled, and of
// the same step without a tree all four phases.
TEST(TreeCapture, BindsBothObjectsAndFillsNeither) {
  for (const bool tree : {true, false}) {
    const CaseConfig config =
        tree ? tree_case("fused") : small_case("single", "speculative", "fused");
    CountedExecution counted;
    const ServingState state(ServingShape::of(config));
    const HostMetadata metadata(config, metadata_path(config.path), state, counted);
    EXPECT_EQ(counted.kernels, tree ? 3 : 3 * 4);
  }
}

// Tables as at capture, poisoned as in a run: the graph that reads them fails its checksum.
TEST(TreeCapture, WithoutAReplaysFillTheChecksumFails) {
  HostCase c(tree_case("fused"), DeviceModel{}, 2);
  const std::int64_t step = c.advance().step;
  for (int g = 0; g < 2; ++g) {
    EXPECT_NE(kernels::reference_graph_checksum(c.computed.forwards(g), c.bodies[g], step),
              c.expected.checksum(g));
    EXPECT_EQ(c.checksum_fault(0, g), "");
  }
}

TEST(TreeStep, HasThePhasesOfEagleAndABranchForEachTokenOfADraftPass) {
  const StepPlan plan = step_plan(tree_case("fused"));
  ASSERT_EQ(plan.phases.size(), 4u);
  EXPECT_EQ(plan.graphs, 3);
  EXPECT_EQ(plan.phases[0].query_len, 4);
  EXPECT_EQ(plan.phases[1].query_len, 4);
  EXPECT_EQ(plan.phases[2].query_len, 8);
  EXPECT_EQ(plan.phases[3].query_len, 8);
  EXPECT_TRUE(plan.masks_tree(2));
  EXPECT_FALSE(plan.masks_tree(0));
  EXPECT_FALSE(step_plan(small_case("single", "speculative", "fused")).masks_tree(2));
}

TEST(TreeStep, CostsOneLaunchAPhaseFusedAndNoSyncOpByOp) {
  const Json fused = path_operations(tree_case("fused"));
  EXPECT_EQ(fused.at("kernel_launches"), 4);
  EXPECT_EQ(fused.at("copies"), 0);
  const Json aten = path_operations(tree_case("aten"));
  EXPECT_EQ(aten.at("syncs"), 0) << "its lengths are the host's";
  EXPECT_GT(aten.at("phases").at(2).at("kernel_launches"),
            aten.at("phases").at(0).at("kernel_launches"))
      << "the tree's mask is read in target-verify";
}

TEST(TreeStep, OfOtherSizesGivesTheReferencesChecksum) {
  struct Sizes {
    std::int64_t steps, topk, tokens, page, batch;
  };
  for (const Sizes& sizes : {Sizes{2, 2, 7, 1, 3}, Sizes{5, 4, 8, 1, 2}, Sizes{8, 8, 16, 64, 1},
                             Sizes{3, 3, 4, 2, 4}, Sizes{6, 4, 16, 4, 5}}) {
    for (const char* path : paths()) {
      CaseConfig config = tree_case(path);
      config.draft_steps = sizes.steps;
      config.topk = sizes.topk;
      config.draft_tokens = sizes.tokens;
      config.page_size = sizes.page;
      config.batch_size = sizes.batch;
      config.capture_batch_sizes = {sizes.batch, 8};
      ASSERT_EQ(composition_problem(config), "");
      if (!path_exists(config, metadata_path(path))) continue;
      ASSERT_EQ(path_difference(config, 0), "");
      HostCase c(config, DeviceModel{}, 2);
      for (int step = 0; step < 10; ++step) {
        c.advance();
        for (int g = 0; g < c.plan.graphs; ++g) ASSERT_EQ(c.checksum_fault(0, g), "") << path;
      }
    }
  }
}

TEST(TreeKeys, OfNoMeaningAreRefusedAndWhatIsNotBuiltIsSkipped) {
  const auto problem = [](auto change) {
    CaseConfig config = tree_case("fused");
    change(config);
    return composition_problem(config);
  };
  EXPECT_EQ(problem([](CaseConfig&) {}), "");
  EXPECT_NE(problem([](CaseConfig& c) { c.topk = 1; }).find("step.topk = 2 or more"),
            std::string::npos);
  EXPECT_NE(problem([](CaseConfig& c) { c.mode = "decode"; }).find("no step.mode"),
            std::string::npos);
  EXPECT_NE(problem([](CaseConfig& c) { c.draft_tokens = 4, c.topk = 8; }).find("8 branches"),
            std::string::npos);
  EXPECT_NE(problem([](CaseConfig& c) { c.draft_steps = c.topk = 2; }).find("trees of 7 tokens"),
            std::string::npos);
  for (const Composition& composition : compositions()) {
    if (composition.name == std::string(kTreeComposition)) continue;
    CaseConfig config = small_case(composition.name, "speculative", "fused");
    config.topk = 4;
    EXPECT_NE(composition_problem(config).find("drafts one branch"), std::string::npos)
        << composition.name;
    config.mode = "decode";
    EXPECT_NE(composition_problem(config), "") << composition.name;
  }
  const auto gap = [](auto change) {
    CaseConfig config = tree_case("fused");
    change(config);
    EXPECT_EQ(composition_problem(config), "");
    return composition_gap(config);
  };
  EXPECT_EQ(gap([](CaseConfig&) {}), "");
  EXPECT_NE(gap([](CaseConfig& c) { c.swa = true; }).find("sliding"), std::string::npos);
  EXPECT_NE(gap([](CaseConfig& c) { c.draft_swa = true; }).find("sliding"), std::string::npos);
  EXPECT_NE(gap([](CaseConfig& c) { c.path = "page_table_kernel"; }).find("page-table"),
            std::string::npos);
}

}  // namespace
}  // namespace tpjitter
