// Faults that serving engines had in what a runner and its backend keep between steps, each put into
// a copy of a healthy case: the checksum of the graph that reads it fails and names rank, step and
// phase. Hooks that are not forwarded are in test_composition_faults.cpp, races of streams in
// test_execution_model.cpp.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
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

// The hooks of a leaf, with something done in place of the host's rebuild.
using OutGraph = std::function<void(MetadataBackend& leaf, LeafSource& leaves, const BatchView&)>;

class Altered final : public MetadataBackend {
 public:
  Altered(LeafSource& leaves, const LeafId& id, OutGraph out_graph)
      : leaves_(leaves), leaf_(leaves.make(id)), out_graph_(std::move(out_graph)) {}
  void capture(const BatchView& view) override { leaf_->capture(view); }
  void out_graph(const BatchView& view) override { out_graph_(*leaf_, leaves_, view); }
  void in_graph(const BatchView& view) override { leaf_->in_graph(view); }
  void append_layers(const BatchView& view, int layers,
                     std::vector<LayerRun>& runs) const override {
    leaf_->append_layers(view, layers, runs);
  }

 private:
  LeafSource& leaves_;
  std::unique_ptr<MetadataBackend> leaf_;
  OutGraph out_graph_;
};

constexpr LeafId kPaged{LeafKind::kPaged, 0};

// A case of `single` whose backend is altered.
HostCase altered_case(const CaseConfig& config, const OutGraph& out_graph) {
  return HostCase(config, DeviceModel{}, 2,
                  [&](const CaseConfig&, const StepPlan&, LeafSource& leaves) {
                    return std::make_unique<Altered>(leaves, kPaged, out_graph);
                  });
}

void forward(MetadataBackend& leaf, LeafSource&, const BatchView& view) { leaf.out_graph(view); }

CaseConfig padded(const std::string& path) {
  CaseConfig config = small_case("single", "speculative", path);
  config.draft_swa = true;
  config.capture_batch_sizes = {8};
  return config;
}

// All graphs of the next step are right.
void pass_a_step(HostCase& c) {
  c.advance();
  for (int g = 0; g < c.plan.graphs; ++g) ASSERT_EQ(c.checksum_fault(1, g), "");
}

void expect_named(HostCase& c, int graph, std::int64_t step) {
  const PlannedPhase& last = c.plan.phases[c.plan.last_phase(graph) - 1];
  const std::string place = "rank 1, step " + std::to_string(step) + ", phase " +
                            phase_name(last.phase) + ", graph " + std::to_string(graph) +
                            ": checksum ";
  const std::string text = c.checksum_fault(1, graph);
  EXPECT_EQ(text.find(place), 0u) << "found: " << text << ", expected: " << place;
}

// #26655: the view of a draft pass was not bound anew.
TEST(RunnerFaults, ADraftPassBoundToThePassBeforeItIsCaught) {
  HostCase c = altered_case(padded("fused"), [](auto& leaf, auto&, const BatchView& view) {
    BatchView stale = view;
    if (stale.phase == 1) stale.phase = 0;
    leaf.out_graph(stale);
  });
  const std::int64_t step = c.advance().step;
  expect_named(c, 0, step);
  EXPECT_EQ(c.checksum_fault(1, 1), "") << "target-verify has its own";
}

// #26019: objects made anew at replay, while the graph reads those of the capture.
TEST(RunnerFaults, MetadataMadeAnewAtReplayLeavesTheGraphsTablesUnfilled) {
  std::vector<std::unique_ptr<MetadataBackend>> made;
  HostCase c = altered_case(padded("fused"), [&](auto&, LeafSource& leaves, const BatchView& view) {
    made.push_back(leaves.make({LeafKind::kPaged, 7 + static_cast<int>(made.size())}));
    made.back()->capture(view);
    made.back()->out_graph(view);
  });
  const std::int64_t step = c.advance().step;
  for (int g = 0; g < c.plan.graphs; ++g) expect_named(c, g, step);
}

template <class T>
T* writable(const void* data) {
  return static_cast<T*>(const_cast<void*>(data));
}

// #26292, #24743: what a runner must reset in its padded rows.
TEST(RunnerFaults, PaddedRowsWithWhatAnEarlierBatchLeftAreCaught) {
  struct Padding {
    const char* what;
    std::function<void(const PhaseArrays&)> spoil;
  };
  const Padding paddings[] = {
      {"a pool row",
       [](const PhaseArrays& a) { writable<std::int64_t>(a.req_pool_indices)[6] = 2; }},
      {"a length", [](const PhaseArrays& a) { writable<std::int32_t>(a.seq_lens)[6] = 30; }},
      {"a length of 0", [](const PhaseArrays& a) { writable<std::int32_t>(a.seq_lens)[7] = 0; }},
      {"a slot", [](const PhaseArrays& a) { writable<std::int64_t>(a.out_cache_loc)[7 * 4] = 40; }},
  };
  const int verify = 2;
  for (const char* path : {"aten", "page_table_kernel", "fused", "fused_in_graph"}) {
    for (const Padding& padding : paddings) {
      HostCase c = altered_case(padded(path), forward);
      pass_a_step(c);
      const std::int64_t step = c.advance().step;
      padding.spoil(c.computed.inputs(verify).arrays(c.expected.state()));
      SCOPED_TRACE(std::string(path) + ", " + padding.what);
      expect_named(c, c.plan.phases[verify].graph, step);
    }
  }
}

// The tail of the translated slots, left as a larger batch had it.
TEST(RunnerFaults, ATailOfSwaSlotsThatIsNotZeroedIsCaught) {
  HostCase* running = nullptr;
  HostCase c = altered_case(padded("fused"), [&](auto& leaf, auto&, const BatchView& view) {
    leaf.out_graph(view);
    if (running == nullptr || view.phase != 2) return;
    const auto m = running->computed.tables({kPaged, view}).forward(view, 4).metadata;
    m.swa_out_cache_loc[m.swa_out_len - 1] = 48;
  });
  pass_a_step(c);
  running = &c;
  const std::int64_t step = c.advance().step;
  expect_named(c, 1, step);
}

// #25824 and others: slots translated once and used for longer.
TEST(RunnerFaults, ALocationCacheThatIsNotInvalidatedIsCaught) {
  HostCase* running = nullptr;
  std::vector<std::int64_t> cached;
  HostCase c = altered_case(padded("fused"), [&](auto& leaf, auto&, const BatchView& view) {
    leaf.out_graph(view);
    if (running == nullptr || view.phase != 2) return;
    const auto m = running->computed.tables({kPaged, view}).forward(view, 4).metadata;
    if (cached.empty()) cached.assign(m.swa_out_cache_loc, m.swa_out_cache_loc + m.swa_out_len);
    std::copy(cached.begin(), cached.end(), m.swa_out_cache_loc);
  });
  running = &c;
  pass_a_step(c);
  const std::int64_t step = c.advance().step;
  expect_named(c, 1, step);
}

// The host's list of lengths of an earlier step: the op-by-op path sizes its tables by it.
TEST(RunnerFaults, StaleHostLengthsAreCaughtWhereAPathUsesThem) {
  for (const char* path : {"aten", "page_table_kernel", "glue_graph", "fused"}) {
    CaseConfig config = padded(path);
    config.capture_batch_sizes = {5};
    HostCase c = altered_case(config, forward);
    const std::int64_t step = c.advance().step;
    const PhaseArrays arrays = c.computed.inputs(2).arrays(c.expected.state());
    std::fill_n(writable<std::int64_t>(arrays.seq_lens_cpu), 5, 1);
    SCOPED_TRACE(path);
    if (std::string(path) == "aten") {
      expect_named(c, 1, step);
    } else {
      EXPECT_EQ(c.checksum_fault(1, 1), "") << "takes no length from the host";
    }
  }
}

// #31270 and #36335's other half: pages evicted from the window between two reads.
TEST(RunnerFaults, AMappingThatChangesBetweenItsReadsIsCaught) {
  for (const char* path : {"aten", "fused", "fused_in_graph"}) {
    HostCase c = altered_case(padded(path), forward);
    pass_a_step(c);
    const std::int64_t step = c.advance().step;
    auto& mapping = const_cast<std::vector<std::int64_t>&>(c.expected.state().full_to_swa());
    const std::vector<std::int64_t> before = mapping;
    std::fill(mapping.begin(), mapping.end() - 1, 5);
    for (int g = 0; g < c.plan.graphs; ++g) expect_named(c, g, step);
    mapping = before;
    for (int g = 0; g < c.plan.graphs; ++g) EXPECT_EQ(c.checksum_fault(1, g), "");
  }
}

// Guards of every run, where tables are made: before any capture.
TEST(RunnerFaults, SlidingWindowsWithoutAMappingOrWithOneOfTheWrongLengthAreRefused) {
  const CaseConfig config = padded("fused");
  const ServingShape shape = ServingShape::of(config);
  const ServingState state(shape);
  const StepPlan plan = step_plan(config);
  const RunnerInputs inputs(shape, plan.phases[2]);
  HostTableMemory memory;
  TableSetup setup;
  setup.shape = &shape;
  setup.memory = &memory;
  setup.phase = plan.phases[2];
  setup.arrays = inputs.arrays(state);
  const auto refusal = [&](LeafKind kind, const PhaseArrays& arrays) -> std::string {
    TableSetup spoiled = setup;
    spoiled.arrays = arrays;
    try {
      make_tables(kind, spoiled);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return {};
  };
  for (const LeafKind kind : {LeafKind::kPaged, LeafKind::kKvIndices}) {
    EXPECT_EQ(refusal(kind, setup.arrays), "");
    PhaseArrays arrays = setup.arrays;
    arrays.full_to_swa = nullptr;
    arrays.full_to_swa_len = 0;
    EXPECT_NE(refusal(kind, arrays).find("phase target_verify has sliding windows, but no mapping"),
              std::string::npos)
        << refusal(kind, arrays);
    arrays = setup.arrays;
    --arrays.full_to_swa_len;
    const std::string wrong = refusal(kind, arrays);
    const std::int64_t needed = shape.num_slots + shape.page_size + 1;
    EXPECT_NE(wrong.find("has " + std::to_string(needed - 1) + " entries, needed " +
                         std::to_string(needed)),
              std::string::npos)
        << wrong;
    // Seed of the NPU port: a contract under which the mirror may be absent.
    arrays = setup.arrays;
    arrays.seq_lens_cpu = nullptr;
    EXPECT_NE(refusal(kind, arrays).find("phase target_verify has no seq_lens_cpu"),
              std::string::npos)
        << refusal(kind, arrays);
  }
}

}  // namespace
}  // namespace tpjitter
