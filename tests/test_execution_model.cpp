// Coupling through rank 0, and what eager execution, the glue graph and the scheduler's own stream
// are on the modelled device.
#include <gtest/gtest.h>

#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "harness/contract/error.h"
#include "harness/coupling.h"
#include "harness/host/host_backend.h"
#include "harness/host/host_case.h"

namespace tpjitter {
namespace {

constexpr std::int64_t kLong = 30'000'000'000;
constexpr std::int64_t kShort = 50'000'000;

CaseConfig small_case(const std::string& path) {
  CaseConfig config;
  config.path = path;
  config.batch_size = 5;
  config.context_tokens = 500;
  config.page_size = 16;
  config.layers = 3;
  config.layer_us = 1;
  return config;
}

CaseConfig by_rank0() {
  CaseConfig config;
  config.coupling = "rank0";
  return config;
}

// Notes which steps it was asked to wait for itself.
struct WaitingDevice {
  std::vector<std::int64_t> waits;
  void wait_accept(std::int64_t step) { waits.push_back(step); }
  void check_device(std::int64_t) {}
};

TEST(Coupling, OwnMakesEveryRankWaitForItself) {
  ControlSegment control = ControlSegment::create(2, 0, 1, "", 1.0);
  Coupling coupling(control, 1);
  coupling.prepare(CaseConfig{}, kShort);
  WaitingDevice device;
  for (const int step : {-1, 0, 1}) coupling.wait_accept(device, step);
  EXPECT_EQ(device.waits, (std::vector<std::int64_t>{-1, 0, 1}));
  EXPECT_EQ(control.header().told.load(), 0);
}

TEST(Coupling, ALaunchsPausesDifferByStepAndAreTheSameOnEveryRank) {
  constexpr std::int64_t kUpToNs = 20'000;
  ControlSegment control = ControlSegment::create(2, 0, 1, "", 1.0);
  control.header().step_pause_ns = kUpToNs;
  WaitingDevice device;
  std::set<std::int64_t> pauses;
  for (const int rank : {0, 1}) {
    Coupling coupling(control, rank);
    coupling.prepare(CaseConfig{}, kShort);
    for (std::int64_t step = 0; step < 100; ++step) {
      EXPECT_LT(coupling.pause_of(step), kUpToNs);
      pauses.insert(coupling.pause_of(step));
      const std::int64_t begin_ns = now_ns();
      coupling.wait_accept(device, step);
      EXPECT_GE(now_ns() - begin_ns, coupling.pause_of(step));
    }
  }
  EXPECT_EQ(pauses.size(), 100u) << "of both ranks";
}

TEST(Coupling, ByRank0NobodyGetsAheadOfWhatRank0Tells) {
  constexpr int kRanks = 3, kSteps = 300, kCases = 2;
  ControlSegment control = ControlSegment::create(kRanks, 0, 1, "", 1.0);
  std::atomic<std::int64_t> accepted{-1};  // by rank 0; a case's steps count on
  const auto run = [&](int rank) {
    Coupling coupling(control, rank);
    WaitingDevice device;
    for (std::int64_t c = 0; c < kCases; ++c) {
      coupling.prepare(by_rank0(), kLong);
      coupling.wait_accept(device, -1);
      for (std::int64_t step = 0; step < kSteps; ++step) {
        if (rank == 0) accepted = c * kSteps + step;
        coupling.wait_accept(device, step);
        EXPECT_GE(accepted.load(), c * kSteps + step);
      }
    }
    EXPECT_EQ(device.waits.size(), rank == 0 ? kCases * (kSteps + 1) : 0u);
  };
  std::vector<std::thread> others;
  for (int rank = 1; rank < kRanks; ++rank) others.emplace_back(run, rank);
  run(0);
  for (std::thread& other : others) other.join();
}

TEST(Coupling, ByRank0TheDeadlineNamesRankStepAndRank0) {
  ControlSegment control = ControlSegment::create(2, 0, 1, "", 1.0);
  Coupling coupling(control, 1);
  coupling.prepare(by_rank0(), kShort);
  WaitingDevice device;
  try {
    coupling.wait_accept(device, 7);
    FAIL() << "nobody told";
  } catch (const PeerTimeout& error) {
    EXPECT_STREQ(error.what(),
                 "rank 1, step 7: rank 0 did not tell the accept result within 0.1 s");
    EXPECT_EQ(error.peer(), 0);
  }
}

// A rank that does not wait for its own result must see that its device has failed all the same.
TEST(Coupling, ByRank0TheOthersStillReadTheirOwnDevice) {
  struct FailedDevice {
    std::int64_t checked = -1;
    void wait_accept(std::int64_t) { ADD_FAILURE() << "rank 0's affair"; }
    void check_device(std::int64_t step) {
      checked = step;
      throw PeerTimeout("rank 1, step 3: waited 2.0 s on the GPU for rank 2", 2);
    }
  };
  ControlSegment control = ControlSegment::create(3, 0, 1, "", 1.0);
  Coupling coupling(control, 1);
  coupling.prepare(by_rank0(), kLong);
  FailedDevice device;
  EXPECT_THROW(coupling.wait_accept(device, 3), PeerTimeout);
  EXPECT_EQ(device.checked, 3);
}

TEST(Coupling, ByRank0AnAbortEndsTheWait) {
  ControlSegment control = ControlSegment::create(2, 0, 1, "", 1.0);
  Coupling coupling(control, 1);
  coupling.prepare(by_rank0(), kLong);
  WaitingDevice device;
  std::thread aborter([&] { control.abort(); });
  EXPECT_THROW(coupling.wait_accept(device, 0), RunError);
  aborter.join();
}

TEST(EagerModel, CostsTheHostALaunchForEveryNode) {
  CaseConfig config = small_case("fused_in_graph");
  const ModelledGraph replayed = HostCase(config, DeviceModel{}, 2).graphs[0];
  config.execution = "eager";
  const ModelledGraph eager = HostCase(config, DeviceModel{}, 2).graphs[0];
  EXPECT_EQ(replayed.eager_nodes, 0);
  EXPECT_EQ(eager.eager_nodes, 1 + 4 * config.layers + 1);  // metadata, layers, accept
  EXPECT_EQ(eager.lead_nodes, 3);                           // metadata, attention, all-reduce
  EXPECT_EQ(eager.lead_ns, replayed.lead_ns);
  EXPECT_EQ(eager.rest_ns, replayed.rest_ns);
}

TEST(EagerModel, TheDeviceBeginsWithTheFirstKernelAndEndsAfterTheLastLaunch) {
  ControlSegment control = ControlSegment::create(1, 0, 1, "", 100.0);
  const DeviceModel model;
  ModelledDevice device({0, 1, &control}, model);
  ModelledGraph graph;
  graph.eager_nodes = 50;
  graph.lead_nodes = 2;
  graph.all_reduces = 1;
  graph.lead_ns = 10;  // all of it shorter than its launches
  graph.rest_ns = 10;
  const std::int64_t begin = now_ns();
  device.launch_graph(graph);
  const std::int64_t end = now_ns();
  EXPECT_GE(end - begin, 50 * model.kernel_launch_host_ns);
  device.synchronize();
  const ModelledReplay& replay = device.replay(0);
  EXPECT_GE(replay.begin_ns, begin + model.kernel_launch_host_ns);
  EXPECT_GE(replay.own_ns, begin + 2 * model.kernel_launch_host_ns);
  EXPECT_LE(replay.begin_ns, end - 49 * model.kernel_launch_host_ns);
  EXPECT_GE(replay.end_ns, begin + 50 * model.kernel_launch_host_ns + model.accept_ns);
}

// The graph before lasts longer than all host work, so that only device order counts.
TEST(ScheduleStream, MovesTheSchedulersWritesIntoTheReplayBefore) {
  const DeviceModel model;
  ModelledGraph graph;
  graph.all_reduces = 1;
  graph.lead_ns = 1'000'000;
  graph.rest_ns = 1'000'000;
  for (const std::int64_t read_ns : {std::int64_t{0}, model.metadata_kernel_ns}) {
    ControlSegment control = ControlSegment::create(1, 0, 1, "", 100.0);
    ModelledDevice device({0, 1, &control}, model);
    device.keep_replays(3);
    graph.read_ns = read_ns;
    device.launch_graph(graph);
    device.write_scheduled();
    device.launch_graph(graph);
    device.copy_async();  // one stream: after the replay
    device.launch_kernel(model.kernel_ns);
    device.launch_graph(graph);
    device.synchronize();
    EXPECT_EQ(device.replay(1).begin_ns, device.replay(0).end_ns);
    EXPECT_EQ(device.replay(2).begin_ns, device.replay(1).end_ns + 2 * model.kernel_ns);
  }
}

TEST(ScheduleStream, HoldsTheForwardBackUntilItsWritesAreOver) {
  const DeviceModel model;
  ControlSegment control = ControlSegment::create(1, 0, 1, "", 100.0);
  ModelledDevice device({0, 1, &control}, model);
  device.keep_replays(2);
  ModelledGraph graph;
  graph.all_reduces = 1;
  graph.lead_ns = graph.rest_ns = 1'000'000;
  graph.read_ns = 3'000'000;  // reads to past its end
  device.launch_graph(graph);
  device.write_scheduled();
  device.launch_graph(graph);
  device.synchronize();
  EXPECT_EQ(device.replay(1).begin_ns,
            device.replay(0).begin_ns + graph.read_ns + 2 * model.kernel_ns);
}

// The order of an event before the replay of a graph that reads: the tables are already those of the
// next step. A row that its request leaves then is enough to be caught.
TEST(ScheduleStream, WritesThatAreTooEarlyFailTheChecksumWithRankStepAndPhase) {
  for (const char* mode : {"decode", "speculative"}) {
    CaseConfig config = small_case("fused_in_graph");
    config.mode = mode;
    HostCase c(config, DeviceModel{}, 2);
    const int last_graph = c.plan.graphs - 1;
    const PlannedPhase& phase = c.plan.phases.back();
    ServingState early(c.shape);
    early.advance();
    int caught = 0;
    for (int step = 0; step < 100; ++step) {
      c.advance();
      const bool leaves = !early.advance().resets.empty();
      EXPECT_EQ(c.checksum_fault(3, last_graph), "");
      const std::string fault = c.checksum_fault(3, last_graph, early);
      const std::string place = "rank 3, step " + std::to_string(step) + ", phase " +
                                phase_name(phase.phase) + ", graph " + std::to_string(last_graph);
      if (leaves) {
        EXPECT_EQ(fault.find(place), 0u) << fault;
      }
      caught += leaves;
    }
    EXPECT_GT(caught, 0) << "no request left";
  }
}

// Notes the nodes of each glue graph that is launched.
class NotingExecution final : public HostExecution {
 public:
  kernels::TensorOps& operations(std::int64_t) override { throw std::logic_error("not asked"); }
  void launch_kernel() override { throw std::logic_error("not asked"); }
  void launch_glue_graph(std::int64_t nodes) override { launched.push_back(nodes); }
  bool computes() const override { return false; }

  std::vector<std::int64_t> launched;
};

TEST(GlueGraph, HoldsTheKernelsAndCopiesOfTheOpByOpFormAndNoSync) {
  for (const bool swa : {false, true}) {
    CaseConfig config = small_case("glue_graph");
    config.mode = "speculative";
    config.swa = config.draft_swa = swa;
    config.capture_batch_sizes = {5, 8};  // a tail of swa_out_cache_loc to zero
    ServingState state(ServingShape::of(config));
    NotingExecution execution;
    HostMetadata metadata(config, metadata_path(config.path), state, execution);
    metadata.set_inputs(state.advance());
    execution.launched.clear();  // capture's
    for (int phase = 0; phase < 4; ++phase) metadata.rebuild(phase);
    // The measured totals; a draft pass without its maximum and its copy to the host.
    const std::vector<std::int64_t> nodes =
        swa ? std::vector<std::int64_t>{19, 19, 18, 19} : std::vector<std::int64_t>{11, 11, 10, 11};
    EXPECT_EQ(execution.launched, nodes) << "swa " << swa;
  }
}

}  // namespace
}  // namespace tpjitter
