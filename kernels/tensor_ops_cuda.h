// The tensor operations on a GPU, enqueued on one stream. Errors are kept, not thrown: status()
// gives the first. Header without CUDA, for host code.
#pragma once

#include <cstddef>
#include <vector>

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
  void read_to_host(const Tensor& tensor) override;

 private:
  void keep(int status) {
    if (status_ == 0) status_ = status;
  }

  CUstream_st* stream_;
  void* pinned_scalar_;
  std::vector<std::byte> host_copy_;  // of cpu(); grows until the largest has been seen
  int status_ = 0;
};

}  // namespace tpjitter::kernels
