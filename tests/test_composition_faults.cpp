// Faults that serving engines had in the code between runner and attention backend, each put into a
// copy of a composition: the step's checksum or a guard finds it and names rank, step and phase.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "harness/contract/error.h"
#include "harness/host/host_case.h"
#include "tests/composition_cases.h"

namespace tpjitter {
namespace {

using namespace test;

enum class Fault {
  kNone,
  kNoInGraph,      // the in-graph hook is not forwarded: #29843's review
  kNoOutGraph,     // the host's hook is not forwarded
  kLiveRows,       // the host's hook gets the live rows in place of the padded batch
  kCaptureReplays  // capture takes the replay path: KeyError: bs
};

// A backend whose caller forwards wrongly.
class Misled final : public MetadataBackend {
 public:
  Misled(std::unique_ptr<MetadataBackend> backend, Fault fault)
      : backend_(std::move(backend)), fault_(fault) {}

  void capture(const BatchView& view) override {
    if (fault_ == Fault::kCaptureReplays) return backend_->out_graph(view);
    backend_->capture(view);
  }
  void out_graph(const BatchView& view) override {
    if (fault_ == Fault::kNoOutGraph) return;
    BatchView rows = view;
    if (fault_ == Fault::kLiveRows) {
      rows.batch_size -= rows.num_padding;
      rows.num_padding = 0;
    }
    backend_->out_graph(rows);
  }
  void in_graph(const BatchView& view) override {
    if (fault_ != Fault::kNoInGraph) backend_->in_graph(view);
  }
  void append_layers(const BatchView& view, int layers,
                     std::vector<LayerRun>& runs) const override {
    backend_->append_layers(view, layers, runs);
  }

 private:
  std::unique_ptr<MetadataBackend> backend_;
  Fault fault_;
};

// The leaves of a composition, one of them misled.
class MisledLeaves final : public LeafSource {
 public:
  MisledLeaves(LeafSource& leaves, const LeafId& leaf, Fault fault)
      : leaves_(leaves), leaf_(leaf), fault_(fault) {}
  std::unique_ptr<MetadataBackend> make(const LeafId& id) override {
    if (!(id == leaf_)) return leaves_.make(id);
    return std::make_unique<Misled>(leaves_.make(id), fault_);
  }

 private:
  LeafSource& leaves_;
  LeafId leaf_;
  Fault fault_;
};

HostCase faulty_case(const CaseConfig& config, const LeafId& leaf, Fault fault) {
  return HostCase(config, DeviceModel{}, 2,
                  [&](const CaseConfig& c, const StepPlan& plan, LeafSource& leaves) {
                    MisledLeaves misled(leaves, leaf, fault);
                    return make_composition(c, plan, misled);
                  });
}

constexpr LeafId kPaged{LeafKind::kPaged, 0};
constexpr LeafId kChild0{LeafKind::kPaged, 1};
constexpr LeafId kChild1{LeafKind::kPaged, 2};
constexpr LeafId kKv{LeafKind::kKvIndices, 0};
constexpr LeafId kLinear{LeafKind::kLinearState, 0};
constexpr LeafId kTree{LeafKind::kTopk, 0};

struct Forwarding {
  const char* composition;
  LeafId leaf;
  int phase;  // of a speculative step, one that reads the leaf
};
const Forwarding kForwardings[] = {
    {"single", kPaged, 0},
    {"pattern_b", kKv, 2},
    {"hybrid", kPaged, 1},
    {"hybrid", kKv, 2},
    {"hybrid", kKv, 3},
    {"hybrid_linear", kPaged, 2},
    {"hybrid_linear", kLinear, 2},
    {"two_batch", kPaged, 2},
    {"two_batch", kChild0, 2},
    {"two_batch", kChild1, 0},
    {"multi_layer", kPaged, 3},
    {"multi_layer_one_graph", kPaged, 1},
    {"frozen_kv", kPaged, 0},
    {"tree", kTree, 0},
    {"tree", kTree, 2},
    {"tree", kPaged, 3},
};

// In the second step: the first one's tables may still be those of the capture.
std::string second_fault(HostCase& c, int graph) {
  c.advance();
  for (int g = 0; g < c.plan.graphs; ++g) c.checksum_fault(1, g);
  c.advance();
  return c.checksum_fault(1, graph);
}

void expect_caught(const Forwarding& at, const std::string& path, Fault fault) {
  const CaseConfig config = small_case(at.composition, "speculative", path);
  const std::string name = std::string(at.composition) + ", " + path;
  HostCase good = faulty_case(config, at.leaf, Fault::kNone);
  const int graph = good.plan.phases[at.phase].graph;
  EXPECT_EQ(second_fault(good, graph), "") << name;
  HostCase faulty = faulty_case(config, at.leaf, fault);
  const PlannedPhase& last = faulty.plan.phases[faulty.plan.last_phase(graph) - 1];
  const std::string place = std::string("rank 1, step 1, phase ") + phase_name(last.phase) +
                            ", graph " + std::to_string(graph) + ": checksum ";
  const std::string text = second_fault(faulty, graph);
  EXPECT_EQ(text.find(place), 0u) << name << ": " << text;
}

TEST(CompositionFaults, AnInGraphHookThatIsNotForwardedFailsTheChecksum) {
  for (const Forwarding& at : kForwardings) {
    expect_caught(at, "fused_in_graph", Fault::kNoInGraph);
  }
}

TEST(CompositionFaults, AnOutGraphHookThatIsNotForwardedFailsTheChecksum) {
  for (const Forwarding& at : kForwardings) {
    if (std::string(at.composition) == "multi_layer_one_graph") continue;  // never called
    for (const char* path : {"aten", "page_table_kernel", "glue_graph", "fused"}) {
      if (!path_exists(small_case(at.composition, "speculative", path), metadata_path(path)))
        continue;
      expect_caught(at, path, Fault::kNoOutGraph);
    }
  }
}

TEST(CompositionFaults, CaptureThatTakesTheReplayPathIsRefusedWithTheBatchSize) {
  for (const Forwarding& at : kForwardings) {
    const CaseConfig config = small_case(at.composition, "speculative", "fused");
    try {
      faulty_case(config, at.leaf, Fault::kCaptureReplays);
      FAIL() << at.composition;
    } catch (const RunError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("no metadata was captured for a batch of"), std::string::npos) << text;
      EXPECT_NE(text.find("captured: none"), std::string::npos) << text;
    }
  }
}

// No metadata has that size; where one had, its graph would read stale padded rows.
TEST(CompositionFaults, ARunnerThatPassesTheLiveRowsOfAPaddedBatchIsRefused) {
  CaseConfig config = small_case("single", "speculative", "fused");
  config.batch_size = 4;
  config.capture_batch_sizes = {8};
  HostCase refused = faulty_case(config, kPaged, Fault::kLiveRows);
  refused.advance();
  EXPECT_THROW(refused.checksum_fault(1, 1), RunError);
}

}  // namespace
}  // namespace tpjitter
