// What fills and programmatic dependent launch make of a captured step graph: its nodes, its edges,
// the counters that full-attention layers leave behind, and the right checksums in every
// combination.
// An edge is programmatic by its type whenever its consumer was launched with the attribute and its
// producer is a kernel. It lets the two overlap only when the producer triggers, which none but the
// body's own kernels do: those edges are the chain, and those that a fill can break.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "harness/contract/error.h"
#include "harness/control.h"
#include "harness/cuda/communicator.h"
#include "harness/cuda/cuda_backend.h"
#include "harness/cuda/cuda_case.h"
#include "harness/cuda/graphs.h"
#include "harness/step_plan.h"
#include "tests/gpu/gpu_test_main.h"

namespace tpjitter {
namespace {

constexpr std::int32_t kBatch = 8;
constexpr std::int64_t kSteps = 10;

CaseConfig small_case(bool swa, bool baked, bool pdl) {
  CaseConfig config;
  config.path = "fused_in_graph";
  config.swa = config.draft_swa = swa;
  config.batch_size = kBatch;
  config.context_tokens = 500;
  config.page_size = 16;
  config.hidden_size = 256;
  config.layers = 4;
  config.layer_us = 5;
  config.nodes_per_layer = 6;
  config.fills = baked ? "baked" : "persistent";
  config.pdl = pdl;
  config.block_steps = kSteps;
  return config;
}

// The name of a kernel node's function; empty for other nodes.
std::string kernel_of(cudaGraphNode_t node) {
  cudaGraphNodeType type;
  test::check_cuda(cudaGraphNodeGetType(node, &type));
  if (type != cudaGraphNodeTypeKernel) return {};
  cudaKernelNodeParams params{};
  test::check_cuda(cudaGraphKernelNodeGetParams(node, &params));
  const char* name = nullptr;
  test::check_cuda(cudaFuncGetName(&name, params.func));
  return name;
}

bool triggers(cudaGraphNode_t producer) {
  const std::string name = kernel_of(producer);
  for (const std::string_view body : {"attention_kernel", "load_kernel", "empty_kernel",
                                      "head_kernel", "accept_kernel", "one_shot_pull_kernel"}) {
    if (name.find(body) != std::string::npos) return true;
  }
  return false;
}

struct GraphCounts {
  int nodes = 0;
  int fills = 0;
  int programmatic = 0;  // edges by type
  int chained = 0;       // of these, from a kernel that triggers
};

GraphCounts counts_of(cudaGraph_t graph) {
  GraphCounts counts;
  std::size_t size = 0;
  test::check_cuda(cudaGraphGetNodes(graph, nullptr, &size));
  std::vector<cudaGraphNode_t> nodes(size);
  test::check_cuda(cudaGraphGetNodes(graph, nodes.data(), &size));
  counts.nodes = static_cast<int>(size);
  for (cudaGraphNode_t node : nodes) {
    if (kernel_of(node).find("fill_kernel") != std::string::npos) ++counts.fills;
  }
  test::check_cuda(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &size));
  std::vector<cudaGraphNode_t> from(size), to(size);
  std::vector<cudaGraphEdgeData> edges(size);
  test::check_cuda(cudaGraphGetEdges(graph, from.data(), to.data(), edges.data(), &size));
  EXPECT_EQ(static_cast<int>(size), counts.nodes - 1) << "one stream: the graph is a line";
  for (std::size_t i = 0; i < size; ++i) {
    if (edges[i].type != cudaGraphDependencyTypeProgrammatic) {
      EXPECT_EQ(edges[i].from_port, cudaGraphKernelNodePortDefault);
      continue;
    }
    EXPECT_EQ(edges[i].from_port, cudaGraphKernelNodePortProgrammatic);
    ++counts.programmatic;
    if (triggers(from[i])) ++counts.chained;
  }
  return counts;
}

class BodyGraph : public test::GpuTest {
 protected:
  void SetUp() override {
    test::GpuTest::SetUp();
    if (IsSkipped()) return;
    test::check_cuda(cudaSetDevice(0));
    communicator = std::make_unique<Communicator>(context);
    stream = make_stream();
  }

  GraphCounts counts(const CaseConfig& config) {
    const CudaCase c(config, context);
    const Graph graph = capture_nodes(stream.get(), [&] {
      enqueue_step_graph(c, 0, kBatch, context, *communicator, stream.get());
    });
    return counts_of(graph.get());
  }

  // A replay over the case's first buffers: its inputs do not matter to the counters.
  void replay(const CudaCase& c) {
    test::check_cuda(cudaDeviceSynchronize());
    const GraphExec graph = capture_step_graph(c, 0, kBatch, context, *communicator, stream.get());
    test::check_cuda(cudaGraphLaunch(graph.get(), stream.get()));
    test::check_cuda(cudaStreamSynchronize(stream.get()));
  }

  ControlSegment control = ControlSegment::create(1, 0, 1024, "{}", 1.0);
  RankContext context{0, 1, &control};
  std::unique_ptr<Communicator> communicator;
  Stream stream;
};

// With sliding windows, every other layer; layer 0 is sliding.
int full_layers(const CaseConfig& config) {
  return static_cast<int>(config.swa ? config.layers / 2 : config.layers);
}

TEST_F(BodyGraph, HoldsThreeMoreNodesAFullAttentionLayerWithBakedFills) {
  for (const bool swa : {false, true}) {
    for (const bool pdl : {false, true}) {
      const CaseConfig config = small_case(swa, false, pdl);
      const GraphCounts persistent = counts(config);
      const GraphCounts baked = counts(small_case(swa, true, pdl));
      // Stamp, metadata, the layers, head, accept.
      EXPECT_EQ(persistent.nodes, 2 + config.layers * config.nodes_per_layer + 2);
      EXPECT_EQ(persistent.fills, 0);
      EXPECT_EQ(baked.fills, 3 * full_layers(config));
      EXPECT_EQ(baked.nodes, persistent.nodes + baked.fills);
    }
  }
}

TEST_F(BodyGraph, MarksItsBeginByANodeOfItsOwnWhereFillsComeFirst) {
  for (const bool swa : {false, true}) {
    CaseConfig config = small_case(swa, false, false);
    config.path = "fused";
    const GraphCounts persistent = counts(config);
    EXPECT_EQ(persistent.nodes, config.layers * config.nodes_per_layer + 2);
    config.fills = "baked";
    // A sliding layer 0 has no fills.
    EXPECT_EQ(counts(config).nodes, persistent.nodes + 3 * full_layers(config) + (swa ? 0 : 1));
  }
}

TEST_F(BodyGraph, HasNoProgrammaticEdgesWithoutPdl) {
  for (const bool baked : {false, true}) {
    EXPECT_EQ(counts(small_case(false, baked, false)).programmatic, 0);
    EXPECT_EQ(counts(small_case(true, baked, false)).programmatic, 0);
  }
}

// Whatever the producer: every node of each layer, head and accept, all of which follow a kernel
// here. A fill takes the place of the producer, so the number stays.
TEST_F(BodyGraph, HasAProgrammaticEdgeIntoEveryBodyKernelWithPdl) {
  for (const bool swa : {false, true}) {
    for (const bool baked : {false, true}) {
      const CaseConfig config = small_case(swa, baked, true);
      EXPECT_EQ(counts(config).programmatic, config.layers * config.nodes_per_layer + 2);
    }
  }
}

// From every node of a layer to what follows it, all-reduces among them, and from head to accept.
TEST_F(BodyGraph, ChainsTheBodyKernelsAndAllReducesWithPdl) {
  for (const bool swa : {false, true}) {
    for (const std::int64_t fillers : {0, 1, 3}) {
      CaseConfig config = small_case(swa, false, true);
      config.nodes_per_layer = 4 + fillers;
      EXPECT_EQ(counts(config).chained, config.layers * config.nodes_per_layer + 1);
    }
  }
}

// A full-attention layer's fills stand between its attention and the layer before it. Layer 0 has
// none before it: there is no pair to break.
TEST_F(BodyGraph, LosesALinkOfTheChainAtEachLayerWithBakedFills) {
  for (const bool swa : {false, true}) {
    for (const std::int64_t nodes : {4, 6}) {  // a filler or an all-reduce ahead of the attention
      CaseConfig config = small_case(swa, false, true);
      config.nodes_per_layer = nodes;
      const int persistent = counts(config).chained;
      config.fills = "baked";
      const int broken = swa ? full_layers(config) : full_layers(config) - 1;
      EXPECT_GT(broken, 0);
      EXPECT_EQ(counts(config).chained, persistent - broken);
    }
  }
}

TEST_F(BodyGraph, LeavesEveryCounterAtZero) {
  for (const bool baked : {false, true}) {
    for (const bool pdl : {false, true}) {
      const CudaCase c(small_case(true, baked, pdl), context);
      replay(c);
      EXPECT_EQ(c.counter_fault(0, 0), "");
    }
  }
}

TEST_F(BodyGraph, NamesRankStepAndRowOfACounterThatIsNotReset) {
  const CudaCase c(small_case(false, false, false), context);
  const std::int32_t dirty = 5;
  test::check_cuda(
      cudaMemcpy(c.attention_counters.data() + 3, &dirty, sizeof dirty, cudaMemcpyHostToDevice));
  replay(c);
  const std::string fault = c.counter_fault(0, 17);
  EXPECT_NE(fault.find("rank 0, step 17: the attention counter of row 3 is "), std::string::npos)
      << fault;
}

// A graph without the fills, over buffers that rely on them.
TEST_F(BodyGraph, FindsCountersThatNobodyZeroed) {
  CudaCase c(small_case(true, true, false), context);
  c.config.fills = "persistent";
  replay(c);
  EXPECT_NE(c.counter_fault(0, 0), "");
}

TEST_F(BodyGraph, RefusesACounterBufferThatIsTooSmallWithTheSizeNeeded) {
  CudaCase c(small_case(false, false, true), context);
  EXPECT_EQ(c.attention_counters.size(), kBatch + 1u);
  c.attention_counters = DeviceBuffer<std::int32_t>(3);
  try {
    capture_step_graph(c, 0, kBatch, context, *communicator, stream.get());
    FAIL() << "captured over too few counters";
  } catch (const ConfigError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("3 rows and a forward needs 8"), std::string::npos) << text;
    EXPECT_NE(text.find("= 9 rows"), std::string::npos) << text;
  }
  // The launcher itself refuses as well, and the stream is still good for a capture.
  const CudaCase good(small_case(false, false, true), context);
  kernels::DecodeBodyArgs args =
      make_step_graph(good, 0, kBatch, context, *communicator).forwards.front().body;
  args.scratch.counter_rows = kBatch - 1;
  EXPECT_EQ(kernels::launch_attention(args, 0, stream.get()), cudaErrorInvalidValue);
  replay(good);
}

TEST_F(BodyGraph, SizesTheCountersForDraftTokensOfEveryRunningRequest) {
  CaseConfig config = small_case(false, false, false);
  config.mode = "speculative";
  config.draft_tokens = 6;
  config.capture_batch_sizes = {1, 8, 16};
  EXPECT_EQ(CudaCase(config, context).attention_counters.size(), 17u * 6u);
}

class BackendWithFills
    : public test::GpuTest,
      public testing::WithParamInterface<std::tuple<const char*, const char*, bool, bool>> {
 protected:
  CaseConfig config() const {
    const auto [mode, path, baked, pdl] = GetParam();
    CaseConfig config = small_case(/*swa=*/true, baked, pdl);
    config.mode = mode;
    config.path = path;
    config.draft_swa = false;
    config.batch_size = 6;
    config.capture_batch_sizes = {4, 8};
    return config;
  }

  void expect_right_checksums(const CaseConfig& config) {
    ControlSegment control = ControlSegment::create(1, 0, 1024, "{}", 1.0);
    const RankContext context{0, 1, &control};
    const std::unique_ptr<Backend> backend = make_cuda_backend(context);
    const CaseChecks prepared = backend->prepare(config);
    EXPECT_TRUE(prepared.bit_equal) << prepared.first_failure;
    const std::size_t phases = step_plan(config).phases.size();
    for (std::int64_t block = 0; block < 2; ++block) {
      std::vector<PhaseRow> rows(kSteps * phases);
      for (std::int64_t i = 0; i < kSteps; ++i) {
        backend->run_step(block * kSteps + i, std::span(rows).subspan(i * phases, phases));
      }
      const CaseChecks checks = backend->finish_block(rows);
      EXPECT_EQ(checks.steps_checked, kSteps);
      EXPECT_EQ(checks.checksum_failures, 0) << checks.first_failure;
      for (const PhaseRow& row : rows) {
        if ((row.flags & kFlagNoLaunch) != 0) continue;
        EXPECT_GT(row.gpu_begin_ns, 0);
        EXPECT_LT(row.gpu_begin_ns, row.first_all_reduce_own_ns);
        EXPECT_LT(row.first_all_reduce_end_ns, row.gpu_end_ns);
      }
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Combinations, BackendWithFills,
                         testing::Combine(testing::Values("decode", "speculative"),
                                          testing::Values("fused", "fused_in_graph"),
                                          testing::Bool(), testing::Bool()));

TEST_P(BackendWithFills, GivesTheExpectedChecksumInEveryStep) { expect_right_checksums(config()); }

// Rows of several blocks, and in verify blocks of several rows: 64 blocks for 256.
TEST_P(BackendWithFills, CountsMoreRowsThanBlocksAndMoreBlocksThanRows) {
  CaseConfig many = config();
  many.capture_batch_sizes = {};
  many.batch_size = 64;
  expect_right_checksums(many);
  CaseConfig few = config();
  few.capture_batch_sizes = {};
  few.batch_size = 3;
  few.hidden_size = 8192;
  expect_right_checksums(few);
}

}  // namespace
}  // namespace tpjitter
