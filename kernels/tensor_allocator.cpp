// Size classes and free lists of the temporaries' allocator. Block addresses are kept beside the
// blocks, never in them: they may be GPU memory.
#include "kernels/tensor_allocator.h"

#include <bit>
#include <cstdlib>
#include <new>

namespace tpjitter::kernels {

BlockSource host_block_source() {
  return {.allocate = [](void*, std::size_t bytes) { return std::malloc(bytes); },
          .free = [](void*, void* block) { std::free(block); },
          .context = nullptr};
}

TensorAllocator::~TensorAllocator() {
  for (void* block : all_blocks_) source_.free(source_.context, block);
}

int TensorAllocator::bucket_of(std::size_t bytes) {
  const std::size_t blocks = (bytes + kSmallestBlock - 1) / kSmallestBlock;
  const int bucket = blocks <= 1 ? 0 : static_cast<int>(std::bit_width(blocks - 1));
  if (bucket >= kNumBuckets) throw std::bad_alloc();
  return bucket;
}

void* TensorAllocator::allocate(std::size_t bytes) {
  const int bucket = bucket_of(bytes);
  std::vector<void*>& free_blocks = free_blocks_[bucket];
  if (!free_blocks.empty()) {
    void* block = free_blocks.back();
    free_blocks.pop_back();
    ++blocks_in_use_;
    return block;
  }
  all_blocks_.reserve(all_blocks_.size() + 1);
  free_blocks.reserve(blocks_made_[bucket] + 1);  // so that no release ever allocates
  void* block = source_.allocate(source_.context, kSmallestBlock << bucket);
  if (block == nullptr) throw std::bad_alloc();
  all_blocks_.push_back(block);
  ++blocks_made_[bucket];
  ++source_calls_;
  ++blocks_in_use_;
  return block;
}

void TensorAllocator::release(void* block, std::size_t bytes) {
  free_blocks_[bucket_of(bytes)].push_back(block);
  --blocks_in_use_;
}

}  // namespace tpjitter::kernels
