// The ATen operations that the op-by-op metadata path is made of. Each public method is one
// dispatcher call; this class decides, as PyTorch does, which kernels, copies and casts it costs,
// and a backend only carries those out: on the host (reference), on a GPU, or into a list. So
// the three cannot disagree about what an operation costs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/tensor.h"
#include "kernels/tensor_allocator.h"

namespace tpjitter::kernels {

struct PageTableArgs;  // metadata_page_table.h
struct KvIndicesArgs;  // metadata_kv_indices.h
struct KvGatherArgs;   // metadata_kv_indices_ops.h
struct TopkDraftArgs;  // metadata_topk.h

// Elementwise functions with up to two sources. Sources are broadcast views of the destination's
// size; a missing one is null.
enum class Pointwise : std::int32_t {
  kFill = 0,       // scalar
  kAdd = 1,        // a + b
  kSubtract = 2,   // a - b
  kMinimum = 3,    // min(a, scalar)
  kRemainder = 4,  // a modulo scalar, of the scalar's sign
  kSelect = 5,     // mask ? a : b
};
struct PointwiseArgs {
  Tensor destination, a, b, mask;  // data is null where a function has no such source
  std::int64_t scalar = 0;
  Pointwise function = Pointwise::kFill;
};

// What a dispatcher call is, for what it costs a host. The three kinds of index differ in how many
// kernels make their indices int64 and contiguous first: none, one, two.
enum class CallKind { kView, kHost, kKernel, kCopy, kScan, kIndex, kIndexCast, kIndexRows, kRead };
inline constexpr int kCallKinds = 9;

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

  // tensor_ops_rows.cpp: what index lists, linear state and trees need besides. Two tensors of an
  // operation are broadcast against each other.
  Tensor select(const Tensor& tensor, std::int64_t i);  // element of a vector, a view
  Tensor expand(const Tensor& tensor, std::int64_t rows, std::int64_t columns);  // a view
  Tensor empty(std::int64_t size, IntType dtype);  // memory only: not set
  Tensor zeros(std::int64_t size, IntType dtype);
  Tensor add(const Tensor& a, const Tensor& b);
  Tensor sub(const Tensor& a, const Tensor& b);
  Tensor clamp_max(const Tensor& tensor, std::int64_t value);
  Tensor remainder(const Tensor& tensor, std::int64_t divisor);
  Tensor where(const Tensor& mask, const Tensor& a, const Tensor& b);
  Tensor sum(const Tensor& tensor);  // of all elements, int64; of a host tensor: no device work
  Tensor sum_rows(const Tensor& tensor);   // of each row, int64
  Tensor pad_front(const Tensor& vector);  // a 0 before the first entry
  Tensor repeat_interleave(const Tensor& tensor, std::int64_t repeats);  // entries, or whole rows
  Tensor sort_rows(const Tensor& keys);  // each row's order, int64; the keys of a row differ
  Tensor index_rows(const Tensor& source, const Tensor& rows);  // source[rows, :]
  Tensor gather(const Tensor& source, const Tensor& columns);   // of each row its columns
  void fill_(const Tensor& tensor, std::int64_t value);
  void cpu(const Tensor& tensor);  // a D2H copy and a stream sync; the values are not handed on

  // Custom kernels among the operations: one call, one launch (metadata_page_table.h,
  // metadata_kv_indices_ops.h, metadata_kv_indices.h, metadata_topk.h).
  void page_table(const PageTableArgs& args);
  void kv_gather(const KvGatherArgs& args);
  void kv_draft_fills(std::span<const KvIndicesArgs> fills);
  void topk_draft_expand(const TopkDraftArgs& args);

  // Gives the temporaries back. Safe while their kernels still run: reuse is in stream order.
  void end_rebuild();
  // First error of the device since the start, 0 if none (cudaError_t).
  virtual int status() const { return 0; }

 protected:
  // Around every dispatcher call; `result` is the view, the temporary, or the tensor written.
  // A subclass may add host cost here (op_overhead_ns) or keep a list.
  virtual void on_call(const char* /*name*/, CallKind /*kind*/) {}
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
  virtual void run_pointwise(const PointwiseArgs& args) = 0;
  // Row i of the destination is row rows[i] of the source; without rows, row i / repeats.
  virtual void run_rows(const Tensor& destination, const Tensor& source, const Tensor* rows,
                        std::int64_t repeats) = 0;
  virtual void run_gather_columns(const Tensor& destination, const Tensor& source,
                                  const Tensor& columns) = 0;
  virtual void run_row_sums(const Tensor& destination, const Tensor& source) = 0;
  virtual void run_sort_rows(const Tensor& destination, const Tensor& keys) = 0;  // two launches
  virtual void run_page_table(const PageTableArgs& args) = 0;
  virtual void run_kv_gather(const KvGatherArgs& args) = 0;
  virtual void run_kv_draft_fills(std::span<const KvIndicesArgs> fills) = 0;
  virtual void run_topk_draft_expand(const TopkDraftArgs& args) = 0;
  // Not kernels: one copy on the stream; one copy to the host and a wait for it.
  virtual void run_copy(const Tensor& destination, const Tensor& source) = 0;
  virtual std::int64_t read_scalar(const Tensor& scalar) = 0;
  virtual void read_to_host(const Tensor& tensor) = 0;
  // Host tensors.
  virtual std::int64_t host_max(const Tensor& tensor);
  virtual std::int64_t host_sum(const Tensor& tensor);
  virtual std::int64_t host_item(const Tensor& scalar);

 private:
  struct Block {
    void* data;
    std::size_t bytes;
  };
  Tensor pointwise(const char* name, Pointwise function, const Tensor& a, const Tensor* b,
                   const Tensor* mask, std::int64_t scalar);
  Tensor host_scalar(std::int64_t value);
  Tensor make_temporary(std::int64_t rows, std::int64_t columns, int dims, IntType dtype);
  Block allocate_block(std::size_t bytes);
  // An index as PyTorch's kernels want it: int64, expanded, contiguous. Adds at most one kernel a
  // step; blocks it needs are released by the caller once the gather is enqueued.
  Tensor prepare_index(const Tensor& index, std::int64_t rows, std::int64_t columns,
                       std::vector<Block>* blocks);

  TensorAllocator& allocator_;
  std::vector<Block> temporaries_;
  std::vector<Block> index_blocks_;
  std::int64_t host_scalar_ = 0;  // memory of max and sum of a host tensor
};

}  // namespace tpjitter::kernels
