// The tables of one attention backend in one phase of a step, sized for the largest captured batch,
// and their rebuild on each path. A form of tables is one class behind LeafTables, which the checker,
// the host backend and the GPU share: what differs between them is where the memory is, and whose
// arrays the rebuild reads.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "harness/compositions/metadata_backend.h"
#include "harness/contract/scenario.h"
#include "harness/serving_state.h"
#include "harness/step_plan.h"
#include "harness/table_memory.h"
#include "kernels/decode_body.h"
#include "kernels/decode_metadata.h"
#include "kernels/tensor_ops.h"

namespace tpjitter {

// What a phase's rebuild reads, as its runner holds it: [max_batch] rows each, at addresses that
// stay, in the memory of the tables but for seq_lens_cpu.
struct PhaseArrays {
  const std::int64_t* req_pool_indices = nullptr;
  const void* seq_lens = nullptr;
  kernels::IntType seq_lens_type = kernels::IntType::kInt32;
  const std::int32_t* accept_lens = nullptr;    // draft-extend only
  const std::int64_t* out_cache_loc = nullptr;  // [max_batch, query_len]; null: writes no slot
  const std::int32_t* req_to_token = nullptr;
  const std::int64_t* full_to_swa = nullptr;
  std::int64_t full_to_swa_len = 0;
  const std::int64_t* seq_lens_cpu = nullptr;  // the host's mirror of seq_lens
  // Draft trees: slots of all branches in a draft pass, [max_batch, topk, draft_steps]; the mask in
  // target-verify.
  const std::int64_t* tree_cache_loc = nullptr;
  const std::uint8_t* custom_mask = nullptr;
  std::int64_t custom_mask_len = 0;
};

// `shape`, `memory` and the arrays outlive the tables.
struct TableSetup {
  const ServingShape* shape = nullptr;
  TableMemory* memory = nullptr;
  PhaseArrays arrays;
  PlannedPhase phase;
  kernels::PageColumns columns = kernels::PageColumns::kAll;
};

// Rebuilds of more than one operation.
enum class OpByOp {
  kAten,
  kPageTable,
  kCaptured,  // aten's as it can be captured: nothing waits, and no length sizes anything
};

// Shape of the all-reduces of the graph that holds `phase`.
kernels::DecodeBodyShape body_shape(const CaseConfig& config, const PlannedPhase& phase,
                                    int world_size);
kernels::PageColumns page_columns(const CaseConfig& config);

class LeafTables {
 public:
  // Throws ConfigError where the phase lacks what every rebuild of it may read: the host's lengths,
  // and with sliding windows a mapping of the right length.
  explicit LeafTables(const TableSetup& setup);
  virtual ~LeafTables() = default;

  const PlannedPhase& phase() const { return setup_.phase; }
  // Rebuilds read the scheduler's table there from now on.
  void read_from(const std::int32_t* req_to_token) { setup_.arrays.req_to_token = req_to_token; }
  // Outputs get a value that no path writes, presets what they rely on.
  void poison();
  // The outputs of `other`, which has the same setup but lives in `memory`.
  void copy_from(const LeafTables& other, TableMemory& memory);

  // What a max().item() or sum().item() of the device gives in this rebuild; on a host tensor, the
  // longest cached length without the phase's own tokens.
  virtual std::int64_t scalar(const BatchView& view) const;
  // This rebuild fills those of later draft passes too, in one go, where the form does so.
  virtual void fill_also(const std::vector<LeafTables*>& /*later*/) {}
  // Its rebuild is an earlier phase's: there is nothing to do.
  virtual bool filled_by_another() const { return false; }

  // Status of the operations: 0 or a cudaError_t.
  virtual int rebuild(OpByOp form, kernels::TensorOps& ops, const BatchView& view) = 0;
  virtual void reference(const BatchView& view) = 0;  // in host memory
  // A forward of one layer over these tables, with `tokens` query tokens a row.
  virtual kernels::GraphForward forward(const BatchView& view, std::int32_t tokens) const = 0;
  // The first promised value in which this differs from `expected`, both in host memory; empty when
  // none does. Live values only: the rest may differ between paths. `all_columns`: dead columns of
  // a page table too.
  virtual std::string difference(const LeafTables& expected, const BatchView& view,
                                 bool all_columns) const = 0;

 protected:
  // Inputs, sizes and locations; no tables. The base of every form's arguments.
  kernels::DecodeMetadataArgs input_args(const BatchView& view) const;
  // An output.
  template <class T>
  T* allocate(std::int64_t elements) {
    const std::size_t bytes = static_cast<std::size_t>(elements) * sizeof(T);
    void* data = setup_.memory->allocate(bytes);
    outputs_.push_back({data, bytes});
    return static_cast<T*>(data);
  }
  template <class T>
  void preset(T* to, const std::vector<T>& values) {
    setup_.memory->write(to, values.data(), values.size() * sizeof(T));
  }
  // An input that no step changes.
  template <class T>
  const T* constant(const std::vector<T>& values) {
    void* data = setup_.memory->allocate(values.size() * sizeof(T));
    setup_.memory->write(data, values.data(), values.size() * sizeof(T));
    return static_cast<const T*>(data);
  }
  virtual void write_presets() = 0;

  TableSetup setup_;

 private:
  std::vector<std::pair<void*, std::size_t>> outputs_;
};

std::unique_ptr<LeafTables> make_tables(LeafKind kind, const TableSetup& setup);
// Of one leaf, by phase: lets the first draft pass fill for the others where its form does so.
void link_draft_passes(const std::vector<std::unique_ptr<LeafTables>>& tables);

// What layers of the run read. `forward_of(rows)` gives a leaf's forward over its tables.
template <class ForwardOf>
kernels::GraphForward forward_of_run(const LayerRun& run, ForwardOf forward_of) {
  kernels::GraphForward forward = forward_of(run.tables);
  forward.layers = run.layers;
  if (run.halves.empty()) return forward;
  forward.tables.kind = kernels::TableKind::kTwoBatch;
  for (std::size_t half = 0; half < run.halves.size(); ++half) {
    if (run.halves[half].view.batch_size == 0) continue;
    forward.tables.halves[half] = forward_of(run.halves[half]).metadata;
  }
  return forward;
}

class PagedTables final : public LeafTables {
 public:
  explicit PagedTables(const TableSetup& setup);

  int rebuild(OpByOp form, kernels::TensorOps& ops, const BatchView& view) override;
  void reference(const BatchView& view) override;
  kernels::GraphForward forward(const BatchView& view, std::int32_t tokens) const override;
  std::string difference(const LeafTables& expected, const BatchView& view,
                         bool all_columns) const override;

  // Of a rebuild: a preset cu_seqlens_q is null, it is not a path's to write.
  kernels::DecodeMetadataArgs args(const BatchView& view) const;
  kernels::AtenMetadataArgs aten_args(const BatchView& view) const;

 private:
  void write_presets() override;

  const std::int64_t* strided_indices_;
  std::int64_t swa_out_len_ = 0;  // of the persistent buffer
  std::int32_t *cache_seqlens_, *cu_seqlens_k_, *cu_seqlens_q_, *page_table_;
  std::int32_t* swa_page_table_ = nullptr;
  std::int64_t* swa_out_cache_loc_ = nullptr;
};

}  // namespace tpjitter
