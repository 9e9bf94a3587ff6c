// A caching allocator for the temporaries of the op-by-op path: blocks of power-of-two sizes, kept
// on free lists and handed out again, as PyTorch's allocator does on one stream. It never calls the
// owner's function once every size has been seen, so a warmed-up rebuild can be timed or captured.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tpjitter::kernels {

// Where blocks come from. The owner decides what memory it is (cudaMalloc, malloc).
struct BlockSource {
  void* (*allocate)(void* context, std::size_t bytes) = nullptr;  // null: out of memory
  void (*free)(void* context, void* block) = nullptr;
  void* context = nullptr;
};

// malloc and free, for host memory.
BlockSource host_block_source();

class TensorAllocator {
 public:
  explicit TensorAllocator(BlockSource source) : source_(source) {}
  ~TensorAllocator();
  TensorAllocator(const TensorAllocator&) = delete;
  TensorAllocator& operator=(const TensorAllocator&) = delete;

  void* allocate(std::size_t bytes);                           // throws std::bad_alloc
  void release(void* block, std::size_t bytes);                // the same bytes as at allocate
  std::int64_t source_calls() const { return source_calls_; }  // blocks asked of the source so far
  std::int64_t blocks_in_use() const { return blocks_in_use_; }

 private:
  static constexpr std::size_t kSmallestBlock = 512;  // bytes, as in PyTorch
  static constexpr int kNumBuckets = 32;              // to 1 TiB
  static int bucket_of(std::size_t bytes);

  BlockSource source_;
  std::array<std::vector<void*>, kNumBuckets> free_blocks_;
  std::array<std::size_t, kNumBuckets> blocks_made_{};
  std::vector<void*> all_blocks_;
  std::int64_t source_calls_ = 0;
  std::int64_t blocks_in_use_ = 0;
};

}  // namespace tpjitter::kernels
