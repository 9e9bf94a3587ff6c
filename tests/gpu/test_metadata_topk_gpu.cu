// The tree-drafting kernels and their op-by-op form on a GPU against the reference, word for word
// with poison around every output; captured, and replayed with other lengths, slots and masks.
#include <cstdint>
#include <memory>
#include <vector>

#include "tests/gpu/device_ops.h"
#include "tests/gpu/gpu_test_main.h"
#include "tests/topk_cases.h"

namespace tpjitter {
namespace {

using kernels::IntType;
using kernels::TopkDraftArgs;
using kernels::TopkTable;
using kernels::TopkVerifyArgs;
using test::check_cuda;
using test::DeviceArray;
using test::TopkArrays;
using test::TopkCase;
using test::TopkOutputs;

struct DeviceTable {
  explicit DeviceTable(const TopkArrays& a)
      : cache_seqlens(a.cache_seqlens),
        cu_seqlens_k(a.cu_seqlens_k),
        cu_seqlens_q(a.cu_seqlens_q),
        page_table(a.page_table) {}
  void write(const TopkArrays& a) {
    cache_seqlens.write(a.cache_seqlens);
    cu_seqlens_k.write(a.cu_seqlens_k);
    cu_seqlens_q.write(a.cu_seqlens_q);
    page_table.write(a.page_table);
  }
  TopkArrays read() const {
    return {cache_seqlens.read(), cu_seqlens_k.read(), cu_seqlens_q.read(), page_table.read()};
  }
  void bind(TopkTable& table) const {
    table.cache_seqlens = cache_seqlens.data();
    table.cu_seqlens_k = cu_seqlens_k.data();
    table.cu_seqlens_q = cu_seqlens_q.data();
    table.page_table = page_table.data();
  }
  DeviceArray<std::int32_t> cache_seqlens, cu_seqlens_k, cu_seqlens_q, page_table;
};

class DeviceCase {
 public:
  explicit DeviceCase(const TopkCase& c)
      : case_(c),
        req_pool_indices_(c.req_pool_indices),
        seq_lens_(c.seq_lens),
        out_cache_loc_(c.out_cache_loc),
        req_to_token_(c.req_to_token),
        custom_mask_(c.custom_mask),
        prefix_(poisoned_outputs(c).prefix),
        expand_(poisoned_outputs(c).expand) {
    const std::vector<std::int32_t> lens(c.seq_lens.begin(), c.seq_lens.end());
    const std::vector<std::int32_t> rows(c.req_pool_indices.begin(), c.req_pool_indices.end());
    seq_lens32_ = DeviceArray<std::int32_t>(lens);
    req_pool_indices32_ = DeviceArray<std::int32_t>(rows);
  }
  void poison() {
    const TopkOutputs fresh = poisoned_outputs(case_);
    prefix_.write(fresh.prefix);
    expand_.write(fresh.expand);
  }
  // Other values of the same sizes into the same buffers.
  void set_inputs(const TopkCase& c) {
    case_ = c;
    req_pool_indices_.write(c.req_pool_indices);
    seq_lens_.write(c.seq_lens);
    out_cache_loc_.write(c.out_cache_loc);
    req_to_token_.write(c.req_to_token);
    if (c.custom_mask.size() == custom_mask_.size()) custom_mask_.write(c.custom_mask);
  }
  TopkDraftArgs draft(IntType type = IntType::kInt64) const {
    TopkOutputs none = poisoned_outputs(case_);
    TopkDraftArgs args = bind_draft(case_, none);
    set_common(args, type);
    args.out_cache_loc = out_cache_loc_.data();
    return args;
  }
  TopkVerifyArgs verify(IntType type = IntType::kInt64) const {
    TopkOutputs none = poisoned_outputs(case_);
    TopkVerifyArgs args = bind_verify(case_, none);
    set_common(args, type);
    args.custom_mask = custom_mask_.data();
    return args;
  }
  TopkOutputs outputs() const { return {prefix_.read(), expand_.read()}; }
  const TopkCase& inputs() const { return case_; }

 private:
  template <class Args>
  void set_common(Args& args, IntType type) const {
    const bool wide = type == IntType::kInt64;
    args.req_pool_indices = wide ? static_cast<const void*>(req_pool_indices_.data())
                                 : static_cast<const void*>(req_pool_indices32_.data());
    args.seq_lens = wide ? static_cast<const void*>(seq_lens_.data())
                         : static_cast<const void*>(seq_lens32_.data());
    args.req_pool_indices_type = args.seq_lens_type = type;
    args.req_to_token = req_to_token_.data();
    prefix_.bind(args.prefix);
    expand_.bind(args.expand);
  }

  TopkCase case_;
  DeviceArray<std::int64_t> req_pool_indices_, seq_lens_, out_cache_loc_;
  DeviceArray<std::int32_t> seq_lens32_, req_pool_indices32_, req_to_token_;
  DeviceArray<std::uint8_t> custom_mask_;
  DeviceTable prefix_, expand_;
};

class MetadataTopkGpu : public test::GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (!IsSkipped()) stream_ = std::make_unique<test::TestStream>();
  }
  void launch(const DeviceCase& device, IntType type = IntType::kInt64) {
    if (device.inputs().verify) {
      check_cuda(launch_topk_verify(device.verify(type), stream_->get()));
    } else {
      check_cuda(launch_topk_draft(device.draft(type), stream_->get()));
    }
  }
  std::unique_ptr<test::TestStream> stream_;
};

TEST_F(MetadataTopkGpu, TheKernelsEqualTheReferenceInEveryWord) {
  for (const TopkCase& c : test::random_topk_cases()) {
    DeviceCase device(c);
    for (const IntType type : {IntType::kInt64, IntType::kInt32}) {
      device.poison();
      launch(device, type);
      stream_->sync();
      ASSERT_EQ(first_difference(device.outputs(), reference_outputs(c)), "")
          << c.name << ", bytes an index " << static_cast<int>(type);
    }
  }
}

TEST_F(MetadataTopkGpu, TheOperationsEqualTheReferenceInEveryWord) {
  test::DeviceOps ops(stream_->get());
  for (const TopkCase& c : test::random_topk_cases()) {
    const DeviceCase device(c);
    if (c.verify) {
      check_cuda(rebuild_topk_verify_aten(*ops, device.verify(), c.seq_lens.data(), c.pool_rows));
    } else {
      check_cuda(rebuild_topk_draft_aten(*ops, device.draft(), c.seq_lens.data(), c.pool_rows));
    }
    stream_->sync();
    ASSERT_EQ(first_difference(device.outputs(), aten_outputs(c)), "") << c.name;
  }
}

TEST_F(MetadataTopkGpu, IsOneNodeThatReplaysNewLengthsAndSlots) {
  for (const bool verify : {false, true}) {
    TopkCase c;
    c.batch_size = c.live_rows = 9;
    c.verify = verify;
    c.page_size = verify ? 1 : 4;
    c.width = verify ? 40 : 10;
    c.step = 2;
    fill_case(c, 40);
    DeviceCase device(c);
    const test::CapturedGraph graph(*stream_, [&] { launch(device); });
    EXPECT_EQ(graph.count_nodes(), 1);
    for (int replay = 0; replay < 3; ++replay) {
      device.poison();
      graph.replay(*stream_);
      ASSERT_EQ(first_difference(device.outputs(), reference_outputs(c)), "") << replay;
      // Lengths trade rows, so that the mask keeps its size, and every slot is another one.
      std::rotate(c.seq_lens.begin(), c.seq_lens.begin() + 1, c.seq_lens.end());
      for (std::int32_t& slot : c.req_to_token) slot = (slot * 5 + 1) % (1 << 20);
      for (std::int64_t& location : c.out_cache_loc) location = (location * 5 + 1) % (1 << 20);
      device.set_inputs(c);
    }
  }
}

TEST_F(MetadataTopkGpu, IsCutAtTheWidthAndAtTheEndOfTheMaskAndNeverReadsPastThem) {
  TopkCase c;
  c.batch_size = c.live_rows = 3;
  c.verify = true;
  fill_case(c, 50);
  c.seq_lens[1] = c.stride + 40;  // past its table, its request's row and the mask
  DeviceCase device(c);
  launch(device);
  stream_->sync();
  EXPECT_EQ(first_difference(device.outputs(), reference_outputs(c)), "");
}

TEST_F(MetadataTopkGpu, RefusesWhatMakesNoSenseAndLaunchesNothingForAnEmptyBatch) {
  TopkCase c;
  fill_case(c, 60);
  const DeviceCase device(c);
  TopkDraftArgs draft = device.draft();
  draft.topk = 9;
  EXPECT_EQ(launch_topk_draft(draft, stream_->get()), cudaErrorInvalidValue);
  draft.batch_size = 0;
  EXPECT_EQ(launch_topk_draft(draft, stream_->get()), cudaSuccess);
}

}  // namespace
}  // namespace tpjitter
