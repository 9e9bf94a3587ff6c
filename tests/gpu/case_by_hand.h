// A case on one rank of a GPU, driven by hand from the backend's parts, so that a test can leave a
// stage out or put its own between two.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "harness/control.h"
#include "harness/cuda/communicator.h"
#include "harness/cuda/cuda_case.h"
#include "harness/cuda/cuda_device.h"
#include "harness/cuda/drain.h"
#include "harness/cuda/graphs.h"
#include "harness/cuda/host_wait.h"
#include "harness/cuda/verification.h"
#include "tests/gpu/gpu_test_main.h"

namespace tpjitter::test {

struct Failures {
  std::vector<std::pair<std::int64_t, std::int32_t>> where;  // step and graph of a wrong checksum
  CaseChecks checks;
};

struct CaseByHand {
  // The first step's inputs are in place, its outputs poisoned.
  explicit CaseByHand(const CaseConfig& config)
      : phases(static_cast<int>(step_plan(config).phases.size())),
        communicator(context),
        c(config, context),
        device(context, communicator, c, stream.get()) {
    check_cuda(cudaDeviceSynchronize());
    device.stage_inputs(0);
    for (int phase = 0; phase < phases; ++phase) device.copy_inputs(phase);
    c.poison_outputs(stream.get());
    wait("the first inputs");
  }

  void wait(const char* what) {
    wait_for_stream(context, stream.get(), device.wait_deadline_ns(), what);
  }

  // The graphs that its batch size replays.
  void capture() {
    std::vector<cudaGraphExec_t> handles;
    for (int graph = 0; graph < c.plan.graphs; ++graph) {
      graphs.push_back(
          capture_step_graph(c, graph, c.shape.batch_size, context, communicator, stream.get()));
      handles.push_back(graphs.back().get());
    }
    device.set_graphs(handles);
  }

  // Of the block of the first `steps` steps, all of them launched.
  Failures failures(std::int64_t steps) {
    device.wait_accept(steps - 1);
    wait("the block");
    DrainedStamps stamps;
    fetch_stamps(c, 0, steps, stamps);
    std::vector<PhaseRow> rows(steps * phases);
    Failures failed{{}, StepChecker(context, c.config).check(stamps.graphs, rows)};
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if ((rows[i].flags & kFlagChecksumFailed) == 0) continue;
      const PlannedPhase& phase = c.plan.phases[i % phases];
      EXPECT_TRUE(phase.launches) << "a row without a launch has no checksum";
      failed.where.emplace_back(i / phases, phase.graph);
    }
    return failed;
  }

  int phases;
  ControlSegment control = ControlSegment::create(1, 0, 4096, "{}", 1.0);
  RankContext context{0, 1, &control};
  Communicator communicator;
  Stream stream = make_stream();
  CudaCase c;
  CudaDevice device;
  std::vector<GraphExec> graphs;
};

}  // namespace tpjitter::test
