// Fills pool and mapping on the device, with whole pages at random places as a paged KV cache holds
// them; lengths are uniform between a quarter of the context and all of it. Everything follows from
// one hash, so that scripts/compare_peers.py can give its peers the same inputs.
#include <algorithm>
#include <stdexcept>
#include <type_traits>

#include "harness/microbench/bench_metadata_inputs.h"

namespace tpjitter::bench {
namespace {

constexpr int kThreads = 256;
constexpr int kSwaOutTail = 16;           // entries past the live ones, so that zeroing is real
constexpr std::uint64_t kRowStep = 7919;  // a prime: visits every pool row once
constexpr std::uint64_t kLengthSeed = 1ull << 32;
constexpr std::uint64_t kLocationSeed = 2ull << 32;
constexpr std::int64_t kFewestSlots = 1 << 21;  // 16 MiB of mapping: sets share few of its lines

__host__ __device__ std::uint64_t hash(std::uint64_t x) {  // splitmix64's finaliser
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

__global__ void fill_pool_kernel(std::int32_t* req_to_token, std::int64_t count,
                                 std::int64_t context, int page_size, std::int64_t num_slots) {
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count;
       i += std::int64_t{gridDim.x} * kThreads) {
    const std::int64_t row = i / context;
    const std::int64_t token = i % context;
    const auto page = static_cast<std::uint64_t>(row * context + token / page_size + 1);
    const auto num_pages = static_cast<std::uint64_t>(num_slots / page_size);
    const auto first = static_cast<std::int64_t>(hash(page) % num_pages) * page_size;
    req_to_token[i] = static_cast<std::int32_t>(first + token % page_size);
  }
}

__global__ void fill_mapping_kernel(std::int64_t* full_to_swa, std::int64_t num_slots,
                                    std::int64_t count) {
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count;
       i += std::int64_t{gridDim.x} * kThreads) {
    const auto slot = static_cast<std::int64_t>(hash(static_cast<std::uint64_t>(i) + 77) %
                                                static_cast<std::uint64_t>(num_slots));
    full_to_swa[i] = i == count - 1 ? -1 : slot;
  }
}

}  // namespace

void check(int status, const char* what) {
  if (status == cudaSuccess) return;
  throw std::runtime_error(std::string(what) + ": " +
                           cudaGetErrorString(static_cast<cudaError_t>(status)));
}

std::string MetadataShape::name() const {
  constexpr const char* kModes[] = {"preset", "cumsum", "strided"};
  return "bs" + std::to_string(batch_size) + "/ctx" + std::to_string(context_tokens) + "/page" +
         std::to_string(page_size) + (swa ? "/swa/" : "/full/") + kModes[static_cast<int>(q_mode)];
}

template <typename T>
T* MetadataInputs::allocate(std::int64_t count) {
  void* block = nullptr;
  check(cudaMalloc(&block, static_cast<std::size_t>(count) * sizeof(T)), "cudaMalloc of inputs");
  blocks_.push_back(block);
  check(cudaMemset(block, 0, static_cast<std::size_t>(count) * sizeof(T)), "cudaMemset");
  return static_cast<T*>(block);
}

template <typename T>
T* MetadataInputs::upload(const std::vector<std::int64_t>& values) {
  const std::vector<T> narrow(values.begin(), values.end());
  T* data = allocate<T>(static_cast<std::int64_t>(narrow.size()));
  check(cudaMemcpy(data, narrow.data(), narrow.size() * sizeof(T), cudaMemcpyHostToDevice),
        "cudaMemcpy of inputs");
  return data;
}

MetadataInputs::MetadataInputs(const MetadataShape& shape) : shape_(shape) {
  const std::int64_t batch = shape.batch_size;
  const std::int64_t context = shape.context_tokens;
  const std::int64_t width = context / shape.page_size;
  num_slots_ = std::max(batch * context, kFewestSlots);
  const std::int64_t pool = kRebuilds * batch * context;
  req_to_token_ = allocate<std::int32_t>(pool);
  fill_pool_kernel<<<4096, kThreads>>>(req_to_token_, pool, context, shape.page_size, num_slots_);
  if (shape.swa) {
    const std::int64_t entries = num_slots_ + shape.page_size + 1;
    full_to_swa_ = allocate<std::int64_t>(entries);
    fill_mapping_kernel<<<4096, kThreads>>>(full_to_swa_, num_slots_, entries);
    swa_page_table_ = allocate<std::int32_t>(batch * width);
    swa_out_cache_loc_ = allocate<std::int64_t>(batch + kSwaOutTail);
  }
  check(cudaGetLastError(), "filling inputs");
  cache_seqlens_ = allocate<std::int32_t>(batch);
  cu_seqlens_k_ = allocate<std::int32_t>(batch + 1);
  cu_seqlens_q_ = allocate<std::int32_t>(batch + 1);
  page_table_ = allocate<std::int32_t>(batch * width);
  q_lens_ = upload<std::int32_t>(std::vector<std::int64_t>(static_cast<std::size_t>(batch), 4));
  std::vector<std::int64_t> strided;
  for (std::int64_t i = 0; i < width; ++i) strided.push_back(i * shape.page_size);
  strided_indices_ = upload<std::int64_t>(strided);

  std::vector<std::int64_t> rows(static_cast<std::size_t>(kRebuilds * batch));
  for (std::size_t k = 0; k < rows.size(); ++k) {
    rows[k] = static_cast<std::int64_t>(k * kRowStep % rows.size());
  }
  for (int set = 0; set < kRebuilds; ++set) {
    std::vector<std::int64_t> lengths, locations;
    for (std::int64_t i = 0; i < batch; ++i) {
      const auto k = static_cast<std::uint64_t>(set * batch + i);
      const auto spread = static_cast<std::uint64_t>(context - context / 4 + 1);
      lengths.push_back(context / 4 + static_cast<std::int64_t>(hash(k + kLengthSeed) % spread));
      locations.push_back(static_cast<std::int64_t>(hash(k + kLocationSeed) %
                                                    static_cast<std::uint64_t>(num_slots_)));
    }
    const auto first = rows.begin() + set * batch;
    req_pool_indices_.push_back(upload<std::int64_t>({first, first + batch}));
    seq_lens_.push_back(shape.q_mode == kernels::QueryMode::kPreset
                            ? static_cast<const void*>(upload<std::int32_t>(lengths))
                            : upload<std::int64_t>(lengths));
    out_cache_loc_.push_back(upload<std::int64_t>(locations));
    seq_lens_cpu_.push_back(std::move(lengths));
  }
  check(cudaDeviceSynchronize(), "filling inputs");
}

MetadataInputs::~MetadataInputs() {
  for (void* block : blocks_) cudaFree(block);
}

kernels::DecodeMetadataArgs MetadataInputs::args(int set, kernels::PageColumns columns) const {
  kernels::DecodeMetadataArgs args;
  args.req_pool_indices = req_pool_indices_[set];
  args.seq_lens = seq_lens_[set];
  args.seq_lens_type = shape_.q_mode == kernels::QueryMode::kPreset ? kernels::IntType::kInt32
                                                                    : kernels::IntType::kInt64;
  args.req_to_token = req_to_token_;
  args.q_lens = q_lens_;
  args.cache_seqlens = cache_seqlens_;
  args.cu_seqlens_k = cu_seqlens_k_;
  args.cu_seqlens_q = cu_seqlens_q_;
  args.page_table = page_table_;
  args.req_to_token_stride = shape_.context_tokens;
  args.max_seq_pages = shape_.context_tokens / shape_.page_size;
  args.page_table_stride = args.max_seq_pages;
  args.batch_size = shape_.batch_size;
  args.page_size = shape_.page_size;
  args.q_mode = shape_.q_mode;
  args.q_stride = 4;
  args.page_columns = columns;
  if (shape_.swa) {
    args.full_to_swa = full_to_swa_;
    args.out_cache_loc = out_cache_loc_[set];
    args.swa_page_table = swa_page_table_;
    args.swa_page_table_stride = args.max_seq_pages;
    args.swa_out_cache_loc = swa_out_cache_loc_;
    args.swa_out_len = shape_.batch_size + kSwaOutTail;
    args.num_out_tokens = shape_.batch_size;
  }
  return args;
}

kernels::AtenMetadataArgs MetadataInputs::aten_args(int set) const {
  kernels::AtenMetadataArgs aten;
  aten.metadata = args(set, kernels::PageColumns::kAll);
  aten.seq_lens_cpu = seq_lens_cpu_[set].data();
  aten.strided_indices = strided_indices_;
  aten.pool_rows = std::int64_t{kRebuilds} * shape_.batch_size;
  aten.full_to_swa_len = num_slots_ + shape_.page_size + 1;
  return aten;
}

kernels::DecodePhase MetadataInputs::phase() const {
  switch (shape_.q_mode) {
    case kernels::QueryMode::kCumsum:
      return kernels::DecodePhase::kDraftExtendCumsum;
    case kernels::QueryMode::kStrided:
      return kernels::DecodePhase::kDraftExtendStrided;
    default:
      return kernels::DecodePhase::kNormalDecode;
  }
}

double MetadataInputs::checksum(int set) const {
  const std::int64_t batch = shape_.batch_size;
  const std::int64_t width = shape_.context_tokens / shape_.page_size;
  const auto fetch = [](const auto* device, std::int64_t count) {
    std::vector<std::remove_cvref_t<decltype(*device)>> host(static_cast<std::size_t>(count));
    check(cudaMemcpy(host.data(), device, host.size() * sizeof(host[0]), cudaMemcpyDeviceToHost),
          "cudaMemcpy of outputs");
    return host;
  };
  std::int64_t sum = 0;
  const auto add_table = [&](const std::int32_t* table, std::int64_t weight) {
    const auto host = fetch(table, batch * width);
    for (std::int64_t row = 0; row < batch; ++row) {
      const std::int64_t live = (seq_lens_cpu_[set][row] + shape_.page_size - 1) / shape_.page_size;
      for (std::int64_t column = 0; column < live; ++column) {
        sum += weight * (1 + column % 7) * host[row * width + column];
      }
    }
  };
  add_table(page_table_, 1);
  if (shape_.swa) add_table(swa_page_table_, 3);
  for (const auto value : fetch(cache_seqlens_, batch)) sum += value;
  for (const auto value : fetch(cu_seqlens_k_, batch + 1)) sum += 5 * std::int64_t{value};
  if (shape_.q_mode != kernels::QueryMode::kPreset) {
    for (const auto value : fetch(cu_seqlens_q_, batch + 1)) sum += 11 * std::int64_t{value};
  }
  if (shape_.swa) {
    for (const auto value : fetch(swa_out_cache_loc_, batch)) sum += 7 * value;
  }
  return static_cast<double>(sum);
}

double MetadataInputs::live_pages(int set) const {
  double pages = 0;
  for (const std::int64_t tokens : seq_lens_cpu_[set]) {
    pages += static_cast<double>((tokens + shape_.page_size - 1) / shape_.page_size);
  }
  return pages;
}

double MetadataInputs::bytes_per_rebuild(kernels::PageColumns columns) const {
  double pages = shape_.batch_size * (shape_.context_tokens / shape_.page_size);
  if (columns == kernels::PageColumns::kLive) {
    pages = 0;
    for (int set = 0; set < kRebuilds; ++set) pages += live_pages(set) / kRebuilds;
  }
  const double per_page = 8 + (shape_.swa ? 12 : 0);
  const double per_request = 8 + 4 + 4 + 4 + (shape_.swa ? 24 : 0);
  return pages * per_page + shape_.batch_size * per_request;
}

}  // namespace tpjitter::bench
