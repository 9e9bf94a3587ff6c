// The op-by-op path's operations on the modelled device: real dispatch code, views and allocator;
// each kernel and copy costs the model's host and device time and computes nothing.
#pragma once

#include "harness/call_overhead.h"
#include "harness/host/modelled_device.h"
#include "kernels/tensor_ops.h"

namespace tpjitter {

class ModelledTensorOps final : public kernels::TensorOps {
 public:
  ModelledTensorOps(kernels::TensorAllocator& allocator, ModelledDevice& device,
                    CallOverhead overhead)
      : TensorOps(allocator), device_(device), overhead_(std::move(overhead)) {}

  // What the next max().item() or sum().item() of a device tensor gives: nothing is computed here.
  void set_scalar(std::int64_t value) { scalar_ = value; }
  void begin_rebuild() { overhead_.begin_rebuild(); }

 protected:
  using Tensor = kernels::Tensor;
  // The extra host cost per dispatcher call that a scenario asks for.
  void on_call(const char*, kernels::CallKind kind) override { overhead_.begin(kind); }
  void on_return(const Tensor&) override { overhead_.end(); }
  void run_convert(const Tensor&, const Tensor&) override { kernel(); }
  void run_add(const Tensor&, const Tensor&, std::int64_t) override { kernel(); }
  void run_floor_divide(const Tensor&, const Tensor&, std::int64_t) override { kernel(); }
  void run_arange(const Tensor&, std::int64_t, std::int64_t) override { kernel(); }
  void run_zero(const Tensor&) override { kernel(); }
  void run_max(const Tensor&, const Tensor&) override { kernel(); }
  void run_gather(const Tensor&, const Tensor&, const Tensor&, const Tensor*) override { kernel(); }
  std::size_t scan_temporary_bytes(std::int64_t, kernels::IntType) override { return 512; }
  void run_scan(const Tensor&, const Tensor&, void*, std::size_t) override {
    kernel();
    kernel();
  }
  void run_pointwise(const kernels::PointwiseArgs&) override { kernel(); }
  void run_rows(const Tensor&, const Tensor&, const Tensor*, std::int64_t) override { kernel(); }
  void run_gather_columns(const Tensor&, const Tensor&, const Tensor&) override { kernel(); }
  void run_row_sums(const Tensor&, const Tensor&) override { kernel(); }
  void run_sort_rows(const Tensor&, const Tensor&) override {
    kernel();
    kernel();
  }
  void run_page_table(const kernels::PageTableArgs&) override { kernel(); }
  void run_kv_gather(const kernels::KvGatherArgs&) override { kernel(); }
  void run_kv_draft_fills(std::span<const kernels::KvIndicesArgs>) override { kernel(); }
  void run_topk_draft_expand(const kernels::TopkDraftArgs&) override { kernel(); }
  void run_copy(const Tensor&, const Tensor&) override { device_.copy_async(); }
  std::int64_t read_scalar(const Tensor&) override {
    device_.copy_async();
    device_.synchronize();
    return scalar_;
  }
  void read_to_host(const Tensor& tensor) override { read_scalar(tensor); }

 private:
  void kernel() { device_.launch_kernel(device_.model().kernel_ns); }

  ModelledDevice& device_;
  CallOverhead overhead_;
  std::int64_t scalar_ = 0;
};

}  // namespace tpjitter
