// Tables of draft trees (step.topk above 1): of a draft pass and of target-verify two objects, the
// cached prefix and the tree (kernels/metadata_topk.h). Of other phases nothing: draft-extend reads
// page tables.
#pragma once

#include <cstdint>
#include <string>

#include "harness/leaf_tables.h"
#include "kernels/metadata_topk.h"

namespace tpjitter {

class TopkTables final : public LeafTables {
 public:
  explicit TopkTables(const TableSetup& setup);

  std::int64_t scalar(const BatchView& view) const override;
  int rebuild(OpByOp form, kernels::TensorOps& ops, const BatchView& view) override;
  void reference(const BatchView& view) override;
  kernels::GraphForward forward(const BatchView& view, std::int32_t tokens) const override;
  std::string difference(const LeafTables& expected, const BatchView& view,
                         bool all_columns) const override;

  bool verifies() const { return setup_.phase.inputs == PhaseInputs::kVerify; }
  kernels::TopkDraftArgs draft_args(const BatchView& view) const;
  kernels::TopkVerifyArgs verify_args(const BatchView& view) const;

 private:
  void write_presets() override;
  kernels::TopkTable make_table(std::int32_t rows, std::int32_t width, std::int32_t page_size);
  void preset_table(const kernels::TopkTable& table, std::int32_t query_step,
                    std::int32_t draft_length);
  // Tokens of a request in the tree's rows: branches, or draft tokens.
  std::int32_t tree_rows() const { return setup_.phase.query_len; }
  // Inputs of either.
  template <class Args>
  Args tree_args(const BatchView& view) const;
  std::int32_t live_rows(const BatchView& view) const { return view.batch_size - view.num_padding; }

  kernels::TopkTable prefix_, expand_;  // rows of the largest batch
};

}  // namespace tpjitter
