#include "harness/torch/torch_rebuild.h"

#include <c10/core/InferenceMode.h>

#include <optional>

#include "harness/contract/error.h"
#include "harness/torch/aten_rebuild.h"
#if TPJITTER_TORCH_CUDA
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

namespace tpjitter {
namespace {

at::ScalarType scalar_type(kernels::IntType type) {
  return type == kernels::IntType::kInt64 ? at::kLong : at::kInt;
}

// Views over memory that is not PyTorch's; a null pointer gives an undefined tensor.
class Over {
 public:
  explicit Over(int gpu)
      : device_(gpu == TorchRebuild::kHost
                    ? at::Device(at::kCPU)
                    : at::Device(at::kCUDA, static_cast<at::DeviceIndex>(gpu))) {}

  at::Tensor vector(const void* data, at::ScalarType type, std::int64_t size) const {
    return of(data, type, {size}, {1});
  }
  at::Tensor matrix(const void* data, at::ScalarType type, std::int64_t rows, std::int64_t columns,
                    std::int64_t stride) const {
    return of(data, type, {rows, columns}, {stride, 1});
  }

 private:
  at::Tensor of(const void* data, at::ScalarType type, at::IntArrayRef sizes,
                at::IntArrayRef strides) const {
    if (data == nullptr) return {};
    return at::from_blob(const_cast<void*>(data), sizes, strides,
                         at::TensorOptions().dtype(type).device(device_));
  }

  at::Device device_;
};

AtenRebuildTensors bind(const kernels::AtenMetadataArgs& args, int gpu) {
  const kernels::DecodeMetadataArgs& m = args.metadata;
  const std::int64_t n = m.batch_size;
  const std::int64_t swa_out =
      args.swa_out_buffer_len > 0 ? args.swa_out_buffer_len : m.swa_out_len;
  const Over over(gpu);
  AtenRebuildTensors t;
  t.seq_lens = over.vector(m.seq_lens, scalar_type(m.seq_lens_type), n);
  t.seq_lens_cpu = Over(TorchRebuild::kHost).vector(args.seq_lens_cpu, at::kLong, n);
  t.req_pool_indices = over.vector(m.req_pool_indices, scalar_type(m.req_pool_indices_type), n);
  t.q_lens = over.vector(m.q_lens, scalar_type(m.q_lens_type), n);
  t.req_to_token = over.matrix(m.req_to_token, at::kInt, args.pool_rows, m.req_to_token_stride,
                               m.req_to_token_stride);
  t.strided_indices = over.vector(args.strided_indices, at::kLong, m.max_seq_pages);
  t.cache_seqlens = over.vector(m.cache_seqlens, at::kInt, n);
  t.cu_seqlens_k = over.vector(m.cu_seqlens_k, at::kInt, n + 1);
  t.cu_seqlens_q = over.vector(m.cu_seqlens_q, at::kInt, n + 1);
  t.page_table = over.matrix(m.page_table, at::kInt, n, m.max_seq_pages, m.page_table_stride);
  if (m.swa_page_table == nullptr) return t;
  t.full_to_swa = over.vector(m.full_to_swa, at::kLong, args.full_to_swa_len);
  t.swa_page_table =
      over.matrix(m.swa_page_table, at::kInt, n, m.max_seq_pages, m.swa_page_table_stride);
  t.out_cache_loc = over.vector(m.out_cache_loc, at::kLong, m.num_out_tokens);
  t.swa_out_cache_loc = over.vector(m.swa_out_cache_loc, at::kLong, swa_out);
  return t;
}

}  // namespace

struct TorchRebuild::Tensors {
  AtenRebuildTensors tensors;
  AtenRebuildSizes sizes;
  int gpu;
};

TorchRebuild::TorchRebuild(kernels::DecodePhase phase, const kernels::AtenMetadataArgs& args,
                           int gpu) {
#if !TPJITTER_TORCH_CUDA
  if (gpu != kHost) {
    throw ConfigError(
        "step.path: torch: the PyTorch of this build has no CUDA; configure with "
        "-DTPJITTER_TORCH_PREFIX=<torch.utils.cmake_prefix_path of one that has>");
  }
#endif
#if TPJITTER_TORCH_CUDA
  if (gpu != kHost) at::globalContext().lazyInitDevice(at::kCUDA);
#endif
  const kernels::DecodeMetadataArgs& m = args.metadata;
  tensors_ = std::make_unique<Tensors>(Tensors{
      bind(args, gpu), {phase, m.batch_size, m.page_size, m.seqlen_offset, m.q_stride}, gpu});
}

TorchRebuild::~TorchRebuild() = default;

void TorchRebuild::run([[maybe_unused]] CUstream_st* stream) {
  if (tensors_->sizes.batch_size == 0) return;
  const c10::InferenceMode guard;  // as engines run
#if TPJITTER_TORCH_CUDA
  std::optional<c10::cuda::CUDAStreamGuard> on_stream;
  if (tensors_->gpu != kHost) {
    on_stream.emplace(
        c10::cuda::getStreamFromExternal(stream, static_cast<c10::DeviceIndex>(tensors_->gpu)));
  }
#endif
  rebuild_with_aten(tensors_->tensors, tensors_->sizes, [](kernels::CallKind) {});
}

}  // namespace tpjitter
