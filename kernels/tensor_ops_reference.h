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
  void run_page_table(const PageTableArgs& args) override;
  void run_copy(const Tensor& destination, const Tensor& source) override;
  std::int64_t read_scalar(const Tensor& scalar) override;
};

}  // namespace tpjitter::kernels
