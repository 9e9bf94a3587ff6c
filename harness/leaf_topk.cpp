#include "harness/leaf_topk.h"

#include <fmt/format.h>

#include <algorithm>

namespace tpjitter {
namespace {

// The first promised value of an object that differs: lengths, sums and live columns of all rows.
std::string table_difference(const char* which, const kernels::TopkTable& got,
                             const kernels::TopkTable& expected, std::int32_t rows) {
  const auto unequal = [&](const char* what, std::int64_t at, std::int32_t a, std::int32_t b) {
    return fmt::format("{} {}[{}] is {}, expected {}", which, what, at, a, b);
  };
  for (std::int32_t row = 0; row < rows; ++row) {
    const std::int32_t length = expected.cache_seqlens[row];
    if (got.cache_seqlens[row] != length) {
      return unequal("cache_seqlens", row, got.cache_seqlens[row], length);
    }
    if (got.cu_seqlens_k[row + 1] != expected.cu_seqlens_k[row + 1]) {
      return unequal("cu_seqlens_k", row + 1, got.cu_seqlens_k[row + 1],
                     expected.cu_seqlens_k[row + 1]);
    }
    const std::int32_t pages = (length + expected.page_size - 1) / expected.page_size;
    for (std::int32_t column = 0; column < std::min(pages, expected.width); ++column) {
      const std::int64_t at = row * expected.page_table_stride + column;
      if (got.page_table[at] != expected.page_table[at]) {
        return unequal("page_table", at, got.page_table[at], expected.page_table[at]);
      }
    }
  }
  return {};
}

}  // namespace

kernels::TopkTable TopkTables::make_table(std::int32_t rows, std::int32_t width,
                                          std::int32_t page_size) {
  kernels::TopkTable table;
  table.rows = rows;
  table.width = width;
  table.page_table_stride = width;
  table.page_size = page_size;
  table.cache_seqlens = allocate<std::int32_t>(rows);
  table.cu_seqlens_k = allocate<std::int32_t>(std::int64_t{rows} + 1);
  table.cu_seqlens_q = allocate<std::int32_t>(std::int64_t{rows} + 1);
  table.page_table = allocate<std::int32_t>(std::int64_t{rows} * width);
  return table;
}

TopkTables::TopkTables(const TableSetup& setup) : LeafTables(setup) {
  const bool drafts = setup.phase.inputs == PhaseInputs::kDraft;
  if (!drafts && !verifies()) return;
  const ServingShape& shape = *setup.shape;
  prefix_ = make_table(shape.max_batch, shape.max_seq_pages, shape.page_size);
  // Of a draft pass the pages of its slots, one each at most; of target-verify the draft tokens.
  const std::int32_t width = drafts ? setup.phase.draft_pass + 2 : tree_rows();
  expand_ = make_table(shape.max_batch * tree_rows(), width, drafts ? shape.page_size : 1);
  write_presets();
}

void TopkTables::preset_table(const kernels::TopkTable& table, std::int32_t query_step,
                              std::int32_t draft_length) {
  const auto rows = static_cast<std::size_t>(table.rows);
  std::vector<std::int32_t> queries(rows + 1), lengths(rows), sums(rows + 1);
  kernels::preset_topk_table(table.rows, query_step, draft_length, queries.data(), lengths.data(),
                             sums.data());
  preset(const_cast<std::int32_t*>(table.cu_seqlens_q), queries);
  if (draft_length == 0) sums.resize(1);
  preset(table.cu_seqlens_k, sums);
  if (draft_length > 0) preset(table.cache_seqlens, lengths);
}

void TopkTables::write_presets() {
  if (prefix_.rows == 0) return;
  preset_table(prefix_, tree_rows(), 0);
  const bool constant_lengths = !verifies() && expand_.page_size == 1;
  preset_table(expand_, 1, constant_lengths ? setup_.phase.draft_pass + 1 : 0);
  if (verifies()) return;
  // A draft pass never writes its padded rows: they keep slot 0, as at capture.
  preset(expand_.page_table, std::vector<std::int32_t>(static_cast<std::size_t>(expand_.rows) *
                                                       static_cast<std::size_t>(expand_.width)));
}

std::int64_t TopkTables::scalar(const BatchView& view) const {
  const std::int64_t* lengths = setup_.arrays.seq_lens_cpu + view.first_row;
  return *std::max_element(lengths, lengths + view.batch_size);
}

template <class Args>
Args TopkTables::tree_args(const BatchView& view) const {
  const kernels::DecodeMetadataArgs inputs = input_args(view);
  Args args;
  args.req_pool_indices = inputs.req_pool_indices;
  args.seq_lens = inputs.seq_lens;
  args.seq_lens_type = inputs.seq_lens_type;
  args.req_to_token = inputs.req_to_token;
  args.req_to_token_stride = inputs.req_to_token_stride;
  args.batch_size = view.batch_size;
  args.prefix = prefix_;
  args.prefix.rows = view.batch_size;
  args.expand = expand_;
  args.expand.rows = view.batch_size * tree_rows();
  return args;
}

kernels::TopkDraftArgs TopkTables::draft_args(const BatchView& view) const {
  auto args = tree_args<kernels::TopkDraftArgs>(view);
  args.topk = setup_.shape->topk;
  args.num_steps = setup_.shape->draft_steps;
  args.step = setup_.phase.draft_pass;
  args.out_cache_loc = setup_.arrays.tree_cache_loc;
  args.num_out_tokens = std::int64_t{live_rows(view)} * args.topk * args.num_steps;
  return args;
}

kernels::TopkVerifyArgs TopkTables::verify_args(const BatchView& view) const {
  auto args = tree_args<kernels::TopkVerifyArgs>(view);
  args.draft_tokens = tree_rows();
  args.custom_mask = setup_.arrays.custom_mask;
  args.mask_len = setup_.arrays.custom_mask_len;
  args.num_positions = std::int64_t{live_rows(view)} * args.draft_tokens;
  return args;
}

int TopkTables::rebuild(OpByOp form, kernels::TensorOps& ops, const BatchView& view) {
  // Without the host's lengths it can be captured.
  const std::int64_t* lengths =
      form == OpByOp::kAten ? setup_.arrays.seq_lens_cpu + view.first_row : nullptr;
  const std::int64_t pool_rows = setup_.shape->pool_rows;
  if (verifies()) {
    return kernels::rebuild_topk_verify_aten(ops, verify_args(view), lengths, pool_rows);
  }
  return kernels::rebuild_topk_draft_aten(ops, draft_args(view), lengths, pool_rows);
}

void TopkTables::reference(const BatchView& view) {
  if (verifies()) {
    kernels::reference_topk_verify(verify_args(view));
  } else {
    kernels::reference_topk_draft(draft_args(view));
  }
}

kernels::GraphForward TopkTables::forward(const BatchView& view, std::int32_t tokens) const {
  kernels::GraphForward forward;
  forward.metadata = input_args(view);
  forward.metadata.num_out_tokens = std::int64_t{view.batch_size} * tokens;
  forward.tables.kind = kernels::TableKind::kTopk;
  forward.tables.prefix = prefix_;
  forward.tables.prefix.rows = view.batch_size;
  forward.tables.expand = expand_;
  forward.tables.expand.rows = view.batch_size * tree_rows();
  return forward;
}

std::string TopkTables::difference(const LeafTables& expected_tables, const BatchView& view,
                                   bool) const {
  const auto& expected = static_cast<const TopkTables&>(expected_tables);
  const std::string text = table_difference("prefix", prefix_, expected.prefix_, view.batch_size);
  if (!text.empty()) return text;
  return table_difference("expand", expand_, expected.expand_, view.batch_size * tree_rows());
}

}  // namespace tpjitter
