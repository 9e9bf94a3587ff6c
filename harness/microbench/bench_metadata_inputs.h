// Device inputs of bench_metadata: for one shape, several sets of the same sizes whose pool rows do
// not overlap, so that consecutive rebuilds read different memory as consecutive steps do.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/decode_metadata.h"
#include "kernels/metadata_aten.h"

namespace tpjitter::bench {

inline constexpr int kRebuilds = 20;  // input sets of a shape, and rebuilds in a graph

void check(int status, const char* what);  // throws std::runtime_error

struct MetadataShape {
  int batch_size;
  int context_tokens;  // static width = context_tokens / page_size
  int page_size;
  bool swa;
  kernels::QueryMode q_mode;
  std::string name() const;  // "bs8/ctx32768/page64/swa/cumsum"
};

class MetadataInputs {
 public:
  explicit MetadataInputs(const MetadataShape& shape);
  ~MetadataInputs();
  MetadataInputs(const MetadataInputs&) = delete;
  MetadataInputs& operator=(const MetadataInputs&) = delete;

  const MetadataShape& shape() const { return shape_; }
  kernels::DecodeMetadataArgs args(int set, kernels::PageColumns columns) const;
  kernels::AtenMetadataArgs aten_args(int set) const;
  kernels::DecodePhase phase() const;
  double live_pages(int set) const;
  // Of the live outputs, after a rebuild of `set`: weighted by table and column, exact in a double.
  double checksum(int set) const;
  // Algorithmic traffic of one rebuild, bytes, mean over the sets.
  double bytes_per_rebuild(kernels::PageColumns columns) const;

 private:
  template <typename T>
  T* allocate(std::int64_t count);
  template <typename T>
  T* upload(const std::vector<std::int64_t>& values);

  MetadataShape shape_;
  std::int64_t num_slots_ = 0;
  std::vector<void*> blocks_;
  std::vector<std::vector<std::int64_t>> seq_lens_cpu_;  // by set
  std::vector<const void*> req_pool_indices_, seq_lens_;
  std::vector<const std::int64_t*> out_cache_loc_;
  std::int32_t* req_to_token_ = nullptr;
  std::int64_t* full_to_swa_ = nullptr;
  const std::int64_t* strided_indices_ = nullptr;
  const std::int32_t* q_lens_ = nullptr;
  std::int32_t *cache_seqlens_ = nullptr, *cu_seqlens_k_ = nullptr, *cu_seqlens_q_ = nullptr;
  std::int32_t *page_table_ = nullptr, *swa_page_table_ = nullptr;
  std::int64_t* swa_out_cache_loc_ = nullptr;
};

}  // namespace tpjitter::bench
