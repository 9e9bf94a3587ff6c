// The tensor operations on a GPU, enqueued on one stream. Errors are kept, not thrown: status()
// gives the first. Header without CUDA, for host code.
#pragma once

#include "kernels/tensor_ops.h"

struct CUstream_st;  // *cudaStream_t

namespace tpjitter::kernels {

class CudaTensorOps : public TensorOps {
 public:
  // The allocator hands out device memory. `pinned_scalar`: 8 bytes of pinned host memory that
  // item() copies into. Warm up once before capturing, so that the allocator asks for nothing then;
  // item() of a device tensor cannot be captured.
  CudaTensorOps(TensorAllocator& allocator, CUstream_st* stream, void* pinned_scalar)
      : TensorOps(allocator), stream_(stream), pinned_scalar_(pinned_scalar) {}

  void set_stream(CUstream_st* stream) { stream_ = stream; }
  int status() const override { return status_; }

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

 private:
  void keep(int status) {
    if (status_ == 0) status_ = status;
  }

  CUstream_st* stream_;
  void* pinned_scalar_;
  int status_ = 0;
};

}  // namespace tpjitter::kernels
