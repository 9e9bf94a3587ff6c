// The decode body of decode_body.h: attention stand-in, load, head, accept.
// Source:   our own; the order of a layer (attention, all-reduce, MLP, all-reduce) is that of a
//           tensor-parallel decoder.
// Inputs:   the rebuilt metadata; [elements] bf16 of the previous all-reduce.
// Outputs:  the next all-reduce's input; KV slots; sums into state->checksum, whose value does not
//           depend on the order because addition modulo 2^64 does not.
// Grid:     a block per batch row or per 2048 all-reduce elements, whichever is more, 128 at most:
//           resident together, so that a load kernel lasts its duration and not a multiple.
// Traffic:  live page ids * 4 bytes and all_reduce_elements * 4 bytes a kernel.
// Limits:   any batch size; capturable; no host sync. Values of padded rows are folded too.
//
// Programmatic dependent launch (args.pdl): every kernel here begins with the wait for the whole
// end of its predecessor, then lets its own successor start. Since each of them waits, the end of
// one implies the end of everything before it; a kernel with the attribute and no wait would break
// that. All-reduces are launched without the attribute (their alternating inputs need stream
// order), so what can overlap is filler to filler, filler to the next attention or the head, and
// head to accept. An edge from an all-reduce, a metadata kernel or a fill into one of these kernels
// is programmatic in the captured graph as well, but its producer never triggers: it starts the
// consumer at its end, as a full edge does. A fill between filler and attention thus takes a pair
// that overlaps out of the chain.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <type_traits>

#include "kernels/decode_body.h"
#include "kernels/spin.cuh"

namespace tpjitter::kernels {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kMaxBlocks = 128;  // fewer than the SMs of every GPU that we build for

__device__ __forceinline__ void begin_kernel(bool pdl) {
  if (!pdl) return;
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
}

// Sum over the block; the result is valid in thread 0.
__device__ __forceinline__ std::uint64_t block_sum(std::uint64_t value) {
  __shared__ std::uint64_t warp_sums[kThreads / 32];
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    value += __shfl_down_sync(0xffffffffu, value, offset);
  }
  if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int warp = 1; warp < kThreads / 32; ++warp) value += warp_sums[warp];
  }
  return value;
}

__device__ __forceinline__ void add_to_checksum(DecodeBodyState* state, std::uint64_t value) {
  value = block_sum(value);
  if (threadIdx.x == 0) atomicAdd(reinterpret_cast<unsigned long long*>(&state->checksum), value);
}

__device__ __forceinline__ std::int64_t first_element() {
  return static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
}
__device__ __forceinline__ std::int64_t element_stride() {
  return static_cast<std::int64_t>(gridDim.x) * kThreads;
}

// Two bf16 integers in a word. A bf16 is the upper half of an fp32.
__device__ __forceinline__ std::uint64_t sum_of_word(std::uint32_t word) {
  return static_cast<std::uint64_t>(static_cast<std::int64_t>(__uint_as_float(word << 16)) +
                                    static_cast<std::int64_t>(__uint_as_float(word & 0xffff0000u)));
}

// This thread's part of the sum of all-reduce `ordinal`'s output, weighted.
__device__ std::uint64_t fold_reduced(const DecodeBodyArgs& args, int ordinal) {
  std::uint64_t sum = 0;
  const std::int64_t packs = args.shape.all_reduce_elements / 8;
  for (std::int64_t i = first_element(); i < packs; i += element_stride()) {
    const uint4 pack = static_cast<const uint4*>(args.reduced)[i];
    sum += sum_of_word(pack.x) + sum_of_word(pack.y) + sum_of_word(pack.z) + sum_of_word(pack.w);
  }
  return fold_weight(static_cast<std::uint64_t>(ordinal)) * sum;
}

__device__ std::uint32_t bf16_pair(std::int32_t low, std::int32_t high) {
  const __nv_bfloat162 pair =
      __floats2bfloat162_rn(static_cast<float>(low), static_cast<float>(high));
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

// The values repeat every four elements: one pack serves all.
__device__ void write_all_reduce_input(const DecodeBodyArgs& args, int ordinal) {
  const std::int64_t step = args.state->step;
  std::int32_t value[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) value[i] = all_reduce_value(args.rank, step, ordinal, i);
  const std::uint32_t low = bf16_pair(value[0], value[1]);
  const std::uint32_t high = bf16_pair(value[2], value[3]);
  auto* input = static_cast<uint4*>(args.inputs[ordinal % 2]);
  const std::int64_t packs = args.shape.all_reduce_elements / 8;
  for (std::int64_t i = first_element(); i < packs; i += element_stride()) {
    input[i] = {low, high, low, high};
  }
}

// This thread's part of a layer's metadata fold: rows by block, columns by thread.
__device__ std::uint64_t fold_tables(const DecodeMetadataArgs& m, bool sliding) {
  std::uint64_t sum = 0;
  const std::int32_t* table = sliding ? m.swa_page_table : m.page_table;
  const std::int64_t stride = sliding ? m.swa_page_table_stride : m.page_table_stride;
  const FoldTag tag = sliding ? FoldTag::kSwaPageTable : FoldTag::kPageTable;
  for (std::int32_t row = static_cast<std::int32_t>(blockIdx.x); row < m.batch_size;
       row += static_cast<std::int32_t>(gridDim.x)) {
    const std::int32_t length = m.cache_seqlens[row];
    if (threadIdx.x == 0) {
      sum += fold(FoldTag::kCacheSeqlens, row, length);
      sum += fold(FoldTag::kCuSeqlensK, row, m.cu_seqlens_k[row + 1]);
      sum += fold(FoldTag::kCuSeqlensQ, row, m.cu_seqlens_q[row + 1]);
    }
    const std::int32_t live = min((length + m.page_size - 1) / m.page_size, m.max_seq_pages);
    for (std::int32_t column = static_cast<std::int32_t>(threadIdx.x); column < live;
         column += kThreads) {
      sum += fold(tag, static_cast<std::uint64_t>(row) * m.max_seq_pages + column,
                  table[row * stride + column]);
    }
  }
  return sum;
}

// Folds the locations and writes their KV slots. A stale or wild location must not corrupt memory:
// it fails the checksum instead.
__device__ std::uint64_t fold_and_write_slots(const DecodeBodyArgs& args, bool sliding) {
  const DecodeMetadataArgs& m = args.metadata;
  const std::int64_t* locations = sliding ? m.swa_out_cache_loc : m.out_cache_loc;
  const std::int64_t count = sliding ? m.swa_out_len : m.num_out_tokens;
  const FoldTag tag = sliding ? FoldTag::kSwaOutCacheLoc : FoldTag::kOutCacheLoc;
  std::int32_t* kv = sliding ? args.swa_kv : args.kv;
  const std::int64_t slots = sliding ? args.swa_kv_slots : args.kv_slots;
  const auto written = static_cast<std::int32_t>(args.state->step);
  std::uint64_t sum = 0;
  for (std::int64_t i = first_element(); i < count; i += element_stride()) {
    const std::int64_t location = locations[i];
    sum += fold(tag, static_cast<std::uint64_t>(i), location);
    if (location >= 0 && location < slots) kv[location] = written;
  }
  return sum;
}

__host__ __device__ inline std::int64_t counted_rows(const DecodeMetadataArgs& m) {
  return m.num_out_tokens > 1 ? m.num_out_tokens : 1;
}

// Each block arrives at its rows; a row's last one resets the counter. More blocks than rows share
// them as the blocks of a split KV do. One warp.
__device__ void count_arrivals(const AttentionScratch& scratch, std::int64_t rows) {
  const std::int64_t blocks = gridDim.x;
  const std::int64_t first = blockIdx.x % rows + threadIdx.x % 32 * blocks;
  for (std::int64_t row = first; row < rows; row += 32 * blocks) {
    const std::int64_t expected = row < blocks ? (blocks - 1 - row) / rows + 1 : 1;
    if (atomicAdd(scratch.counters + row, 1) == expected - 1) scratch.counters[row] = 0;
  }
}

// 1 with the scales that were set up, so that a missing one fails the checksum.
__device__ __forceinline__ std::uint64_t scale_of(const AttentionScratch& scratch) {
  if (scratch.kv_scales[0] == nullptr) return 1;
  return *scratch.kv_scales[0] == 1.0f && *scratch.kv_scales[1] == 1.0f ? 1 : 0;
}

__global__ void __launch_bounds__(kThreads)
    attention_kernel(const DecodeBodyArgs args, const int layer) {
  begin_kernel(args.pdl);
  if (args.stamp_begin && layer == 0 && blockIdx.x == 0 && threadIdx.x == 0) {
    args.ring.graphs[*args.ring.entry].begin_ns = globaltimer_ns();
  }
  if (block_aborted(args.guard)) return;
  const bool sliding = layer_is_sliding(args.shape.swa, layer);
  // A warp that the fold's single-thread part does not use: the atomic's way to memory and back
  // hides behind the tables.
  if (!sliding && args.scratch.counters != nullptr && threadIdx.x >= kThreads - 32) {
    count_arrivals(args.scratch, counted_rows(args.metadata));
  }
  std::uint64_t sum = fold_tables(args.metadata, sliding) + fold_and_write_slots(args, sliding);
  sum *= fold_weight(static_cast<std::uint64_t>(layer));
  if (!sliding) sum *= scale_of(args.scratch);
  const int ordinal = layer * kAllReducesPerLayer;
  if (layer > 0) sum += fold_reduced(args, ordinal - 1);
  write_all_reduce_input(args, ordinal);
  add_to_checksum(args.state, sum);
}

__global__ void __launch_bounds__(kThreads)
    load_kernel(const DecodeBodyArgs args, const int layer) {
  begin_kernel(args.pdl);
  const std::int64_t begin_ns = globaltimer_ns();
  if (block_aborted(args.guard)) return;
  const int ordinal = layer * kAllReducesPerLayer;
  const std::uint64_t sum = fold_reduced(args, ordinal);
  write_all_reduce_input(args, ordinal + 1);
  add_to_checksum(args.state, sum);
  if (threadIdx.x != 0) return;
  const std::int64_t limit_ns = min(args.layer_ns, args.guard.deadline_ns);
  for (std::uint32_t spins = 1; globaltimer_ns() - begin_ns < limit_ns; ++spins) {
    if (spins % kSpinsPerCheck == 0 && aborted(args.guard)) return;
  }
}

__global__ void empty_kernel(const bool pdl) { begin_kernel(pdl); }

__global__ void __launch_bounds__(kThreads)
    fill_kernel(std::uint32_t* words, const std::uint32_t value, const std::int64_t count) {
  const std::int64_t i = first_element();
  if (i < count) words[i] = value;
}

__global__ void __launch_bounds__(kThreads) head_kernel(const DecodeBodyArgs args) {
  begin_kernel(args.pdl);
  if (block_aborted(args.guard)) return;
  const int last = args.shape.layers * kAllReducesPerLayer - 1;
  add_to_checksum(args.state, fold_reduced(args, last));
}

// Moves the batch on by the accepted tokens and tells the host. Whole block.
__device__ void accept_step(const AcceptArgs& args, bool stop) {
  DecodeBodyState& state = *args.state;
  const std::int64_t step = state.step;
  std::uint64_t accepted = 0;
  for (std::int32_t row = static_cast<std::int32_t>(threadIdx.x); row < args.live_rows && !stop;
       row += kThreads) {
    const std::int32_t tokens = accepted_tokens(args.seed, step, row);
    args.seq_lens[row] += tokens;
    accepted += static_cast<std::uint64_t>(tokens);
  }
  accepted = block_sum(accepted);  // every thread has read `step` by then
  if (threadIdx.x != 0) return;
  args.result->checksum = state.checksum;
  args.result->accepted_tokens = static_cast<std::int64_t>(accepted);
  args.result->abort = stop ? 1u : 0u;
  __threadfence_system();
  *const_cast<volatile std::int64_t*>(&args.result->step) = step + 1;
  state.step = step + 1;
}

__global__ void __launch_bounds__(kThreads) accept_kernel(const AcceptArgs args) {
  begin_kernel(args.pdl);
  const bool stop = block_aborted(args.guard);
  if (args.end_of_step) accept_step(args, stop);
  if (threadIdx.x != 0) return;
  DecodeBodyState& state = *args.state;
  if (args.ring.graphs != nullptr) {
    GraphStamp& stamp = args.ring.graphs[state.ring_entry];
    stamp.replay = state.replay + 1;
    stamp.checksum = state.checksum;
    stamp.end_ns = globaltimer_ns();
  }
  state.replay += 1;
  state.ring_entry = state.ring_entry + 1 == args.ring.capacity ? 0 : state.ring_entry + 1;
  state.checksum = 0;
}

unsigned blocks_of(const DecodeBodyArgs& args) {
  const std::int64_t by_elements = (args.shape.all_reduce_elements / 8 + kThreads - 1) / kThreads;
  const std::int64_t wanted =
      by_elements > args.metadata.batch_size ? by_elements : std::int64_t{args.metadata.batch_size};
  return static_cast<unsigned>(wanted < 1 ? 1 : wanted > kMaxBlocks ? kMaxBlocks : wanted);
}

// The same launch with and without the attribute; `Args` as the kernel declares them.
template <typename... Args>
int launch(void (*kernel)(Args...), unsigned blocks, unsigned threads, bool pdl,
           cudaStream_t stream, std::type_identity_t<Args>... args) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = threads;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = pdl ? 1 : 0;
  static_cast<void>(cudaLaunchKernelEx(&config, kernel, args...));
  return cudaGetLastError();
}

}  // namespace

int launch_attention(const DecodeBodyArgs& args, int layer, CUstream_st* stream) {
  const AttentionScratch& scratch = args.scratch;
  if (scratch.counters != nullptr && scratch.counter_rows < counted_rows(args.metadata)) {
    return cudaErrorInvalidValue;
  }
  return launch(attention_kernel, blocks_of(args), kThreads, args.pdl, stream, args, layer);
}

int launch_load(const DecodeBodyArgs& args, int layer, CUstream_st* stream) {
  return launch(load_kernel, blocks_of(args), kThreads, args.pdl, stream, args, layer);
}

int launch_empty_node(CUstream_st* stream, bool pdl) {
  return launch(empty_kernel, 1, 32, pdl, stream, pdl);
}

int launch_fill(void* words, std::uint32_t value, std::int64_t count, CUstream_st* stream) {
  if (count <= 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>((count + kThreads - 1) / kThreads);
  return launch(fill_kernel, blocks, kThreads, false, stream, static_cast<std::uint32_t*>(words),
                value, count);
}

int launch_head(const DecodeBodyArgs& args, CUstream_st* stream) {
  return launch(head_kernel, blocks_of(args), kThreads, args.pdl, stream, args);
}

int launch_accept(const AcceptArgs& args, CUstream_st* stream) {
  return launch(accept_kernel, 1, kThreads, args.pdl, stream, args);
}

}  // namespace tpjitter::kernels
