// A step on a GPU driven by hand from the backend's parts: what graphs hold, and orders that the
// program refuses or never makes. Racing writes of the scheduler, a glue graph of stale lengths, and
// a slot that is reused under run-ahead: the checksum or a guard finds each.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "harness/contract/error.h"
#include "tests/gpu/case_by_hand.h"
#include "tests/gpu/device_ops.h"
#include "tests/gpu/execution_cases.h"

namespace tpjitter {
namespace {

using test::CaseByHand;
using test::execution_case;
using test::Failures;

class ByHand : public test::GpuTest {
 protected:
  static constexpr std::int64_t kSteps = 100;

  static CaseConfig block_of(CaseConfig config) {
    config.block_steps = kSteps;
    return config;
  }
};

TEST_F(ByHand, AGlueGraphHoldsTheMeasuredKernelsAndCopies) {
  for (const bool swa : {false, true}) {
    CaseConfig config = execution_case("glue_graph", "speculative");
    config.swa = config.draft_swa = swa;
    CaseByHand parts(config);
    parts.device.capture_glue_graphs();
    const std::vector<std::size_t> nodes =
        swa ? std::vector<std::size_t>{19, 19, 18, 19} : std::vector<std::size_t>{11, 11, 10, 11};
    for (int phase = 0; phase < 4; ++phase) {
      EXPECT_EQ(parts.device.glue_nodes(phase), nodes[phase]) << "phase " << phase << " " << swa;
    }
  }
}

std::size_t count(const Graph& graph, cudaGraphNodeType wanted) {
  std::size_t size = 0;
  check_cuda(cudaGraphGetNodes(graph.get(), nullptr, &size));
  std::vector<cudaGraphNode_t> nodes(size);
  check_cuda(cudaGraphGetNodes(graph.get(), nodes.data(), &size));
  return std::count_if(nodes.begin(), nodes.end(), [&](cudaGraphNode_t node) {
    cudaGraphNodeType type;
    check_cuda(cudaGraphNodeGetType(node, &type));
    return type == wanted;
  });
}

// One event that a later replay records again would say nothing about an earlier one.
TEST_F(ByHand, EveryStepInFlightHasAReadDoneEventOfItsOwn) {
  for (const char* mode : {"decode", "speculative"}) {
    CaseConfig config = execution_case("fused_in_graph", mode);
    config.read_done = "in_replay";
    config.loop = "run_ahead";
    config.run_ahead_depth = 2;
    CaseByHand parts(config);
    const int last = parts.c.plan.graphs - 1;
    for (int graph = 0; graph < last; ++graph) {
      EXPECT_EQ(parts.device.read_done_events(graph), std::vector<cudaEvent_t>{nullptr});
    }
    const std::vector<cudaEvent_t> events = parts.device.read_done_events(last);
    EXPECT_EQ(std::set<cudaEvent_t>(events.begin(), events.end()).size(), 4u);
    const StepGraph made =
        make_step_graph(parts.c, last, parts.c.shape.batch_size, parts.context, parts.communicator);
    const auto captured = [&](cudaEvent_t event) {
      return capture_nodes(parts.stream.get(), [&] {
        enqueue_step_graph(parts.c, made, parts.communicator, event, parts.stream.get());
      });
    };
    EXPECT_EQ(count(captured(events[0]), cudaGraphNodeTypeEventRecord), 1u);
    EXPECT_EQ(count(captured(nullptr), cudaGraphNodeTypeEventRecord), 0u);
  }
}

TEST_F(ByHand, WithoutTheKeyThereIsNoEventAndOneCaptureAGraph) {
  for (const char* read_done : {"post_replay", "pre_replay"}) {
    CaseConfig config = execution_case("fused", "speculative");
    config.read_done = read_done;
    CaseByHand parts(config);
    for (int graph = 0; graph < parts.c.plan.graphs; ++graph) {
      EXPECT_EQ(parts.device.read_done_events(graph), std::vector<cudaEvent_t>{nullptr});
    }
  }
}

// The engine's silent fault: page columns of the lengths at capture.
TEST_F(ByHand, AGlueGraphOfTheLengthsAtCaptureMissesTheLaterOnes) {
  for (const bool fixed : {true, false}) {
    CaseByHand parts(block_of(execution_case("glue_graph", "decode")));
    kernels::AtenMetadataArgs args = parts.c.aten_args(0);
    if (fixed) args.static_pages = parts.c.shape.max_seq_pages;
    test::DeviceOps ops(parts.stream.get());
    const auto rebuild = [&] {
      check_cuda(kernels::rebuild_metadata_aten(*ops, kernels::DecodePhase::kNormalDecode, args));
    };
    rebuild();
    const GraphExec glue = capture_graph(parts.stream.get(), rebuild);
    parts.capture();
    for (std::int64_t step = 0; step < kSteps; ++step) {
      parts.device.wait_accept(step - 1);
      parts.device.copy_inputs(0);
      check_cuda(cudaGraphLaunch(glue.get(), parts.stream.get()));
      parts.device.launch_graph(0);
      parts.device.stage_inputs(step + 1);
    }
    const Failures failed = parts.failures(kSteps);
    EXPECT_EQ(failed.where.empty(), fixed) << failed.checks.first_failure;
    if (!fixed) {
      EXPECT_EQ(failed.checks.first_failure.find("rank 0, step "), 0u)
          << failed.checks.first_failure;
      EXPECT_NE(failed.checks.first_failure.find("phase normal_decode"), std::string::npos)
          << failed.checks.first_failure;
    }
  }
}

// A ring of the coupled loop's two slots under a host that is two steps ahead: the event and the
// result of a step are recorded again by a later one before anybody has waited for them.
TEST_F(ByHand, AnEventThatIsReusedUnderRunAheadIsRefusedWithRankStepAndPhase) {
  constexpr std::int64_t kAhead = 2;
  for (const bool own_slots : {true, false}) {
    CaseConfig config = block_of(execution_case("fused", "speculative"));
    if (own_slots) config.loop = "run_ahead";
    config.run_ahead_depth = kAhead;
    CaseByHand parts(config);
    parts.capture();
    std::string refused;
    try {
      for (std::int64_t step = 0; step < kSteps; ++step) {
        parts.device.wait_accept(step - 1 - kAhead);
        for (int phase = 0; phase < parts.phases; ++phase) {
          parts.device.copy_inputs(phase);
          parts.device.rebuild_metadata(phase);
          const PlannedPhase& planned = parts.c.plan.phases[phase];
          if (planned.launches) parts.device.launch_graph(planned.graph);
        }
        parts.device.stage_inputs(step + 1);
      }
      EXPECT_TRUE(parts.failures(kSteps).where.empty());
    } catch (const RunError& error) {
      refused = error.what();
    }
    if (own_slots) {
      EXPECT_EQ(refused, "");
    } else {
      EXPECT_EQ(refused.find("rank 0, step 0, phase draft_extend_strided: the GPU accepted step "),
                0u)
          << refused;
    }
    parts.wait("the rest");
  }
}

enum class Writes { kBeforeTheReplay, kBehindTheReplay };

class ReadDoneRace : public ByHand {
 protected:
  // In the first step after which a request leaves, the scheduler's writes of the next step come in
  // around the step's last replay. Gives that step with what failed.
  std::pair<std::int64_t, Failures> race(const CaseConfig& config, Writes writes) {
    CaseByHand parts(block_of(config));
    if (parts.c.shape.live_batch == parts.c.shape.batch_size) parts.device.capture_glue_graphs();
    parts.capture();
    ServingState next(parts.c.shape);
    next.advance();
    std::int64_t raced = -1;
    for (std::int64_t step = 0; step < kSteps; ++step) {
      const StepInputs& inputs = next.advance();
      const bool here = raced < 0 && !inputs.resets.empty();
      if (here) raced = step;
      parts.device.wait_accept(step - 1);
      for (int phase = 0; phase < parts.phases; ++phase) {
        const PlannedPhase& planned = parts.c.plan.phases[phase];
        parts.device.copy_inputs(phase);
        parts.device.rebuild_metadata(phase);
        if (!planned.launches) continue;
        const bool last = planned.graph + 1 == parts.c.plan.graphs;
        if (here && last && writes == Writes::kBeforeTheReplay) apply(parts, inputs);
        parts.device.launch_graph(planned.graph);
        if (here && last && writes == Writes::kBehindTheReplay) apply(parts, inputs);
      }
      parts.device.stage_inputs(step + 1);
    }
    return {raced, parts.failures(kSteps)};
  }

  // On the scheduler's stream, behind an event on the forward stream, and before what the forward
  // stream gets next: one of the orders that an event at this place allows.
  void apply(CaseByHand& parts, const StepInputs& inputs) {
    const Stream schedule = make_stream();
    const Event read_done = make_event();
    const Event written = make_event();
    check_cuda(cudaEventRecord(read_done.get(), parts.stream.get()));
    check_cuda(cudaStreamWaitEvent(schedule.get(), read_done.get()));
    for (const TokenWrite& write : inputs.writes) {
      check_cuda(cudaMemcpyAsync(parts.c.req_to_token.data() + write.flat, &write.slot,
                                 sizeof write.slot, cudaMemcpyHostToDevice, schedule.get()));
    }
    check_cuda(cudaEventRecord(written.get(), schedule.get()));
    check_cuda(cudaStreamWaitEvent(parts.stream.get(), written.get()));
    wait_for_stream(parts.context, schedule.get(), parts.device.wait_deadline_ns(), "the writes");
  }
};

TEST_F(ReadDoneRace, AnEventBeforeAReplayThatReadsIsCaughtWithRankStepAndPhase) {
  for (const char* mode : {"decode", "speculative"}) {
    const CaseConfig config = execution_case("fused_in_graph", mode);
    const StepPlan plan = step_plan(config);
    const auto [step, failed] = race(config, Writes::kBeforeTheReplay);
    ASSERT_GE(step, 0) << "no request left";
    const std::vector<std::pair<std::int64_t, std::int32_t>> only{{step, plan.graphs - 1}};
    EXPECT_EQ(failed.where, only) << mode;
    const std::string place = "rank 0, step " + std::to_string(step) + ", phase " +
                              phase_name(plan.phases.back().phase) + ", graph ";
    EXPECT_EQ(failed.checks.first_failure.find(place), 0u) << failed.checks.first_failure;
  }
}

TEST_F(ReadDoneRace, TheSameWritesBehindTheReplayOrBehindAnEagerRebuildAreHarmless) {
  for (const char* mode : {"decode", "speculative"}) {
    const auto behind = race(execution_case("fused_in_graph", mode), Writes::kBehindTheReplay);
    EXPECT_TRUE(behind.second.where.empty()) << mode << ": " << behind.second.checks.first_failure;
    for (const char* path : {"aten", "page_table_kernel", "glue_graph", "fused"}) {
      const auto eager = race(execution_case(path, mode), Writes::kBeforeTheReplay);
      ASSERT_GE(eager.first, 0) << "no request left";
      EXPECT_TRUE(eager.second.where.empty())
          << path << " " << mode << ": " << eager.second.checks.first_failure;
    }
  }
}

}  // namespace
}  // namespace tpjitter
