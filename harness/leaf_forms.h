// The two forms of tables beside paged ones: index lists and linear-attention state.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "harness/leaf_tables.h"
#include "kernels/linear_state.h"
#include "kernels/metadata_kv_indices.h"

namespace tpjitter {

// Tokens before the last one that a sliding-window wrapper lists: openai/gpt-oss has a window of
// 128, of which the engine takes off the token itself.
inline constexpr std::int32_t kKvWindow = 127;

// With sliding windows the window's fill also translates the slots that sliding layers write.
class KvIndicesTables final : public LeafTables {
 public:
  explicit KvIndicesTables(const TableSetup& setup);

  std::int64_t scalar(const BatchView& view) const override;
  void fill_also(const std::vector<LeafTables*>& later) override;
  bool filled_by_another() const override { return setup_.phase.draft_pass > 0; }
  int rebuild(OpByOp form, kernels::TensorOps& ops, const BatchView& view) override;
  void reference(const BatchView& view) override;
  kernels::GraphForward forward(const BatchView& view, std::int32_t tokens) const override;
  std::string difference(const LeafTables& expected, const BatchView& view,
                         bool all_columns) const override;

  // All that a rebuild fills: a window's wrapper before the full one's, and of a first draft pass
  // those of the later ones.
  struct Fills {
    std::array<kernels::KvIndicesArgs, kernels::kMaxKvIndicesFills> args;
    std::size_t count = 0;
    std::span<const kernels::KvIndicesArgs> span() const { return std::span(args).first(count); }
  };
  Fills fills(const BatchView& view) const;

 private:
  void write_presets() override;
  void append_fills(const BatchView& view, Fills& fills) const;
  kernels::KvIndicesWrapper make_wrapper(std::int64_t row_entries);

  kernels::KvIndicesWrapper full_, window_;
  std::int64_t* swa_out_cache_loc_ = nullptr;
  std::int64_t swa_out_len_ = 0;  // of the persistent buffer
  std::vector<KvIndicesTables*> later_;
};

class LinearStateTables final : public LeafTables {
 public:
  explicit LinearStateTables(const TableSetup& setup);

  int rebuild(OpByOp form, kernels::TensorOps& ops, const BatchView& view) override;
  void reference(const BatchView& view) override;
  kernels::GraphForward forward(const BatchView& view, std::int32_t tokens) const override;
  std::string difference(const LeafTables& expected, const BatchView& view,
                         bool all_columns) const override;

  kernels::LinearStateArgs args(const BatchView& view) const;

 private:
  void write_presets() override {}

  const std::int32_t *mapping_, *preset_;
  std::int32_t *state_indices_, *query_start_loc_, *states_;
};

}  // namespace tpjitter
