// Every kind of attention tables on the GPU against the reference checksum: one rank, whose
// all-reduce is a copy. Random tables; one stale value of any table fails the checksum; index
// lists and states are written through, and a wild index corrupts nothing.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/decode_body.h"
#include "tests/gpu/gpu_test_main.h"

namespace tpjitter {
namespace {

using kernels::AttentionTables;
using kernels::DecodeBodyArgs;
using kernels::DecodeMetadataArgs;
using kernels::KvIndicesWrapper;
using kernels::TableKind;
using kernels::TopkTable;
using test::check_cuda;
using test::DeviceArray;

constexpr std::int64_t kSlots = 4096;
constexpr int kElements = 4096;
constexpr int kLayers = 8;  // two of them with full attention in a hybrid-linear model
constexpr std::int64_t kStep = 11;

// Random arrays that exist twice, on the host and on the device, and stay alive.
class Arena {
 public:
  explicit Arena(std::uint64_t seed) : random_(seed) {}
  std::int64_t below(std::int64_t limit) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(limit));
  }
  // A host pointer or a device pointer of the same array.
  template <typename T>
  struct Both {
    T* host;
    T* device;
  };
  Both<std::int32_t> ints(std::vector<std::int32_t> values) { return keep(ints_, values); }
  Both<std::int64_t> longs(std::vector<std::int64_t> values) { return keep(longs_, values); }
  Both<std::int32_t> random_ints(std::int64_t count, std::int32_t limit) {
    std::vector<std::int32_t> values;
    for (std::int64_t i = 0; i < count; ++i) {
      values.push_back(static_cast<std::int32_t>(below(limit)) - 1);
    }
    return ints(values);
  }
  Both<std::int32_t> sums(const std::vector<std::int32_t>& lengths) {
    std::vector<std::int32_t> values{0};
    for (const std::int32_t length : lengths) values.push_back(values.back() + length);
    return ints(values);
  }
  std::vector<std::int32_t> lengths(std::int32_t rows, std::int32_t longest) {
    std::vector<std::int32_t> values;
    for (std::int32_t row = 0; row < rows; ++row) {
      values.push_back(1 + static_cast<std::int32_t>(below(longest)));
    }
    return values;
  }
  // The first two values of one int32 array changed on the device only: what a missed rebuild
  // leaves. Of prefix sums the first is preset, of page tables the second may not be live.
  void make_stale(std::size_t array) {
    std::vector<std::int32_t> values = *ints_[array].host;
    values[0] += 1;
    values[1] += 1;
    ints_[array].device.write(values);
  }
  void restore(std::size_t array) { ints_[array].device.write(*ints_[array].host); }
  std::size_t int_arrays() const { return ints_.size(); }

 private:
  template <typename T>
  struct Kept {
    std::unique_ptr<std::vector<T>> host;
    DeviceArray<T> device;
  };
  template <typename T>
  Both<T> keep(std::vector<Kept<T>>& list, const std::vector<T>& values) {
    list.push_back({std::make_unique<std::vector<T>>(values), DeviceArray<T>(values)});
    return {list.back().host->data(), list.back().device.data()};
  }
  std::mt19937_64 random_;
  std::vector<Kept<std::int32_t>> ints_;
  std::vector<Kept<std::int64_t>> longs_;
};

struct Forward {
  DecodeMetadataArgs metadata;
  AttentionTables tables;
};

// The same forward over host and over device memory.
struct BothForwards {
  Forward host, device;
};

constexpr std::int32_t kPages = 40;
constexpr std::int32_t kPageSize = 16;

template <typename T, typename Field>
void set(const Arena::Both<T>& array, Field* host, Field* device) {
  *host = array.host;
  *device = array.device;
}

void add_metadata(Arena& arena, std::int32_t rows, bool swa, DecodeMetadataArgs& host,
                  DecodeMetadataArgs& device) {
  const std::vector<std::int32_t> lengths = arena.lengths(rows, kPages * kPageSize);
  host.batch_size = rows;
  host.max_seq_pages = kPages;
  host.page_size = kPageSize;
  host.page_table_stride = host.swa_page_table_stride = kPages;
  host.num_out_tokens = rows;
  host.swa_out_len = swa ? rows : 0;
  device = host;
  set(arena.ints(lengths), &host.cache_seqlens, &device.cache_seqlens);
  set(arena.sums(lengths), &host.cu_seqlens_k, &device.cu_seqlens_k);
  set(arena.random_ints(rows + 1, 100), &host.cu_seqlens_q, &device.cu_seqlens_q);
  set(arena.random_ints(rows * kPages, 1000), &host.page_table, &device.page_table);
  std::vector<std::int64_t> locations;
  for (std::int32_t row = 0; row < rows; ++row) locations.push_back(arena.below(kSlots + 9) - 1);
  const Arena::Both<std::int64_t> out = arena.longs(locations);
  host.out_cache_loc = out.host;
  device.out_cache_loc = out.device;
  if (!swa) return;
  set(arena.random_ints(rows * kPages, 1000), &host.swa_page_table, &device.swa_page_table);
  set(arena.longs(locations), &host.swa_out_cache_loc, &device.swa_out_cache_loc);
}

void add_lists(Arena& arena, std::int32_t rows, KvIndicesWrapper& host, KvIndicesWrapper& device) {
  const std::vector<std::int32_t> lengths = arena.lengths(rows, 700);
  const Arena::Both<std::int32_t> sums = arena.sums(lengths);
  host.capacity = sums.host[rows];
  device = host;
  set(sums, &host.kv_indptr, &device.kv_indptr);
  set(arena.random_ints(host.capacity, 4000), &host.kv_indices, &device.kv_indices);
  set(arena.random_ints(rows + 1, 50), &host.qo_indptr, &device.qo_indptr);
  const Arena::Both<std::int32_t> last = arena.random_ints(rows, 5);
  host.kv_last_page_len = last.host;
  device.kv_last_page_len = last.device;
}

void add_tree_table(Arena& arena, std::int32_t rows, std::int32_t width, TopkTable& host,
                    TopkTable& device) {
  const std::vector<std::int32_t> lengths = arena.lengths(rows, width);
  host.rows = rows;
  host.width = width;
  host.page_table_stride = width + 2;
  device = host;
  set(arena.ints(lengths), &host.cache_seqlens, &device.cache_seqlens);
  set(arena.sums(lengths), &host.cu_seqlens_k, &device.cu_seqlens_k);
  const Arena::Both<std::int32_t> queries = arena.random_ints(rows + 1, 90);
  host.cu_seqlens_q = queries.host;
  device.cu_seqlens_q = queries.device;
  set(arena.random_ints(rows * (width + 2), 9000), &host.page_table, &device.page_table);
}

BothForwards make_forward(Arena& arena, TableKind kind, std::int32_t rows, bool swa) {
  BothForwards f;
  add_metadata(arena, rows, swa, f.host.metadata, f.device.metadata);
  AttentionTables& host = f.host.tables;
  AttentionTables& device = f.device.tables;
  host.kind = device.kind = kind;
  if (kind == TableKind::kKvIndices) {
    add_lists(arena, rows, host.kv, device.kv);
    add_lists(arena, rows, host.swa_kv, device.swa_kv);
  } else if (kind == TableKind::kHybridLinear) {
    const Arena::Both<std::int32_t> states = arena.random_ints(rows, 300);
    const Arena::Both<std::int32_t> starts = arena.random_ints(rows + 1, 300);
    host.linear = {.state_indices = states.host, .query_start_loc = starts.host};
    device.linear = {.state_indices = states.device, .query_start_loc = starts.device};
  } else if (kind == TableKind::kTwoBatch) {
    for (int half = 0; half < 2; ++half) {
      const std::int32_t half_rows = kernels::batch_half(rows, half).rows;
      if (half_rows == 0) continue;
      add_metadata(arena, half_rows, swa, host.halves[half], device.halves[half]);
    }
  } else if (kind == TableKind::kTopk) {
    add_tree_table(arena, rows, 300, host.prefix, device.prefix);
    add_tree_table(arena, rows * 4, 4, host.expand, device.expand);
  }
  return f;
}

class DecodeBodyTablesGpu : public test::GpuTest, public testing::WithParamInterface<TableKind> {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    stream_ = std::make_unique<test::TestStream>();
    kernels::DecodeBodyState state{};
    state.step = kStep;
    state_ = DeviceArray<kernels::DecodeBodyState>(std::vector{state});
    result_ = DeviceArray<kernels::AcceptResult>(std::vector<kernels::AcceptResult>(1));
    for (DeviceArray<std::uint16_t>& buffer : buffers_) {
      buffer = DeviceArray<std::uint16_t>(std::vector<std::uint16_t>(kElements, 0));
    }
    kv_ = DeviceArray<std::int32_t>(std::vector<std::int32_t>(kSlots, -1));
    swa_kv_ = DeviceArray<std::int32_t>(std::vector<std::int32_t>(kSlots, -1));
    states_ = DeviceArray<std::int32_t>(std::vector<std::int32_t>(kStates, -1));
  }

  kernels::DecodeBodyShape shape(bool swa) const {
    kernels::DecodeBodyShape s;
    s.layers = kLayers;
    s.all_reduce_elements = kElements;
    s.swa = swa;
    return s;
  }

  // Checksum of one replay over device tables.
  std::uint64_t run(const Forward& forward, bool swa) {
    kernels::DecodeBodyState state{};
    state.step = kStep;
    state_.write({state});
    DecodeBodyArgs args;
    args.metadata = forward.metadata;
    args.tables = forward.tables;
    args.tables.linear.states = states_.data();
    args.tables.linear.state_slots = kStates;
    args.shape = shape(swa);
    args.state = state_.data();
    args.kv = kv_.data();
    args.swa_kv = swa_kv_.data();
    args.kv_slots = args.swa_kv_slots = kSlots;
    args.inputs[0] = buffers_[0].data();
    args.inputs[1] = buffers_[1].data();
    args.reduced = buffers_[2].data();
    const auto all_reduce = [&](int ordinal) {
      return cudaMemcpyAsync(buffers_[2].data(), buffers_[ordinal % 2].data(),
                             kElements * sizeof(std::uint16_t), cudaMemcpyDeviceToDevice,
                             stream_->get());
    };
    for (int layer = 0; layer < kLayers; ++layer) {
      check_cuda(launch_attention(args, layer, stream_->get()));
      check_cuda(all_reduce(2 * layer));
      check_cuda(launch_load(args, layer, stream_->get()));
      check_cuda(all_reduce(2 * layer + 1));
    }
    check_cuda(launch_head(args, stream_->get()));
    kernels::AcceptArgs accept;
    accept.state = state_.data();
    accept.result = result_.data();
    check_cuda(launch_accept(accept, stream_->get()));
    stream_->sync();
    return result_.read()[0].checksum;
  }

  std::uint64_t expected(const Forward& forward, bool swa) const {
    kernels::GraphForward graph;
    graph.metadata = forward.metadata;
    graph.layers = kLayers;
    graph.swa = swa;
    graph.tables = forward.tables;
    return kernels::reference_graph_checksum({&graph, 1}, shape(swa), kStep);
  }

  static constexpr std::int64_t kStates = 256;  // fewer than the indices reach to
  std::unique_ptr<test::TestStream> stream_;
  DeviceArray<kernels::DecodeBodyState> state_;
  DeviceArray<kernels::AcceptResult> result_;
  DeviceArray<std::uint16_t> buffers_[3];
  DeviceArray<std::int32_t> kv_, swa_kv_, states_;
};
INSTANTIATE_TEST_SUITE_P(Kinds, DecodeBodyTablesGpu,
                         testing::Values(TableKind::kPaged, TableKind::kKvIndices,
                                         TableKind::kHybridLinear, TableKind::kTwoBatch,
                                         TableKind::kTopk));

TEST_P(DecodeBodyTablesGpu, GiveTheReferenceChecksum) {
  for (const std::int32_t rows : {1, 2, 7, 33, 200}) {
    for (const bool swa : {false, true}) {
      Arena arena(static_cast<std::uint64_t>(rows));
      const BothForwards f = make_forward(arena, GetParam(), rows, swa);
      EXPECT_EQ(run(f.device, swa), expected(f.host, swa)) << rows << " rows, swa " << swa;
    }
  }
}

TEST_P(DecodeBodyTablesGpu, FailTheChecksumWithStaleValuesOfAnyTableTheyRead) {
  Arena arena(3);
  const BothForwards f = make_forward(arena, GetParam(), 6, true);
  const std::uint64_t right = expected(f.host, true);
  int caught = 0;
  for (std::size_t array = 0; array < arena.int_arrays(); ++array) {
    arena.make_stale(array);
    caught += run(f.device, true) != right ? 1 : 0;
    arena.restore(array);
  }
  EXPECT_EQ(run(f.device, true), right);
  // Arrays of int32 a kind reads: 5 paged with SWA; 4 of each list; 4 of full layers and 2 of
  // linear ones; 5 of each half; 4 of each tree object.
  const int read[] = {5, 8, 6, 10, 8};
  EXPECT_EQ(caught, read[static_cast<int>(GetParam())]);
}

TEST_P(DecodeBodyTablesGpu, WriteTheirSlotsAndStatesAndNothingPastThem) {
  Arena arena(4);
  const BothForwards f = make_forward(arena, GetParam(), 50, false);
  run(f.device, false);
  const std::vector<std::int32_t> kv = kv_.read();
  const bool halves = GetParam() == TableKind::kTwoBatch;
  const DecodeMetadataArgs& m = halves ? f.host.tables.halves[1] : f.host.metadata;
  for (std::int64_t i = 0; i < m.num_out_tokens; ++i) {
    const std::int64_t location = m.out_cache_loc[i];
    if (location >= 0 && location < kSlots) EXPECT_EQ(kv[location], kStep);
  }
  if (GetParam() != TableKind::kHybridLinear) return;
  const std::vector<std::int32_t> states = states_.read();
  for (std::int32_t row = 0; row < 50; ++row) {
    const std::int32_t state = f.host.tables.linear.state_indices[row];
    if (state >= 0 && state < kStates) EXPECT_EQ(states[static_cast<std::size_t>(state)], kStep);
  }
}

class DecodeBodyTablesRefusal : public test::GpuTest {};

TEST_F(DecodeBodyTablesRefusal, OfAKindThatIsNone) {
  const test::TestStream stream;
  DecodeBodyArgs args;
  args.tables.kind = static_cast<TableKind>(9);
  EXPECT_EQ(launch_attention(args, 0, stream.get()), cudaErrorInvalidValue);
}

TEST_F(DecodeBodyTablesRefusal, OfFewerCountersThanTheForwardHasTokens) {
  const test::TestStream stream;
  const DeviceArray<std::int32_t> counters(std::vector<std::int32_t>(7, 0));
  for (const TableKind kind : {TableKind::kPaged, TableKind::kKvIndices, TableKind::kHybridLinear,
                               TableKind::kTwoBatch, TableKind::kTopk}) {
    DecodeBodyArgs args;
    args.tables.kind = kind;
    args.metadata.num_out_tokens = 8;
    args.scratch.counters = counters.data();
    args.scratch.counter_rows = 7;
    EXPECT_EQ(launch_attention(args, 0, stream.get()), cudaErrorInvalidValue);
  }
}

}  // namespace
}  // namespace tpjitter
