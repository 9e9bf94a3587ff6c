#include "harness/cuda/cuda_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "harness/contract/error.h"
#include "harness/metadata_buffers.h"

namespace tpjitter {
namespace {

// The staged types are the kernels' own: layers forbid them to see the harness's.
static_assert(sizeof(TokenWrite) == sizeof(kernels::StagedTokenWrite));
static_assert(offsetof(TokenWrite, slot) == offsetof(kernels::StagedTokenWrite, slot));
static_assert(sizeof(LengthReset) == sizeof(kernels::StagedLengthReset));
static_assert(offsetof(LengthReset, seq_len) == offsetof(kernels::StagedLengthReset, seq_len));

constexpr std::int64_t kMaxRingBytes = std::int64_t{1} << 30;

template <class T>
DeviceBuffer<T> uploaded(const std::vector<T>& values) {
  DeviceBuffer<T> buffer(values.size());
  check_cuda(cudaMemcpy(buffer.data(), values.data(), buffer.size_bytes(), cudaMemcpyHostToDevice));
  return buffer;
}

template <class T>
DeviceBuffer<T> zeroed(std::size_t size) {
  DeviceBuffer<T> buffer(size);
  check_cuda(cudaMemset(buffer.data(), 0, buffer.size_bytes()));
  return buffer;
}

std::size_t size_of(std::int64_t n) { return static_cast<std::size_t>(n); }

std::vector<std::int64_t> strided_of(const ServingShape& shape) {
  std::vector<std::int64_t> indices(size_of(shape.max_seq_pages));
  for (std::size_t i = 0; i < indices.size(); ++i) {
    indices[i] = static_cast<std::int64_t>(i) * shape.page_size;
  }
  return indices;
}

}  // namespace

std::vector<std::int32_t> captured_batch_sizes(const CaseConfig& config) {
  std::vector<std::int32_t> sizes;
  for (const std::int64_t size : config.capture_batch_sizes) {
    sizes.push_back(static_cast<std::int32_t>(size));
  }
  if (sizes.empty()) sizes.push_back(static_cast<std::int32_t>(config.batch_size));
  std::sort(sizes.begin(), sizes.end());
  return sizes;
}

CudaCase::CudaCase(const CaseConfig& c, const RankContext& context)
    : config(c),
      shape(ServingShape::of(c)),
      max_batch(captured_batch_sizes(c).back()),
      world_size(context.world_size),
      ring_capacity(std::max<std::int64_t>(1, c.block_steps)) {
  const ServingState initial(shape);
  req_to_token = uploaded(initial.req_to_token());
  if (shape.swa) full_to_swa = uploaded(initial.full_to_swa());
  strided_indices = uploaded(strided_of(shape));

  const std::size_t rows = size_of(max_batch);
  const std::size_t table = rows * size_of(shape.max_seq_pages);
  seq_lens = uploaded(std::vector<std::int32_t>(rows, 1));
  req_pool_indices = zeroed<std::int64_t>(rows);
  out_cache_loc = zeroed<std::int64_t>(rows);
  cache_seqlens = zeroed<std::int32_t>(rows);
  cu_seqlens_k = zeroed<std::int32_t>(rows + 1);
  cu_seqlens_q = zeroed<std::int32_t>(rows + 1);
  page_table = zeroed<std::int32_t>(table);
  kv = zeroed<std::int32_t>(size_of(shape.num_slots));
  if (shape.swa) {
    swa_page_table = zeroed<std::int32_t>(table);
    swa_out_cache_loc = zeroed<std::int64_t>(rows);
    // SWA page ids run to num_slots / page_size + 1.
    swa_kv = zeroed<std::int32_t>(size_of(shape.num_slots + 2 * shape.page_size));
  }
  reduced = DeviceBuffer<std::byte>(size_of(all_reduce_bytes(max_batch)));
  if (config.all_reduce == "nccl") {
    for (auto& input : nccl_inputs) input = DeviceBuffer<std::byte>(reduced.size());
  }
  state = zeroed<kernels::DecodeBodyState>(1);

  const std::int64_t stamps = ring_capacity * config.layers * kernels::kAllReducesPerLayer;
  if (stamps * std::int64_t{sizeof(kernels::AllReduceStamp)} > kMaxRingBytes) {
    throw ConfigError(fmt::format(
        "sampling.block_steps: {} steps of {} all-reduces need more than 1 GiB of stamps on the "
        "GPU; lower it",
        config.block_steps, config.layers * kernels::kAllReducesPerLayer));
  }
  all_reduce_stamps = zeroed<kernels::AllReduceStamp>(size_of(stamps));
  graph_stamps = zeroed<kernels::GraphStamp>(size_of(ring_capacity));

  max_writes = initial.max_writes();
  layout = kernels::StagedLayout::of(shape.batch_size, shape.live_batch);
  for (auto& buffer : staging) buffer = PinnedBuffer<unsigned char>(layout.bytes(max_writes));
  device_staging = DeviceBuffer<unsigned char>(layout.bytes(max_writes));
  seq_lens_cpu.assign(size_of(shape.batch_size), 1);
  device_result = zeroed<kernels::AcceptResult>(1);
  host_result = PinnedBuffer<kernels::AcceptResult>(1);
}

kernels::DecodeMetadataArgs CudaCase::metadata_args(std::int32_t captured, bool for_paths) const {
  kernels::DecodeMetadataArgs a;
  a.req_pool_indices = req_pool_indices.data();
  a.seq_lens = seq_lens.data();
  a.req_to_token = req_to_token.data();
  a.out_cache_loc = out_cache_loc.data();
  a.cache_seqlens = cache_seqlens.data();
  a.cu_seqlens_k = cu_seqlens_k.data();
  a.cu_seqlens_q = for_paths ? nullptr : cu_seqlens_q.data();
  a.page_table = page_table.data();
  a.req_to_token_stride = shape.max_context;
  a.page_table_stride = shape.max_seq_pages;
  a.num_out_tokens = captured;
  a.batch_size = captured;
  a.max_seq_pages = shape.max_seq_pages;
  a.page_size = shape.page_size;
  a.page_columns =
      config.page_columns == "live" ? kernels::PageColumns::kLive : kernels::PageColumns::kAll;
  if (shape.swa) {
    a.full_to_swa = full_to_swa.data();
    a.swa_page_table = swa_page_table.data();
    a.swa_page_table_stride = shape.max_seq_pages;
    a.swa_out_cache_loc = swa_out_cache_loc.data();
    a.swa_out_len = captured;
  }
  return a;
}

kernels::AtenMetadataArgs CudaCase::aten_args() const {
  kernels::AtenMetadataArgs args;
  args.metadata = metadata_args(shape.batch_size, /*for_paths=*/true);
  args.seq_lens_cpu = seq_lens_cpu.data();
  args.strided_indices = strided_indices.data();
  args.pool_rows = shape.pool_rows;
  args.full_to_swa_len = static_cast<std::int64_t>(full_to_swa.size());
  args.swa_out_buffer_len = shape.swa ? max_batch : 0;
  return args;
}

kernels::StampRing CudaCase::ring() const {
  kernels::StampRing ring;
  ring.all_reduces = all_reduce_stamps.data();
  ring.graphs = graph_stamps.data();
  ring.entry = &state.data()->ring_entry;
  ring.capacity = ring_capacity;
  ring.all_reduces_per_replay =
      static_cast<std::int32_t>(config.layers * kernels::kAllReducesPerLayer);
  return ring;
}

kernels::DecodeBodyArgs CudaCase::body_args(std::int32_t captured, const RankContext& context,
                                            const Communicator& communicator) const {
  kernels::DecodeBodyArgs args;
  args.metadata = metadata_args(captured, /*for_paths=*/false);
  args.shape = body_shape(config, world_size);
  args.shape.all_reduce_elements = all_reduce_bytes(captured) / 2;
  args.state = state.data();
  args.kv = kv.data();
  args.kv_slots = static_cast<std::int64_t>(kv.size());
  args.swa_kv = swa_kv.data();
  args.swa_kv_slots = static_cast<std::int64_t>(swa_kv.size());
  args.reduced = reduced.data();
  for (const int parity : {0, 1}) {
    args.inputs[parity] =
        config.all_reduce == "nccl" ? nccl_inputs[parity].data() : communicator.input(parity);
  }
  args.layer_ns = static_cast<std::int64_t>(config.layer_us * 1000.0);
  args.rank = context.rank;
  // With the metadata kernel in the graph a stamp node comes before it instead.
  args.stamp_begin = config.path != "fused_in_graph";
  args.ring = ring();
  args.guard = communicator.guard();
  return args;
}

kernels::AcceptArgs CudaCase::accept_args(std::int32_t captured,
                                          const Communicator& communicator) const {
  kernels::AcceptArgs args;
  args.state = state.data();
  args.seq_lens = seq_lens.data();
  args.result = config.coupling_wait == "mapped_flag" ? host_result.data() : device_result.data();
  args.seed = shape.seed;
  args.live_rows = std::min(captured, shape.live_batch);
  args.ring = ring();
  args.guard = communicator.guard();
  return args;
}

kernels::StepInputsArgs CudaCase::step_inputs_args() const {
  kernels::StepInputsArgs args;
  args.staging = device_staging.data();
  args.layout = layout;
  args.max_writes = max_writes;
  args.req_pool_indices = req_pool_indices.data();
  args.out_cache_loc = out_cache_loc.data();
  args.seq_lens = seq_lens.data();
  args.req_to_token = req_to_token.data();
  return args;
}

std::int64_t CudaCase::load_ns() const {
  return static_cast<std::int64_t>(config.layer_us * 1000.0) * config.layers;
}

void CudaCase::stage(const StepInputs& inputs) {
  const auto parity = static_cast<std::size_t>(inputs.step % 2);
  unsigned char* to = staging[parity].data();
  const kernels::StagedHeader header{static_cast<std::int64_t>(inputs.writes.size()),
                                     static_cast<std::int64_t>(inputs.resets.size())};
  const std::size_t live = size_of(shape.live_batch);
  std::memcpy(to, &header, sizeof header);
  std::memcpy(to + layout.req_pool_indices, inputs.req_pool_indices.data(),
              live * sizeof(std::int64_t));
  std::memcpy(to + layout.out_cache_loc, inputs.out_cache_loc.data(), live * sizeof(std::int64_t));
  std::memcpy(to + layout.resets, inputs.resets.data(), inputs.resets.size() * sizeof(LengthReset));
  std::memcpy(to + layout.writes, inputs.writes.data(), inputs.writes.size() * sizeof(TokenWrite));
  staged_bytes[parity] = layout.bytes(header.num_writes);
  std::copy(inputs.seq_lens.begin(), inputs.seq_lens.end(), seq_lens_cpu.begin());
}

void CudaCase::poison_outputs(cudaStream_t stream) {
  const auto fill = [&](const auto& buffer) {
    if (buffer.size() == 0) return;
    check_cuda(cudaMemsetAsync(buffer.data(), 0x7f, buffer.size_bytes(), stream));
  };
  fill(cache_seqlens);
  fill(cu_seqlens_k);
  fill(page_table);
  fill(swa_page_table);
  fill(swa_out_cache_loc);
  check_cuda(cudaMemsetAsync(cu_seqlens_k.data(), 0, sizeof(std::int32_t), stream));
  // Decode: one query token a row.
  std::vector<std::int32_t> queries(cu_seqlens_q.size());
  std::iota(queries.begin(), queries.end(), 0);
  check_cuda(cudaMemcpyAsync(cu_seqlens_q.data(), queries.data(), cu_seqlens_q.size_bytes(),
                             cudaMemcpyHostToDevice, stream));
  check_cuda(cudaStreamSynchronize(stream));  // of pageable memory; prepare() only
}

}  // namespace tpjitter
