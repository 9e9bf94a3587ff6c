// Tree-drafting metadata op by op. Order and kind of the operations follow SGLang's FlashAttention
// backend (replay of draft decode and target-verify with topk > 1).
#include <stdexcept>

#include "kernels/metadata_topk.h"
#include "kernels/tensor_ops.h"

namespace tpjitter::kernels {
namespace {

struct Inputs {
  Tensor seq_lens, seq_lens_cpu, req_pool_indices, req_to_token;
  bool captured = false;  // no host lengths: the static width
};

template <class Args>
Inputs inputs_of(TensorOps& ops, const Args& args, const std::int64_t* seq_lens_cpu,
                 std::int64_t pool_rows) {
  const std::int64_t rows = args.batch_size;
  Inputs inputs;
  inputs.captured = seq_lens_cpu == nullptr;
  inputs.seq_lens = ops.slice(vector_tensor(args.seq_lens, args.seq_lens_type, rows), 0, 0, rows);
  if (!inputs.captured) {
    Tensor host_lens = vector_tensor(seq_lens_cpu, IntType::kInt64, rows);
    host_lens.on_host = true;
    inputs.seq_lens_cpu = ops.slice(host_lens, 0, 0, rows);
  }
  inputs.req_pool_indices =
      ops.slice(vector_tensor(args.req_pool_indices, args.req_pool_indices_type, rows), 0, 0, rows);
  inputs.req_to_token = matrix_tensor(args.req_to_token, IntType::kInt32, pool_rows,
                                      args.req_to_token_stride, args.req_to_token_stride);
  return inputs;
}

void update_sums(TensorOps& ops, const TopkTable& table) {
  const Tensor cache_seqlens = vector_tensor(table.cache_seqlens, IntType::kInt32, table.rows);
  const Tensor sums =
      vector_tensor(table.cu_seqlens_k, IntType::kInt32, std::int64_t{table.rows} + 1);
  const Tensor tail = ops.slice(sums, 0, 1, std::int64_t{table.rows} + 1);
  ops.copy_(tail, ops.cumsum(cache_seqlens, IntType::kInt32));
}

// The prefix object, of whole pages in a draft step.
void update_prefix(TensorOps& ops, const Inputs& inputs, const TopkTable& table, bool whole_pages) {
  const Tensor cache_seqlens = vector_tensor(table.cache_seqlens, IntType::kInt32, table.rows);
  Tensor tokens = inputs.seq_lens;
  if (whole_pages && table.page_size > 1) {
    tokens = ops.sub(tokens, ops.remainder(tokens, table.page_size));
  }
  ops.copy_(cache_seqlens, tokens);
  std::int64_t pages = table.width;
  if (!inputs.captured) {
    const std::int64_t longest = ops.item(ops.max(inputs.seq_lens_cpu));
    const std::int64_t rounding = whole_pages ? 0 : table.page_size - 1;
    pages = (longest + rounding) / table.page_size;
  }
  update_sums(ops, table);
  if (pages > table.width) {
    throw std::invalid_argument("topk metadata: a length is past the width of the prefix table");
  }
  // [:, :longest], or every page_size-th column of it.
  Tensor starts = ops.slice(inputs.req_to_token, 1, 0, pages * table.page_size);
  starts.sizes[1] = pages;
  starts.strides[1] = table.page_size;
  Tensor slots = ops.index_rows(starts, inputs.req_pool_indices);
  if (table.page_size > 1) slots = ops.floor_divide(slots, table.page_size);
  const Tensor page_table = matrix_tensor(table.page_table, IntType::kInt32, table.rows,
                                          table.width, table.page_table_stride);
  ops.copy_(ops.slice(page_table, 1, 0, pages), slots);
}

// Of each expand row its q mask bytes, as [bs * q, q].
Tensor mask_block(TensorOps& ops, const TopkVerifyArgs& args, const Tensor& seq_lens,
                  const Tensor& columns) {
  const std::int64_t q = args.draft_tokens;
  const Tensor row_lengths = ops.repeat_interleave(ops.add(seq_lens, q), q);
  const Tensor sums = ops.pad_front(ops.cumsum(row_lengths, IntType::kInt64));
  const Tensor row_begin = ops.slice(sums, 0, 0, args.expand.rows);
  const Tensor row_columns = ops.repeat_interleave(columns, q);
  const Tensor matrix = ops.add(row_columns, ops.unsqueeze(row_begin, 1));
  const std::int64_t size = std::int64_t{args.expand.rows} * q;
  const Tensor indices = ops.reshape(matrix, size, kOneDimension);
  ops.fill_(ops.slice(indices, 0, args.num_positions * q, size), 0);  // padded rows: byte 0
  const Tensor custom_mask = vector_tensor(args.custom_mask, IntType::kUint8, args.mask_len);
  return ops.reshape(ops.index(custom_mask, indices), args.expand.rows, q);
}

void update_verify_expand(TensorOps& ops, const TopkVerifyArgs& args, const Inputs& inputs) {
  const TopkTable& table = args.expand;
  const std::int64_t q = args.draft_tokens;
  const Tensor offsets = ops.unsqueeze(ops.arange(0, q, 1, IntType::kInt64), 0);
  const Tensor request_offsets = ops.expand(offsets, args.batch_size, q);
  const Tensor columns = ops.add(request_offsets, ops.unsqueeze(inputs.seq_lens, 1));
  const Tensor mask = mask_block(ops, args, inputs.seq_lens, columns);
  const Tensor numbers = ops.expand(offsets, table.rows, q);
  const Tensor keys = ops.where(mask, numbers, ops.add(numbers, q));
  const Tensor order = ops.sort_rows(keys);

  const Tensor request_rows = ops.index_rows(inputs.req_to_token, inputs.req_pool_indices);
  const Tensor slots = ops.repeat_interleave(ops.gather(request_rows, columns), q);
  const Tensor page_table = matrix_tensor(table.page_table, IntType::kInt32, table.rows,
                                          table.width, table.page_table_stride);
  ops.copy_(page_table, ops.gather(slots, order));
  ops.copy_(vector_tensor(table.cache_seqlens, IntType::kInt32, table.rows), ops.sum_rows(mask));
  update_sums(ops, table);
}

}  // namespace

int rebuild_topk_draft_aten(TensorOps& ops, const TopkDraftArgs& args,
                            const std::int64_t* seq_lens_cpu, std::int64_t pool_rows) {
  if (args.batch_size == 0) return ops.status();
  if (!is_valid(args)) {
    throw std::invalid_argument("topk draft: an array is missing, or a size makes no sense");
  }
  ops.end_rebuild();  // in case an earlier rebuild threw halfway
  const Inputs inputs = inputs_of(ops, args, seq_lens_cpu, pool_rows);
  update_prefix(ops, inputs, args.prefix, /*whole_pages=*/true);
  const TopkTable& table = args.expand;
  if (table.page_size > 1) {
    ops.topk_draft_expand(args);
  } else {
    const std::int64_t live_rows = args.num_out_tokens / args.num_steps;
    const Tensor locations =
        ops.reshape(vector_tensor(args.out_cache_loc, IntType::kInt64, args.num_out_tokens),
                    live_rows, args.num_steps);
    const Tensor drafted = ops.slice(locations, 1, 0, args.step + 1);
    const Tensor page_table = matrix_tensor(table.page_table, IntType::kInt32, table.rows,
                                            args.step + 1, table.page_table_stride);
    ops.copy_(ops.slice(page_table, 0, 0, live_rows), drafted);
  }
  ops.end_rebuild();
  return ops.status();
}

int rebuild_topk_verify_aten(TensorOps& ops, const TopkVerifyArgs& args,
                             const std::int64_t* seq_lens_cpu, std::int64_t pool_rows) {
  if (args.batch_size == 0) return ops.status();
  if (!is_valid(args)) {
    throw std::invalid_argument("topk verify: an array is missing, or a size makes no sense");
  }
  ops.end_rebuild();
  const Inputs inputs = inputs_of(ops, args, seq_lens_cpu, pool_rows);
  update_prefix(ops, inputs, args.prefix, /*whole_pages=*/false);
  update_verify_expand(ops, args, inputs);
  ops.end_rebuild();
  return ops.status();
}

}  // namespace tpjitter::kernels
