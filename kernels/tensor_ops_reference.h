// The tensor operations computed on host memory by plain loops: shows that the op-by-op composition
// is right, bit for bit, without a GPU. "Device" tensors are host memory here, so item() of one
// costs nothing.
#pragma once

#include "kernels/tensor_ops.h"

namespace tpjitter::kernels {

class ReferenceTensorOps : public TensorOps {
 public:
  using TensorOps::TensorOps;  // the allocator must hand out host memory

 protected:
  void run_convert(const Tensor& destination, const Tensor& source) override;
  void run_add(const Tensor& destination, const Tensor& source, std::int64_t value) override;
  void run_floor_divide(const Tensor& destination, const Tensor& source,
                        std::int64_t divisor) override;
  void run_arange(const Tensor& destination, std::int64_t begin, std::int64_t step) override;
  void run_zero(const Tensor& destination) override;
  void run_max(const Tensor& destination, const Tensor& source) override;
  void run_gather(const Tensor& destination, const Tensor& source, const Tensor& rows,
                  const Tensor* columns) override;
  std::size_t scan_temporary_bytes(std::int64_t size, IntType dtype) override;
  void run_scan(const Tensor& destination, const Tensor& source, void* temporary,
                std::size_t temporary_bytes) override;
  void run_pointwise(const PointwiseArgs& args) override;
  void run_rows(const Tensor& destination, const Tensor& source, const Tensor* rows,
                std::int64_t repeats) override;
  void run_gather_columns(const Tensor& destination, const Tensor& source,
                          const Tensor& columns) override;
  void run_row_sums(const Tensor& destination, const Tensor& source) override;
  void run_sort_rows(const Tensor& destination, const Tensor& keys) override;
  void run_page_table(const PageTableArgs& args) override;
  void run_kv_gather(const KvGatherArgs& args) override;
  void run_kv_draft_fills(std::span<const KvIndicesArgs> fills) override;
  void run_topk_draft_expand(const TopkDraftArgs& args) override;
  void run_copy(const Tensor& destination, const Tensor& source) override;
  std::int64_t read_scalar(const Tensor& scalar) override;
  void read_to_host(const Tensor&) override {}
};

}  // namespace tpjitter::kernels
