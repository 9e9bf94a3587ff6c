// The tensor operations written into a list instead of carried out: what `tpjitter list ops` prints
// and what the counts of a path come from. Needs no GPU and no memory; every scalar that the path
// reads is a number given beforehand.
#pragma once

#include <string>
#include <vector>

#include "kernels/tensor_ops.h"

namespace tpjitter::kernels {

// Work of one rebuild. Copies are memcpy and memset calls, the D2H of a sync too.
struct OperationCounts {
  int calls = 0;  // dispatcher calls, views and host operations included
  int kernel_launches = 0;
  int copies = 0;
  int syncs = 0;
  bool operator==(const OperationCounts&) const = default;
};

// kGraph: the launch of a captured graph, one launch whatever it holds.
enum class OperationKind { kView, kHost, kKernel, kCopy, kSync, kGraph };
// "view", "host", "kernel", "copy", "sync", "graph"
const char* operation_kind_name(OperationKind kind);

// One dispatcher call and what it cost the device.
struct RecordedOperation {
  std::string name;  // ATen's name: "slice", "cumsum", ...
  OperationKind kind = OperationKind::kView;
  IntType dtype = IntType::kInt32;  // of the result, or of the tensor written
  std::vector<std::int64_t> shape;
  int kernel_launches = 0;
  int copies = 0;
  int syncs = 0;
};

// Addresses for a recorder's tensors: distinct, never dereferenced.
class AddressSource {
 public:
  BlockSource block_source();

 private:
  std::uintptr_t next_ = std::uintptr_t{1} << 40;
};

class RecordingTensorOps : public TensorOps {
 public:
  // `scalar` is what every max().item() and sum().item() gives: the longest cached length, or the
  // sum of them, tokens.
  RecordingTensorOps(TensorAllocator& allocator, std::int64_t scalar)
      : TensorOps(allocator), scalar_(scalar) {}

  const std::vector<RecordedOperation>& operations() const { return operations_; }
  OperationCounts counts() const;
  void clear() { operations_.clear(); }

 protected:
  void on_call(const char* name, CallKind kind) override;
  void on_return(const Tensor& result) override;
  void run_convert(const Tensor&, const Tensor&) override { add_launches(1); }
  void run_add(const Tensor&, const Tensor&, std::int64_t) override { add_launches(1); }
  void run_floor_divide(const Tensor&, const Tensor&, std::int64_t) override { add_launches(1); }
  void run_arange(const Tensor&, std::int64_t, std::int64_t) override { add_launches(1); }
  void run_zero(const Tensor&) override { add_launches(1); }
  void run_max(const Tensor&, const Tensor&) override { add_launches(1); }
  void run_gather(const Tensor&, const Tensor&, const Tensor&, const Tensor*) override {
    add_launches(1);
  }
  std::size_t scan_temporary_bytes(std::int64_t, IntType) override { return 1; }
  void run_scan(const Tensor&, const Tensor&, void*, std::size_t) override { add_launches(2); }
  void run_pointwise(const PointwiseArgs&) override { add_launches(1); }
  void run_rows(const Tensor&, const Tensor&, const Tensor*, std::int64_t) override {
    add_launches(1);
  }
  void run_gather_columns(const Tensor&, const Tensor&, const Tensor&) override { add_launches(1); }
  void run_row_sums(const Tensor&, const Tensor&) override { add_launches(1); }
  void run_sort_rows(const Tensor&, const Tensor&) override { add_launches(2); }
  void run_page_table(const PageTableArgs&) override { add_launches(1); }
  void run_kv_gather(const KvGatherArgs&) override { add_launches(1); }
  void run_kv_draft_fills(std::span<const KvIndicesArgs>) override { add_launches(1); }
  void run_topk_draft_expand(const TopkDraftArgs&) override { add_launches(1); }
  void run_copy(const Tensor&, const Tensor&) override;
  std::int64_t read_scalar(const Tensor&) override;
  void read_to_host(const Tensor&) override;
  std::int64_t host_max(const Tensor&) override;
  std::int64_t host_sum(const Tensor&) override;
  std::int64_t host_item(const Tensor&) override;

 private:
  void add_launches(int launches);

  std::vector<RecordedOperation> operations_;
  std::int64_t scalar_;
};

}  // namespace tpjitter::kernels
