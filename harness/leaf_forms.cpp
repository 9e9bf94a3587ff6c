#include "harness/leaf_forms.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "kernels/metadata_kv_indices_ops.h"

namespace tpjitter {
namespace {

// The first of `count` entries in which the two differ; empty when none does.
template <class T>
std::string first_difference(const std::string& what, const T* got, const T* expected,
                             std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    if (got[i] == expected[i]) continue;
    return fmt::format("{}[{}] is {}, expected {}", what, i, got[i], expected[i]);
  }
  return {};
}

std::string wrapper_difference(const std::string& which, const kernels::KvIndicesWrapper& got,
                               const kernels::KvIndicesWrapper& expected, std::int32_t rows) {
  std::string text =
      first_difference(which + "kv_indptr", got.kv_indptr, expected.kv_indptr, rows + 1);
  if (!text.empty()) return text;
  const std::int64_t entries = std::min<std::int64_t>(expected.kv_indptr[rows], expected.capacity);
  text = first_difference(which + "kv_indices", got.kv_indices, expected.kv_indices, entries);
  if (!text.empty() || expected.qo_indptr == nullptr) return text;
  return first_difference(which + "qo_indptr", got.qo_indptr, expected.qo_indptr, rows + 1);
}

bool has_queries(const PlannedPhase& phase) {
  return phase.inputs == PhaseInputs::kVerify || phase.inputs == PhaseInputs::kDraftExtend;
}

// Draft steps and target-verify bring their prefix sums to the host; decode and the fast plan of
// draft-extend make them from the host's mirror of the lengths.
kernels::HostPlan host_plan(kernels::DecodePhase phase) {
  const bool reads_device =
      phase == kernels::DecodePhase::kDraftDecode || phase == kernels::DecodePhase::kTargetVerify;
  return reads_device ? kernels::HostPlan::kDevice : kernels::HostPlan::kMirror;
}

}  // namespace

kernels::KvIndicesWrapper KvIndicesTables::make_wrapper(std::int64_t row_entries) {
  const std::int64_t rows = setup_.shape->max_batch;
  kernels::KvIndicesWrapper wrapper;
  wrapper.kv_indptr = allocate<std::int32_t>(rows + 1);
  wrapper.capacity = rows * row_entries;
  wrapper.kv_indices = allocate<std::int32_t>(wrapper.capacity);
  wrapper.kv_last_page_len = constant(std::vector<std::int32_t>(static_cast<std::size_t>(rows), 1));
  if (has_queries(setup_.phase)) wrapper.qo_indptr = allocate<std::int32_t>(rows + 1);
  return wrapper;
}

KvIndicesTables::KvIndicesTables(const TableSetup& setup) : LeafTables(setup) {
  const std::int64_t a_row = setup.shape->max_context + setup.phase.seqlen_offset;
  full_ = make_wrapper(a_row);
  if (setup.phase.swa) {
    window_ = make_wrapper(std::min<std::int64_t>(a_row, kKvWindow + 1));
    swa_out_len_ = std::int64_t{setup.shape->max_batch} * setup.phase.query_len;
    swa_out_cache_loc_ = allocate<std::int64_t>(swa_out_len_);
  }
  write_presets();
}

void KvIndicesTables::write_presets() {
  for (const kernels::KvIndicesWrapper& wrapper : {full_, window_}) {
    if (wrapper.kv_indptr != nullptr) preset(wrapper.kv_indptr, std::vector<std::int32_t>{0});
  }
}

void KvIndicesTables::fill_also(const std::vector<LeafTables*>& later) {
  for (LeafTables* tables : later) later_.push_back(static_cast<KvIndicesTables*>(tables));
  const std::size_t fills = (1 + later_.size()) * (setup_.phase.swa ? 2 : 1);
  if (fills > kernels::kMaxKvIndicesFills) {
    throw std::invalid_argument("index lists: too many draft passes for one launch");
  }
}

// The length of the window's list, which its translation reads.
std::int64_t KvIndicesTables::scalar(const BatchView& view) const {
  const std::int64_t* lengths = setup_.arrays.seq_lens_cpu + view.first_row;
  std::int64_t entries = 0;
  for (std::int32_t row = 0; row < view.batch_size; ++row) {
    entries += std::min<std::int64_t>(lengths[row] + setup_.phase.seqlen_offset, kKvWindow + 1);
  }
  return entries;
}

void KvIndicesTables::append_fills(const BatchView& view, Fills& fills) const {
  kernels::DecodeMetadataArgs inputs = input_args(view);
  if (has_queries(setup_.phase)) inputs.q_stride = setup_.phase.query_len;
  const kernels::KvIndicesArgs full = kernels::kv_indices_args(setup_.phase.rebuild, inputs, full_);
  if (setup_.phase.swa) {
    kernels::KvIndicesArgs& window = fills.args[fills.count++];
    window = kernels::with_sliding_window(full, kKvWindow, setup_.arrays.full_to_swa, window_);
    window.swa_out.out_cache_loc = inputs.out_cache_loc;
    window.swa_out.swa_out_cache_loc = swa_out_cache_loc_;
    window.swa_out.num_locations = window.swa_out.length = inputs.num_out_tokens;
  }
  fills.args[fills.count++] = full;
}

KvIndicesTables::Fills KvIndicesTables::fills(const BatchView& view) const {
  Fills all;
  append_fills(view, all);
  for (const KvIndicesTables* pass : later_) pass->append_fills(view, all);
  return all;
}

int KvIndicesTables::rebuild(OpByOp form, kernels::TensorOps& ops, const BatchView& view) {
  const Fills all = fills(view);
  kernels::KvIndicesOpsArgs args;
  args.fills = all.span();
  args.seq_lens_cpu = setup_.arrays.seq_lens_cpu + view.first_row;
  args.full_to_swa_len = setup_.arrays.full_to_swa_len;
  args.swa_out_buffer_len = swa_out_len_;
  args.plan = host_plan(setup_.phase.rebuild);
  if (form == OpByOp::kAten) {
    return kernels::rebuild_kv_indices_aten(ops, setup_.phase.rebuild, args);
  }
  return kernels::rebuild_kv_indices_device(ops, setup_.phase.rebuild, args);
}

void KvIndicesTables::reference(const BatchView& view) {
  const Fills all = fills(view);
  for (const kernels::KvIndicesArgs& fill : all.span()) kernels::reference_kv_indices(fill);
}

kernels::GraphForward KvIndicesTables::forward(const BatchView& view, std::int32_t tokens) const {
  kernels::GraphForward forward;
  forward.metadata = input_args(view);
  forward.metadata.num_out_tokens = std::int64_t{view.batch_size} * tokens;
  forward.swa = setup_.phase.swa;
  forward.metadata.swa_out_cache_loc = swa_out_cache_loc_;
  if (setup_.phase.swa) forward.metadata.swa_out_len = forward.metadata.num_out_tokens;
  forward.tables.kind = kernels::TableKind::kKvIndices;
  forward.tables.kv = full_;
  forward.tables.swa_kv = window_;
  return forward;
}

std::string KvIndicesTables::difference(const LeafTables& expected_tables, const BatchView& view,
                                        bool) const {
  const auto& expected = static_cast<const KvIndicesTables&>(expected_tables);
  std::string text = wrapper_difference("", full_, expected.full_, view.batch_size);
  if (!text.empty() || !setup_.phase.swa) return text;
  text = wrapper_difference("window ", window_, expected.window_, view.batch_size);
  if (!text.empty()) return text;
  return first_difference("swa_out_cache_loc", swa_out_cache_loc_, expected.swa_out_cache_loc_,
                          std::int64_t{view.batch_size} * setup_.phase.query_len);
}

LinearStateTables::LinearStateTables(const TableSetup& setup) : LeafTables(setup) {
  const ServingShape& shape = *setup.shape;
  // State slots of the pool rows: a permutation without fixed points but one, so that a wrong row
  // shows.
  std::vector<std::int32_t> mapping(static_cast<std::size_t>(shape.pool_rows));
  for (std::int32_t row = 0; row < shape.pool_rows; ++row) {
    mapping[row] = shape.pool_rows - 1 - row;
  }
  std::vector<std::int32_t> starts(static_cast<std::size_t>(shape.max_batch) + 1);
  for (std::size_t i = 0; i < starts.size(); ++i) {
    starts[i] = static_cast<std::int32_t>(i) * setup.phase.query_len;
  }
  mapping_ = constant(mapping);
  preset_ = constant(starts);
  states_ =
      static_cast<std::int32_t*>(setup.memory->allocate(sizeof(std::int32_t) * mapping.size()));
  state_indices_ = allocate<std::int32_t>(shape.max_batch);
  query_start_loc_ = allocate<std::int32_t>(shape.max_batch + 1);
}

kernels::LinearStateArgs LinearStateTables::args(const BatchView& view) const {
  kernels::LinearStateArgs args;
  // Not written without zero_padded_requests.
  args.req_pool_indices =
      const_cast<std::int64_t*>(setup_.arrays.req_pool_indices + view.first_row);
  args.mapping = mapping_;
  args.mapping_len = setup_.shape->pool_rows;
  args.state_indices = state_indices_;
  args.query_start_loc = query_start_loc_;
  args.query_start_preset = preset_;
  args.batch_size = view.batch_size;
  args.num_padding = view.num_padding;
  args.query_len = setup_.phase.query_len;
  return args;
}

// The engine has no other form: one function serves capture and replay, and nothing in it waits.
int LinearStateTables::rebuild(OpByOp, kernels::TensorOps& ops, const BatchView& view) {
  return kernels::rebuild_linear_state_aten(ops, setup_.phase.rebuild, args(view));
}

void LinearStateTables::reference(const BatchView& view) {
  kernels::reference_linear_state(setup_.phase.rebuild, args(view));
}

kernels::GraphForward LinearStateTables::forward(const BatchView& view, std::int32_t) const {
  kernels::GraphForward forward;
  forward.metadata.batch_size = view.batch_size;
  forward.metadata.page_size = setup_.shape->page_size;
  forward.tables.kind = kernels::TableKind::kHybridLinear;
  forward.tables.linear.state_indices = state_indices_;
  forward.tables.linear.query_start_loc = query_start_loc_;
  forward.tables.linear.states = states_;
  forward.tables.linear.state_slots = setup_.shape->pool_rows;
  return forward;
}

std::string LinearStateTables::difference(const LeafTables& expected_tables, const BatchView& view,
                                          bool) const {
  const auto& expected = static_cast<const LinearStateTables&>(expected_tables);
  std::string text =
      first_difference("state_indices", state_indices_, expected.state_indices_, view.batch_size);
  if (!text.empty()) return text;
  return first_difference("query_start_loc", query_start_loc_, expected.query_start_loc_,
                          view.batch_size + 1);
}

}  // namespace tpjitter
