// Compositions of attention backends on a GPU: metadata kernels inside and outside of the captured
// graphs, every path's tables and every step's checksum, capture and replay of padded batches, and
// what happens to a hook that is left out. One command runs all of it; every wait has a deadline.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "harness/compositions/composition.h"
#include "harness/contract/error.h"
#include "harness/cuda/cuda_backend.h"
#include "tests/allocation_count.h"
#include "tests/composition_cases.h"
#include "tests/gpu/case_by_hand.h"

namespace tpjitter {
namespace {

using namespace test;

constexpr std::int64_t kSteps = 40;

// The same, in blocks of kSteps steps.
std::vector<CaseConfig> gpu_cases(const std::string& path) {
  std::vector<CaseConfig> cases = all_cases(path);
  for (CaseConfig& config : cases) {
    config.context_tokens = 500;
    config.hidden_size = 256;
    config.layer_us = 3;
    config.block_steps = kSteps;
  }
  return cases;
}

// Kernels that rebuild metadata, of the one-kernel path.
int metadata_kernels(cudaGraph_t graph) {
  std::size_t size = 0;
  test::check_cuda(cudaGraphGetNodes(graph, nullptr, &size));
  std::vector<cudaGraphNode_t> nodes(size);
  test::check_cuda(cudaGraphGetNodes(graph, nodes.data(), &size));
  int count = 0;
  for (cudaGraphNode_t node : nodes) {
    cudaGraphNodeType type;
    test::check_cuda(cudaGraphNodeGetType(node, &type));
    if (type != cudaGraphNodeTypeKernel) continue;
    cudaKernelNodeParams params{};
    test::check_cuda(cudaGraphKernelNodeGetParams(node, &params));
    const char* name = nullptr;
    test::check_cuda(cudaFuncGetName(&name, params.func));
    const std::string_view text = name;
    for (const std::string_view kernel :
         {"fused_metadata_kernel", "kv_indices_kernel", "linear_state_kernel", "topk_kernel"}) {
      if (text.find(kernel) != std::string_view::npos) ++count;
    }
  }
  return count;
}

// Sets of tables that the forwards of a graph read: one kernel each, but for draft passes over index
// lists, of which one kernel fills all.
int leaves_of_graph(const StepPlan& plan, const std::vector<LayerRun>& runs) {
  std::vector<TableRows> seen;
  for (const LayerRun& run : runs) {
    std::vector<TableRows> rows = run.halves;
    if (rows.empty()) rows.push_back(run.tables);
    for (const TableRows& each : rows) {
      const bool filled =
          each.leaf.kind == LeafKind::kKvIndices && plan.phases[each.view.phase].draft_pass > 0;
      if (filled || each.view.batch_size == 0) continue;
      if (std::find(seen.begin(), seen.end(), each) == seen.end()) seen.push_back(each);
    }
  }
  // A forward of one overlapped layer does not read the primary's tables; they are rebuilt all the
  // same.
  for (const LayerRun& run : runs) {
    if (run.halves.empty()) continue;
    if (std::find(seen.begin(), seen.end(), run.tables) == seen.end()) seen.push_back(run.tables);
  }
  return static_cast<int>(seen.size());
}

class CompositionsOnGpu : public test::GpuTest {};

TEST_F(CompositionsOnGpu, HaveOneMetadataKernelALeafInTheGraphAndNoneBeforeIt) {
  for (const char* path : {"fused_in_graph", "fused"}) {
    for (const CaseConfig& config : gpu_cases(path)) {
      CaseByHand parts(config);
      const bool in_graph = std::string_view(path) == "fused_in_graph";
      for (const std::int32_t size : captured_batch_sizes(config)) {
        for (int g = 0; g < parts.c.plan.graphs; ++g) {
          const StepGraph made =
              make_step_graph(parts.c, g, size, parts.context, parts.communicator);
          const Graph graph = capture_nodes(parts.stream.get(), [&] {
            enqueue_step_graph(parts.c, made, parts.communicator, nullptr, parts.stream.get());
          });
          const auto runs = graph_layers(parts.c.metadata->composition(), parts.c.plan, g, size, 5);
          const bool own = !parts.c.plan.phases[parts.c.plan.first_phase(g)].replays_hook;
          EXPECT_EQ(metadata_kernels(graph.get()),
                    in_graph || own ? leaves_of_graph(parts.c.plan, runs) : 0)
              << name_of(config) << ", graph " << g << ", size " << size;
        }
      }
      // What the host does before a replay, itself captured.
      for (int phase = 0; phase < static_cast<int>(parts.c.plan.phases.size()); ++phase) {
        const Graph host = capture_nodes(parts.stream.get(), [&] {
          parts.c.metadata->composition().out_graph(parts.c.view(phase));
        });
        std::size_t nodes = 0;
        test::check_cuda(cudaGraphGetNodes(host.get(), nullptr, &nodes));
        if (in_graph) {
          EXPECT_EQ(nodes, 0u) << name_of(config) << ", phase " << phase;
        }
      }
    }
  }
}

// All paths against the reference before timing, then two blocks of steps whose inputs change.
class EveryComposition : public test::GpuTest, public testing::WithParamInterface<const char*> {
 protected:
  void run(const CaseConfig& config) {
    ControlSegment control = ControlSegment::create(1, 0, 1024, "{}", 1.0);
    const RankContext context{0, 1, &control};
    const std::unique_ptr<Backend> backend = make_cuda_backend(context);
    const CaseChecks prepared = backend->prepare(config);
    ASSERT_TRUE(prepared.bit_equal) << name_of(config) << ": " << prepared.first_failure;
    const std::size_t phases = step_plan(config).phases.size();
    for (std::int64_t block = 0; block < 2; ++block) {
      std::vector<PhaseRow> rows(kSteps * phases);
      for (std::int64_t i = 0; i < kSteps; ++i) {
        const long before = allocation_count();
        backend->run_step(block * kSteps + i, std::span(rows).subspan(i * phases, phases));
        EXPECT_EQ(allocation_count(), before) << name_of(config) << ": a step allocated";
      }
      const CaseChecks checks = backend->finish_block(rows);
      EXPECT_EQ(checks.steps_checked, kSteps) << name_of(config);
      ASSERT_EQ(checks.checksum_failures, 0) << name_of(config) << ": " << checks.first_failure;
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Paths, EveryComposition, testing::ValuesIn(paths()));

TEST_P(EveryComposition, GivesTheExpectedChecksumInEveryStep) {
  for (const CaseConfig& config : gpu_cases(GetParam())) run(config);
}

TEST_P(EveryComposition, GivesItOfAPaddedBatchOfOddHalvesToo) {
  if (std::string_view(GetParam()) == "glue_graph") return;  // for batches without padded rows
  for (CaseConfig config : gpu_cases(GetParam())) {
    config.capture_batch_sizes = {7};
    run(config);
    config.batch_size = 1;
    config.capture_batch_sizes = {1};
    run(config);
  }
}

TEST_P(EveryComposition, GivesItWithEagerForwardsAndTwoStepsAhead) {
  const std::string_view path = GetParam();
  if (path != "aten" && path != "fused_in_graph") return;  // the others differ in nothing here
  for (CaseConfig config : gpu_cases(GetParam())) {
    config.execution = "eager";
    config.loop = "run_ahead";
    run(config);
  }
}

// A rebuild that is left out in one step fails the checksum of the graph that reads it, in that step
// only.
TEST_F(CompositionsOnGpu, CatchARebuildThatIsLeftOut) {
  constexpr std::int64_t kSkipped = 7;
  for (const CaseConfig& config : gpu_cases("fused")) {
    const StepPlan plan = step_plan(config);
    for (int skipped = 0; skipped < static_cast<int>(plan.phases.size()); ++skipped) {
      const PlannedPhase& phase = plan.phases[skipped];
      const bool filled_before = (config.composition == "pattern_b") && phase.draft_pass > 0;
      if (!phase.replays_hook || filled_before) continue;
      CaseByHand parts(config);
      parts.capture();
      for (std::int64_t step = 0; step < kSteps; ++step) {
        parts.device.wait_accept(step - 1);
        for (int p = 0; p < static_cast<int>(plan.phases.size()); ++p) {
          parts.device.copy_inputs(p);
          if (step != kSkipped || p != skipped) parts.device.rebuild_metadata(p);
          if (plan.phases[p].launches) parts.device.launch_graph(plan.phases[p].graph);
        }
        parts.device.stage_inputs(step + 1);
      }
      const CaseChecks checks = parts.failures(kSteps).checks;
      EXPECT_EQ(checks.checksum_failures, 1)
          << name_of(config) << ", phase " << skipped << ": " << checks.first_failure;
      const std::string place = "rank 0, step 7, phase ";
      EXPECT_EQ(checks.first_failure.find(place), 0u) << checks.first_failure;
    }
  }
}

TEST_F(CompositionsOnGpu, NameABatchSizeThatWasNeverCaptured) {
  for (const CaseConfig& config : gpu_cases("fused")) {
    CaseByHand parts(config);
    try {
      parts.c.metadata->composition().out_graph(parts.c.view(0, 6));
      FAIL() << name_of(config);
    } catch (const RunError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("no metadata was captured for a batch of 6 rows"), std::string::npos)
          << text;
    }
  }
}

TEST_F(CompositionsOnGpu, RestoreTheQueryLengthThatCaptureTookFromAnEmptyList) {
  CaseConfig config = small_case("single", "speculative", "aten");
  config.draft_extend = "cumsum";
  CaseByHand parts(config);
  const int last = parts.c.plan.graphs - 1;
  const StepGraph made = make_step_graph(parts.c, last, 5, parts.context, parts.communicator);
  EXPECT_EQ(made.forwards.front().body.metadata.num_out_tokens, 5 * config.draft_tokens);
}

}  // namespace
}  // namespace tpjitter
