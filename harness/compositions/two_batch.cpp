// Two-batch overlap: a primary backend and two children of the same kind, each with tables of its
// own. The children split the padded batch at bs / 2; one without rows is left out, in every hook.
// A forward's first layer is not overlapped and reads the primary's tables; each later layer reads
// both children's. The only layer of a forward with one is overlapped.
#include <algorithm>
#include <array>

#include "harness/compositions/composition.h"

namespace tpjitter {
namespace {

// Rows of child 0 and child 1. Padding stands at the end of the batch.
std::array<BatchView, 2> split(const BatchView& view) {
  std::array<BatchView, 2> children = {view, view};
  children[0].batch_size = view.batch_size / 2;
  children[1].batch_size = view.batch_size - children[0].batch_size;
  children[1].first_row = view.first_row + children[0].batch_size;
  children[1].num_padding = std::min(view.num_padding, children[1].batch_size);
  children[0].num_padding = view.num_padding - children[1].num_padding;
  return children;
}

class TwoBatch final : public MetadataBackend {
 public:
  explicit TwoBatch(LeafSource& leaves)
      : primary_(leaves.make({LeafKind::kPaged, 0})),
        children_{leaves.make({LeafKind::kPaged, 1}), leaves.make({LeafKind::kPaged, 2})} {}

  void capture(const BatchView& view) override {
    primary_->capture(view);
    for_children(view, [](MetadataBackend& child, const BatchView& rows) { child.capture(rows); });
  }
  void out_graph(const BatchView& view) override {
    primary_->out_graph(view);
    for_children(view,
                 [](MetadataBackend& child, const BatchView& rows) { child.out_graph(rows); });
  }
  void in_graph(const BatchView& view) override {
    primary_->in_graph(view);
    for_children(view, [](MetadataBackend& child, const BatchView& rows) { child.in_graph(rows); });
  }
  void append_layers(const BatchView& view, int layers,
                     std::vector<LayerRun>& runs) const override {
    std::vector<LayerRun> whole;
    primary_->append_layers(view, 1, whole);
    if (layers > 1) runs.push_back(whole.front());
    LayerRun overlapped = whole.front();
    overlapped.layers = std::max(1, layers - 1);
    const std::array<BatchView, 2> rows = split(view);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      std::vector<LayerRun> child;
      children_[i]->append_layers(rows[i], 1, child);
      overlapped.halves.push_back(child.front().tables);
    }
    runs.push_back(overlapped);
  }

 private:
  template <class Call>
  void for_children(const BatchView& view, Call call) const {
    const std::array<BatchView, 2> rows = split(view);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (rows[i].batch_size > 0) call(*children_[i], rows[i]);
    }
  }

  std::unique_ptr<MetadataBackend> primary_;
  std::array<std::unique_ptr<MetadataBackend>, 2> children_;
};

}  // namespace

Composition two_batch_composition() {
  return {"two_batch",
          "a primary backend and two children that split the batch in halves",
          "SGLang TboAttnBackend; in speculative mode the EAGLE runner",
          true,
          true,
          [](const StepPlan&, LeafSource& leaves) -> std::unique_ptr<MetadataBackend> {
            return std::make_unique<TwoBatch>(leaves);
          },
          eagle_plan,
          nullptr,
          nullptr};
}

}  // namespace tpjitter
