// The ATen operations that the op-by-op metadata path is made of. Each public method is one
// dispatcher call; this class decides, as PyTorch does, which kernels, copies and casts it costs,
// and a backend only carries those out: on the host (reference), on a GPU, or into a list. So
// the three cannot disagree about what an operation costs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/tensor.h"
#include "kernels/tensor_allocator.h"

namespace tpjitter::kernels {

struct PageTableArgs;  // metadata_page_table.h

class TensorOps {
 public:
  explicit TensorOps(TensorAllocator& allocator);
  virtual ~TensorOps() = default;
  TensorOps(const TensorOps&) = delete;
  TensorOps& operator=(const TensorOps&) = delete;

  // Views: host work only.
  Tensor slice(const Tensor& tensor, int dim, std::int64_t begin, std::int64_t end);
  Tensor unsqueeze(const Tensor& tensor, int dim);
  Tensor reshape(const Tensor& tensor, std::int64_t rows,
                 std::int64_t columns);  // see reshape_view

  // Results of the following are temporaries, valid until end_rebuild.
  Tensor add(const Tensor& tensor, std::int64_t value);
  Tensor floor_divide(const Tensor& tensor, std::int64_t divisor);
  Tensor cumsum(const Tensor& tensor, IntType dtype);
  Tensor arange(std::int64_t begin, std::int64_t end, std::int64_t step, IntType dtype);
  Tensor to(const Tensor& tensor, IntType dtype);
  // source[indices], source[rows, columns] broadcast against each other. Negative indices wrap.
  Tensor index(const Tensor& source, const Tensor& indices);
  Tensor index(const Tensor& source, const Tensor& rows, const Tensor& columns);

  Tensor max(const Tensor& tensor);         // of a host tensor: no device work
  std::int64_t item(const Tensor& scalar);  // of a device tensor: a D2H copy and a stream sync

  void copy_(const Tensor& destination, const Tensor& source);  // same shape, any dtypes
  void zero_(const Tensor& tensor);

  // A custom kernel among the operations: one call, one launch (metadata_page_table.h).
  void page_table(const PageTableArgs& args);

  // Gives the temporaries back. Safe while their kernels still run: reuse is in stream order.
  void end_rebuild();
  // First error of the device since the start, 0 if none (cudaError_t).
  virtual int status() const { return 0; }

 protected:
  // Around every dispatcher call; `result` is the view, the temporary, or the tensor written.
  // A subclass may add host cost here (op_overhead_ns) or keep a list.
  virtual void on_call(const char* /*name*/) {}
  virtual void on_return(const Tensor& /*result*/) {}

  // One kernel launch each (scan: two). Never called with zero elements. Destinations of all but
  // convert are contiguous; sources may be strided where the destination may.
  virtual void run_convert(const Tensor& destination, const Tensor& source) = 0;
  virtual void run_add(const Tensor& destination, const Tensor& source, std::int64_t value) = 0;
  virtual void run_floor_divide(const Tensor& destination, const Tensor& source,
                                std::int64_t divisor) = 0;
  virtual void run_arange(const Tensor& destination, std::int64_t begin, std::int64_t step) = 0;
  virtual void run_zero(const Tensor& destination) = 0;
  virtual void run_max(const Tensor& destination, const Tensor& source) = 0;
  // Indices are contiguous int64 of the destination's size; columns is null for a 1-D source.
  virtual void run_gather(const Tensor& destination, const Tensor& source, const Tensor& rows,
                          const Tensor* columns) = 0;
  virtual std::size_t scan_temporary_bytes(std::int64_t size, IntType dtype) = 0;
  virtual void run_scan(const Tensor& destination, const Tensor& source, void* temporary,
                        std::size_t temporary_bytes) = 0;
  virtual void run_page_table(const PageTableArgs& args) = 0;
  // Not kernels: one copy on the stream; one copy to the host and a wait for it.
  virtual void run_copy(const Tensor& destination, const Tensor& source) = 0;
  virtual std::int64_t read_scalar(const Tensor& scalar) = 0;
  // Host tensors.
  virtual std::int64_t host_max(const Tensor& tensor);
  virtual std::int64_t host_item(const Tensor& scalar);

 private:
  struct Block {
    void* data;
    std::size_t bytes;
  };
  Tensor make_temporary(std::int64_t rows, std::int64_t columns, int dims, IntType dtype);
  Block allocate_block(std::size_t bytes);
  // An index as PyTorch's kernels want it: int64, expanded, contiguous. Adds at most one kernel a
  // step; blocks it needs are released by the caller once the gather is enqueued.
  Tensor prepare_index(const Tensor& index, std::int64_t rows, std::int64_t columns,
                       std::vector<Block>* blocks);

  TensorAllocator& allocator_;
  std::vector<Block> temporaries_;
  std::vector<Block> index_blocks_;
  std::int64_t host_scalar_ = 0;  // memory of max(host tensor)
};

}  // namespace tpjitter::kernels
