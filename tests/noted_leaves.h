// Leaves that note which hook reached them with which rows, in place of a device's.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "harness/compositions/composition.h"

namespace tpjitter::test {

struct Call {
  std::string hook;
  LeafId leaf;
  BatchView view;
};

// Leaves that note who called them.
class NotedLeaves final : public LeafSource {
 public:
  std::vector<Call> calls;
  std::vector<LeafId> made;

  std::unique_ptr<MetadataBackend> make(const LeafId& id) override {
    made.push_back(id);
    return std::make_unique<Leaf>(*this, id);
  }

  // Of one hook, in order, and forgets them all.
  std::vector<TableRows> take(const std::string& hook) {
    std::vector<TableRows> rows;
    for (const Call& call : calls) {
      EXPECT_EQ(call.hook, hook);
      rows.push_back({call.leaf, call.view});
    }
    calls.clear();
    return rows;
  }

 private:
  class Leaf final : public MetadataBackend {
   public:
    Leaf(NotedLeaves& leaves, const LeafId& id) : leaves_(leaves), id_(id) {}
    void capture(const BatchView& view) override { note("capture", view); }
    void out_graph(const BatchView& view) override { note("out_graph", view); }
    void in_graph(const BatchView& view) override { note("in_graph", view); }
    void append_layers(const BatchView& view, int layers,
                       std::vector<LayerRun>& runs) const override {
      runs.push_back({{id_, view}, {}, layers});
    }

   private:
    void note(const char* hook, const BatchView& view) {
      leaves_.calls.push_back({hook, id_, view});
    }
    NotedLeaves& leaves_;
    LeafId id_;
  };
};

struct Noted {
  explicit Noted(const CaseConfig& config)
      : plan(step_plan(config)), backend(make_composition(config, plan, leaves)) {}
  NotedLeaves leaves;
  StepPlan plan;
  std::unique_ptr<MetadataBackend> backend;
};

inline constexpr LeafId kPaged{LeafKind::kPaged, 0};
inline constexpr LeafId kKv{LeafKind::kKvIndices, 0};
inline constexpr LeafId kLinear{LeafKind::kLinearState, 0};

}  // namespace tpjitter::test
