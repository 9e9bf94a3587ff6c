// The op-by-op rebuild of kernels/metadata_aten.h with PyTorch's own operations: the same calls in
// the same order. `mark(kind)` comes after each dispatcher call: calibration stamps there, the
// `torch` path does nothing. Builds with Debian's libtorch 1.13 as with PyTorch 2.11.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "kernels/metadata_aten.h"
#include "kernels/tensor_ops.h"

namespace tpjitter {

// Tensors over the buffers of one rebuild, all on one device but seq_lens_cpu. Undefined where the
// phase or a model without sliding window has none.
struct AtenRebuildTensors {
  // Inputs.
  at::Tensor seq_lens, seq_lens_cpu, req_pool_indices, q_lens;  // [batch]
  at::Tensor req_to_token;                                      // [pool, context] int32
  at::Tensor strided_indices;                                   // [static pages] int64
  at::Tensor full_to_swa, out_cache_loc;                        // int64
  // Outputs.
  at::Tensor cache_seqlens, cu_seqlens_k, cu_seqlens_q;
  at::Tensor page_table, swa_page_table;  // [batch, static pages]
  at::Tensor swa_out_cache_loc;           // the persistent buffer
};

struct AtenRebuildSizes {
  kernels::DecodePhase phase = kernels::DecodePhase::kNormalDecode;
  std::int64_t batch_size = 0;
  std::int64_t page_size = 0;      // tokens
  std::int64_t seqlen_offset = 0;  // tokens
  std::int64_t q_stride = 0;       // tokens
};

namespace aten_rebuild {

using kernels::CallKind;
using kernels::DecodePhase;

template <class Mark>
at::Tensor marked(at::Tensor tensor, CallKind kind, Mark& mark) {
  mark(kind);
  return tensor;
}

// PyTorch before 2.2 does not take int32 as an index; later ones cast it inside the call.
inline at::Tensor as_index(const at::Tensor& index) {
#ifdef TPJITTER_TORCH_CASTS_INDICES
  return index;
#else
  return index.to(at::kLong);
#endif
}

template <class Mark>
std::int64_t item_of_max(const at::Tensor& tensor, CallKind max, CallKind item, Mark& mark) {
  const at::Tensor largest = marked(tensor.max(), max, mark);
  const auto value = largest.item<std::int64_t>();
  mark(item);
  return value;
}

template <class Mark>
void update_lengths(const AtenRebuildSizes& s, const at::Tensor& seq_lens,
                    const at::Tensor& cache_seqlens, Mark& mark) {
  at::Tensor lengths = seq_lens;
  if (s.phase == DecodePhase::kDraftDecode) {
    lengths = marked(lengths.add(s.seqlen_offset - 1), CallKind::kKernel, mark);
    lengths = marked(lengths.add(1), CallKind::kKernel, mark);
  } else if (s.phase == DecodePhase::kTargetVerify) {
    lengths = marked(lengths.add(s.seqlen_offset), CallKind::kKernel, mark);
  }
  cache_seqlens.copy_(lengths);
  mark(lengths.scalar_type() == at::kInt ? CallKind::kCopy : CallKind::kKernel);
}

// Pages of the longest request.
template <class Mark>
std::int64_t longest_pages(const AtenRebuildSizes& s, const at::Tensor& seq_lens_cpu,
                           const at::Tensor& cache_seqlens, Mark& mark) {
  std::int64_t longest = 0;
  if (s.phase == DecodePhase::kDraftDecode) {
    longest = item_of_max(cache_seqlens, CallKind::kKernel, CallKind::kRead, mark);
  } else {
    longest = item_of_max(seq_lens_cpu, CallKind::kHost, CallKind::kHost, mark);
    if (s.phase != DecodePhase::kNormalDecode) {  // the engine's code has it twice
      longest = item_of_max(seq_lens_cpu, CallKind::kHost, CallKind::kHost, mark);
    }
    if (s.phase == DecodePhase::kTargetVerify) longest += s.seqlen_offset;
  }
  return (longest + s.page_size - 1) / s.page_size;
}

template <class Mark>
void update_queries(const AtenRebuildTensors& t, const AtenRebuildSizes& s, Mark& mark) {
  if (s.phase == DecodePhase::kDraftExtendCumsum) {
    const at::Tensor q_lens = marked(t.q_lens.slice(0, 0, s.batch_size), CallKind::kView, mark);
    const at::Tensor tail = marked(t.cu_seqlens_q.slice(0, 1), CallKind::kView, mark);
    tail.copy_(marked(at::cumsum(q_lens, 0, at::kInt), CallKind::kScan, mark));
    mark(CallKind::kCopy);
  } else if (s.phase == DecodePhase::kDraftExtendStrided) {
    const at::Tensor tail = marked(t.cu_seqlens_q.slice(0, 1), CallKind::kView, mark);
    const auto options = at::TensorOptions().dtype(at::kInt).device(tail.device());
    const std::int64_t end = s.batch_size * s.q_stride + 1;
    tail.copy_(marked(at::arange(s.q_stride, end, s.q_stride, options), CallKind::kKernel, mark));
    mark(CallKind::kCopy);
  }
}

template <class Mark>
void update_swa(const AtenRebuildTensors& t, const AtenRebuildSizes& s, const at::Tensor& slots,
                std::int64_t pages, Mark& mark) {
  const at::Tensor flat = marked(slots.reshape({-1}), CallKind::kView, mark);
  const at::Tensor mapped =
      marked(t.full_to_swa.index({as_index(flat)}), CallKind::kIndexCast, mark);
  const at::Tensor shaped = marked(mapped.reshape({s.batch_size, pages}), CallKind::kView, mark);
  const at::Tensor swa_slots = marked(shaped.to(at::kInt), CallKind::kKernel, mark);
  const at::Tensor table = marked(t.swa_page_table.slice(1, 0, pages), CallKind::kView, mark);
  table.copy_(marked(swa_slots.floor_divide(s.page_size), CallKind::kKernel, mark));
  mark(table.is_contiguous() ? CallKind::kCopy : CallKind::kKernel);
  if (!t.out_cache_loc.defined() || !t.swa_out_cache_loc.defined()) return;
  const std::int64_t live = t.out_cache_loc.size(0);
  marked(t.swa_out_cache_loc.slice(0, live), CallKind::kView, mark).zero_();
  mark(CallKind::kKernel);
  const at::Tensor to = marked(t.swa_out_cache_loc.slice(0, 0, live), CallKind::kView, mark);
  to.copy_(marked(t.full_to_swa.index({t.out_cache_loc}), CallKind::kIndex, mark));
  mark(CallKind::kCopy);
}

}  // namespace aten_rebuild

template <class Mark>
void rebuild_with_aten(const AtenRebuildTensors& t, const AtenRebuildSizes& s, Mark mark) {
  using namespace aten_rebuild;
  const auto live = [&](const at::Tensor& tensor) {
    return marked(tensor.slice(0, 0, s.batch_size), CallKind::kView, mark);
  };
  const bool draft = s.phase == DecodePhase::kDraftDecode;
  const at::Tensor seq_lens = live(t.seq_lens);
  const at::Tensor seq_lens_cpu = live(t.seq_lens_cpu);
  const at::Tensor rows = live(t.req_pool_indices);
  const at::Tensor cache_seqlens = draft ? live(t.cache_seqlens) : t.cache_seqlens;
  update_lengths(s, seq_lens, cache_seqlens, mark);
  const std::int64_t pages = longest_pages(s, seq_lens_cpu, cache_seqlens, mark);
  const at::Tensor tail = marked(t.cu_seqlens_k.slice(0, 1), CallKind::kView, mark);
  tail.copy_(marked(at::cumsum(cache_seqlens, 0, at::kInt), CallKind::kScan, mark));
  mark(CallKind::kCopy);
  update_queries(t, s, mark);

  at::Tensor columns = marked(t.strided_indices.slice(0, 0, pages), CallKind::kView, mark);
  if (draft || s.phase == DecodePhase::kNormalDecode) {
    columns = marked(columns.unsqueeze(0), CallKind::kView, mark);
  }
  const at::Tensor row_index = marked(rows.unsqueeze(1), CallKind::kView, mark);
  const at::Tensor slots =
      marked(t.req_to_token.index({as_index(row_index), columns}), CallKind::kIndexRows, mark);
  const at::Tensor table = marked(t.page_table.slice(1, 0, pages), CallKind::kView, mark);
  table.copy_(marked(slots.floor_divide(s.page_size), CallKind::kKernel, mark));
  mark(table.is_contiguous() ? CallKind::kCopy : CallKind::kKernel);
  if (t.swa_page_table.defined()) update_swa(t, s, slots, pages, mark);
}

}  // namespace tpjitter
