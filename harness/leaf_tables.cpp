#include "harness/leaf_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "harness/contract/error.h"
#include "harness/leaf_forms.h"
#include "harness/leaf_topk.h"
#include "kernels/metadata_page_table.h"

namespace tpjitter {
namespace {

std::string unequal(const char* what, std::int64_t index, std::int64_t got, std::int64_t expected) {
  return fmt::format("{}[{}] is {}, expected {}", what, index, got, expected);
}

// Page ids of a row, both tables.
std::string row_difference(const kernels::DecodeMetadataArgs& got,
                           const kernels::DecodeMetadataArgs& expected, std::int64_t row,
                           std::int32_t columns) {
  for (std::int32_t column = 0; column < columns; ++column) {
    const std::int64_t at = row * expected.page_table_stride + column;
    if (got.page_table[at] != expected.page_table[at]) {
      return unequal("page_table", at, got.page_table[at], expected.page_table[at]);
    }
    if (expected.swa_page_table != nullptr &&
        got.swa_page_table[at] != expected.swa_page_table[at]) {
      return unequal("swa_page_table", at, got.swa_page_table[at], expected.swa_page_table[at]);
    }
  }
  return {};
}

}  // namespace

void* HostTableMemory::allocate(std::size_t bytes) { return blocks_.emplace_back(bytes).data(); }

void HostTableMemory::fill(void* to, unsigned char value, std::size_t bytes) {
  if (bytes > 0) std::memset(to, value, bytes);
}

void HostTableMemory::write(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

kernels::DecodeBodyShape body_shape(const CaseConfig& config, const PlannedPhase& phase,
                                    int world_size) {
  kernels::DecodeBodyShape shape;
  shape.layers = phase.layers;
  shape.world_size = world_size;
  shape.all_reduce_elements =
      std::int64_t{ServingShape::of(config).batch_size} * phase.query_len * config.hidden_size;
  shape.swa = phase.swa;
  return shape;
}

kernels::PageColumns page_columns(const CaseConfig& config) {
  return config.page_columns == "live" ? kernels::PageColumns::kLive : kernels::PageColumns::kAll;
}

LeafTables::LeafTables(const TableSetup& setup) : setup_(setup) {
  const PhaseArrays& arrays = setup.arrays;
  const char* phase = phase_name(setup.phase.phase);
  if (arrays.seq_lens_cpu == nullptr) {
    throw ConfigError(fmt::format("phase {} has no seq_lens_cpu at capture", phase));
  }
  if (!setup.phase.swa) return;
  if (arrays.full_to_swa == nullptr) {
    throw ConfigError(
        fmt::format("phase {} has sliding windows, but no mapping from full to SWA slots", phase));
  }
  const std::int64_t needed = setup.shape->num_slots + setup.shape->page_size + 1;
  if (arrays.full_to_swa_len != needed) {
    throw ConfigError(fmt::format(
        "phase {}: the mapping from full to SWA slots has {} entries, needed {}: a slot each, a "
        "padding page and the -1 at the end",
        phase, arrays.full_to_swa_len, needed));
  }
}

void LeafTables::poison() {
  for (const auto& [data, bytes] : outputs_) setup_.memory->fill(data, kPoisonByte, bytes);
  write_presets();
}

void LeafTables::copy_from(const LeafTables& other, TableMemory& memory) {
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    memory.read(outputs_[i].first, other.outputs_[i].first, outputs_[i].second);
  }
}

// A draft pass takes the maximum on the device, after its offset; the others on the host, before.
std::int64_t LeafTables::scalar(const BatchView& view) const {
  const std::int64_t* lengths = setup_.arrays.seq_lens_cpu + view.first_row;
  const bool on_device = setup_.phase.inputs == PhaseInputs::kDraft;
  return *std::max_element(lengths, lengths + view.batch_size) +
         (on_device ? setup_.phase.seqlen_offset : 0);
}

kernels::DecodeMetadataArgs LeafTables::input_args(const BatchView& view) const {
  const PlannedPhase& phase = setup_.phase;
  const PhaseArrays& arrays = setup_.arrays;
  kernels::DecodeMetadataArgs a;
  a.req_pool_indices = arrays.req_pool_indices + view.first_row;
  a.seq_lens_type = arrays.seq_lens_type;
  a.seq_lens = static_cast<const std::byte*>(arrays.seq_lens) +
               static_cast<std::int64_t>(a.seq_lens_type) * view.first_row;
  a.req_to_token = arrays.req_to_token;
  a.req_to_token_stride = setup_.shape->max_context;
  a.batch_size = view.batch_size;
  a.seqlen_offset = phase.seqlen_offset;
  a.max_seq_pages = setup_.shape->max_seq_pages;
  a.page_size = setup_.shape->page_size;
  a.page_columns = setup_.columns;
  a.q_mode = phase.q_mode;
  a.q_stride = phase.q_mode == kernels::QueryMode::kStrided ? phase.query_len : 0;
  if (arrays.accept_lens != nullptr) a.q_lens = arrays.accept_lens + view.first_row;
  if (!phase.writes_slots()) return a;
  a.out_cache_loc = arrays.out_cache_loc + std::int64_t{view.first_row} * phase.query_len;
  a.num_out_tokens = std::int64_t{view.batch_size} * phase.query_len;
  return a;
}

PagedTables::PagedTables(const TableSetup& setup) : LeafTables(setup) {
  const ServingShape& shape = *setup.shape;
  const std::int64_t rows = shape.max_batch;
  std::vector<std::int64_t> strided(static_cast<std::size_t>(shape.max_seq_pages));
  for (std::size_t i = 0; i < strided.size(); ++i) {
    strided[i] = static_cast<std::int64_t>(i) * shape.page_size;
  }
  strided_indices_ = constant(strided);
  cache_seqlens_ = allocate<std::int32_t>(rows);
  cu_seqlens_k_ = allocate<std::int32_t>(rows + 1);
  cu_seqlens_q_ = allocate<std::int32_t>(rows + 1);
  page_table_ = allocate<std::int32_t>(rows * shape.max_seq_pages);
  if (setup.phase.swa) {
    swa_page_table_ = allocate<std::int32_t>(rows * shape.max_seq_pages);
    swa_out_len_ = setup.phase.writes_slots() ? rows * setup.phase.query_len : 0;
    if (swa_out_len_ > 0) swa_out_cache_loc_ = allocate<std::int64_t>(swa_out_len_);
  }
  write_presets();
}

void PagedTables::write_presets() {
  preset(cu_seqlens_k_, std::vector<std::int32_t>{0});  // entry 0 is never written by a path
  const bool all = setup_.phase.q_mode == kernels::QueryMode::kPreset;
  std::vector<std::int32_t> queries(all ? static_cast<std::size_t>(setup_.shape->max_batch) + 1
                                        : 1);
  for (std::size_t i = 0; i < queries.size(); ++i) {
    queries[i] = static_cast<std::int32_t>(i) * setup_.phase.query_len;
  }
  preset(cu_seqlens_q_, queries);
}

kernels::DecodeMetadataArgs PagedTables::args(const BatchView& view) const {
  const ServingShape& shape = *setup_.shape;
  kernels::DecodeMetadataArgs a = input_args(view);
  a.cache_seqlens = cache_seqlens_;
  a.cu_seqlens_k = cu_seqlens_k_;
  a.cu_seqlens_q = a.q_mode == kernels::QueryMode::kPreset ? nullptr : cu_seqlens_q_;
  a.page_table = page_table_;
  a.page_table_stride = shape.max_seq_pages;
  if (!setup_.phase.swa) return a;
  a.full_to_swa = setup_.arrays.full_to_swa;
  a.swa_page_table = swa_page_table_;
  a.swa_page_table_stride = shape.max_seq_pages;
  if (!setup_.phase.writes_slots()) return a;
  a.swa_out_cache_loc = swa_out_cache_loc_;
  a.swa_out_len = a.num_out_tokens;
  return a;
}

kernels::AtenMetadataArgs PagedTables::aten_args(const BatchView& view) const {
  kernels::AtenMetadataArgs call;
  call.metadata = args(view);
  call.seq_lens_cpu = setup_.arrays.seq_lens_cpu + view.first_row;
  call.strided_indices = strided_indices_;
  call.pool_rows = setup_.shape->pool_rows;
  call.full_to_swa_len = setup_.arrays.full_to_swa_len;
  call.swa_out_buffer_len = swa_out_len_;
  return call;
}

int PagedTables::rebuild(OpByOp form, kernels::TensorOps& ops, const BatchView& view) {
  if (form == OpByOp::kPageTable) {
    kernels::PageTableMetadataArgs call;
    call.metadata = args(view);
    call.full_to_swa_len = setup_.arrays.full_to_swa_len;
    call.swa_out_buffer_len = swa_out_len_;
    return kernels::rebuild_metadata_page_table(ops, setup_.phase.rebuild, call);
  }
  kernels::AtenMetadataArgs call = aten_args(view);
  if (form == OpByOp::kCaptured) call.static_pages = setup_.shape->max_seq_pages;
  return kernels::rebuild_metadata_aten(ops, setup_.phase.rebuild, call);
}

void PagedTables::reference(const BatchView& view) {
  kernels::reference_decode_metadata(args(view));
}

kernels::GraphForward PagedTables::forward(const BatchView& view, std::int32_t tokens) const {
  kernels::GraphForward forward;
  forward.metadata = args(view);
  forward.metadata.cu_seqlens_q = cu_seqlens_q_;
  if (setup_.phase.writes_slots()) {
    forward.metadata.num_out_tokens = std::int64_t{view.batch_size} * tokens;
  }
  forward.swa = setup_.phase.swa;
  return forward;
}

std::string PagedTables::difference(const LeafTables& expected_tables, const BatchView& view,
                                    bool all_columns) const {
  const kernels::DecodeMetadataArgs got = forward(view, setup_.phase.query_len).metadata;
  const kernels::DecodeMetadataArgs expected =
      expected_tables.forward(view, setup_.phase.query_len).metadata;
  for (std::int32_t row = 0; row < expected.batch_size; ++row) {
    if (got.cache_seqlens[row] != expected.cache_seqlens[row]) {
      return unequal("cache_seqlens", row, got.cache_seqlens[row], expected.cache_seqlens[row]);
    }
    if (got.cu_seqlens_k[row + 1] != expected.cu_seqlens_k[row + 1]) {
      return unequal("cu_seqlens_k", row + 1, got.cu_seqlens_k[row + 1],
                     expected.cu_seqlens_k[row + 1]);
    }
    if (got.cu_seqlens_q[row + 1] != expected.cu_seqlens_q[row + 1]) {
      return unequal("cu_seqlens_q", row + 1, got.cu_seqlens_q[row + 1],
                     expected.cu_seqlens_q[row + 1]);
    }
    const std::int32_t pages =
        (expected.cache_seqlens[row] + expected.page_size - 1) / expected.page_size;
    const std::int32_t live = std::min(pages, expected.max_seq_pages);
    const std::string text =
        row_difference(got, expected, row, all_columns ? expected.max_seq_pages : live);
    if (!text.empty()) return text;
  }
  for (std::int64_t i = 0; i < expected.swa_out_len; ++i) {
    if (got.swa_out_cache_loc[i] != expected.swa_out_cache_loc[i]) {
      return unequal("swa_out_cache_loc", i, got.swa_out_cache_loc[i],
                     expected.swa_out_cache_loc[i]);
    }
  }
  return {};
}

std::unique_ptr<LeafTables> make_tables(LeafKind kind, const TableSetup& setup) {
  if (kind == LeafKind::kKvIndices) return std::make_unique<KvIndicesTables>(setup);
  if (kind == LeafKind::kLinearState) return std::make_unique<LinearStateTables>(setup);
  if (kind == LeafKind::kTopk) return std::make_unique<TopkTables>(setup);
  return std::make_unique<PagedTables>(setup);
}

void link_draft_passes(const std::vector<std::unique_ptr<LeafTables>>& tables) {
  LeafTables* first = nullptr;
  std::vector<LeafTables*> later;
  for (const auto& phase : tables) {
    if (phase->phase().inputs != PhaseInputs::kDraft) continue;
    if (first == nullptr) {
      first = phase.get();
    } else {
      later.push_back(phase.get());
    }
  }
  if (first != nullptr) first->fill_also(later);
}

}  // namespace tpjitter
