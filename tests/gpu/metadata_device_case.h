// A metadata case's arrays on the device, for the GPU tests of every path: inputs that can be
// replaced between replays, poisoned outputs, and the arguments of each path over them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/metadata_page_table.h"
#include "tests/gpu/gpu_test_main.h"
#include "tests/metadata_cases.h"

namespace tpjitter::test {

// A case's arrays on the device.
class DeviceCase {
 public:
  explicit DeviceCase(const MetadataCase& c)
      : case_(c),
        req_pool_indices_(c.req_pool_indices),
        seq_lens_(c.seq_lens),
        q_lens_(c.q_lens),
        req_to_token_(c.req_to_token),
        full_to_swa_(c.full_to_swa),
        out_cache_loc_(c.out_cache_loc),
        strided_indices_(c.strided_indices) {
    const MetadataOutputs poisoned = poisoned_outputs(c);
    cache_seqlens_ = DeviceArray<std::int32_t>(poisoned.cache_seqlens);
    cu_seqlens_k_ = DeviceArray<std::int32_t>(poisoned.cu_seqlens_k);
    cu_seqlens_q_ = DeviceArray<std::int32_t>(poisoned.cu_seqlens_q);
    page_table_ = DeviceArray<std::int32_t>(poisoned.page_table);
    swa_page_table_ = DeviceArray<std::int32_t>(poisoned.swa_page_table);
    swa_out_cache_loc_ = DeviceArray<std::int64_t>(poisoned.swa_out_cache_loc);
  }

  void poison() {
    const MetadataOutputs poisoned = poisoned_outputs(case_);
    cache_seqlens_.write(poisoned.cache_seqlens);
    cu_seqlens_k_.write(poisoned.cu_seqlens_k);
    cu_seqlens_q_.write(poisoned.cu_seqlens_q);
    page_table_.write(poisoned.page_table);
    swa_page_table_.write(poisoned.swa_page_table);
    swa_out_cache_loc_.write(poisoned.swa_out_cache_loc);
  }

  // New values of the same sizes into the same buffers, as between replays.
  void set_inputs(const MetadataCase& c) {
    case_ = c;
    req_pool_indices_.write(c.req_pool_indices);
    seq_lens_.write(c.seq_lens);
    q_lens_.write(c.q_lens);
    req_to_token_.write(c.req_to_token);
    full_to_swa_.write(c.full_to_swa);
    out_cache_loc_.write(c.out_cache_loc);
  }

  kernels::DecodeMetadataArgs args(kernels::PageColumns columns) const {
    kernels::DecodeMetadataArgs args = case_.scalars;
    args.page_columns = columns;
    args.req_pool_indices = req_pool_indices_.data();
    args.seq_lens = seq_lens_.data();
    args.q_lens = q_lens_.data();
    args.req_to_token = req_to_token_.data();
    args.cache_seqlens = cache_seqlens_.data();
    args.cu_seqlens_k = cu_seqlens_k_.data();
    args.cu_seqlens_q = cu_seqlens_q_.data();
    args.page_table = page_table_.data();
    if (case_.has_swa()) {
      args.full_to_swa = full_to_swa_.data();
      args.out_cache_loc = case_.has_out_cache_loc ? out_cache_loc_.data() : nullptr;
      args.swa_page_table = swa_page_table_.data();
      args.swa_out_cache_loc = swa_out_cache_loc_.data();
    }
    return args;
  }

  kernels::AtenMetadataArgs aten_args() const {
    kernels::AtenMetadataArgs aten;
    aten.metadata = args(kernels::PageColumns::kAll);
    aten.seq_lens_cpu = case_.seq_lens_cpu.data();
    aten.strided_indices = strided_indices_.data();
    aten.pool_rows = case_.pool_rows;
    aten.full_to_swa_len = static_cast<std::int64_t>(case_.full_to_swa.size());
    return aten;
  }

  kernels::PageTableMetadataArgs page_table_args() const {
    kernels::PageTableMetadataArgs page_table;
    page_table.metadata = args(kernels::PageColumns::kLive);
    page_table.full_to_swa_len = static_cast<std::int64_t>(case_.full_to_swa.size());
    return page_table;
  }

  MetadataOutputs outputs() const {
    return {.cache_seqlens = cache_seqlens_.read(),
            .cu_seqlens_k = cu_seqlens_k_.read(),
            .cu_seqlens_q = cu_seqlens_q_.read(),
            .page_table = page_table_.read(),
            .swa_page_table = swa_page_table_.read(),
            .swa_out_cache_loc = swa_out_cache_loc_.read()};
  }

 private:
  MetadataCase case_;
  DeviceArray<std::byte> req_pool_indices_, seq_lens_, q_lens_;
  DeviceArray<std::int32_t> req_to_token_;
  DeviceArray<std::int64_t> full_to_swa_, out_cache_loc_, strided_indices_;
  DeviceArray<std::int32_t> cache_seqlens_, cu_seqlens_k_, cu_seqlens_q_;
  DeviceArray<std::int32_t> page_table_, swa_page_table_;
  DeviceArray<std::int64_t> swa_out_cache_loc_;
};

}  // namespace tpjitter::test
