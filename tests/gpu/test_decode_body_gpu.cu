// The decode body on the GPU against the reference checksum, and against metadata that is a step
// old. All ranks on one GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "kernels/decode_body.h"
#include "tests/gpu/all_reduce_ranks.h"

namespace tpjitter {
namespace {

using kernels::DecodeBodyArgs;
using kernels::DecodeMetadataArgs;

struct BodyCase {
  int world_size, layers, batch_size, live_rows, max_seq_pages, page_size, elements;
  bool swa;
};

// One step's tables in host memory, random but for their structure.
struct HostTables {
  HostTables(const BodyCase& c, std::uint64_t seed) : shape(c) {
    std::mt19937_64 random(seed);
    const auto below = [&](std::int64_t n) { return static_cast<std::int64_t>(random() % n); };
    std::int32_t total = 0;
    cu_seqlens_k = cu_seqlens_q = {0};
    for (int row = 0; row < c.batch_size; ++row) {
      const auto length = static_cast<std::int32_t>(1 + below(c.max_seq_pages * c.page_size));
      cache_seqlens.push_back(length);
      cu_seqlens_k.push_back(total += length);
      cu_seqlens_q.push_back(row + 1);
      out_cache_loc.push_back(below(kSlots));
      swa_out_cache_loc.push_back(below(kSlots) - 1);
    }
    for (int i = 0; i < c.batch_size * c.max_seq_pages; ++i) {
      page_table.push_back(static_cast<std::int32_t>(below(1000)));
      swa_page_table.push_back(static_cast<std::int32_t>(below(1000) - 1));
    }
  }
  DecodeMetadataArgs args() {
    DecodeMetadataArgs a;
    a.cache_seqlens = cache_seqlens.data();
    a.cu_seqlens_k = cu_seqlens_k.data();
    a.cu_seqlens_q = cu_seqlens_q.data();
    a.page_table = page_table.data();
    a.out_cache_loc = out_cache_loc.data();
    a.page_table_stride = a.swa_page_table_stride = shape.max_seq_pages;
    a.num_out_tokens = a.batch_size = shape.batch_size;
    a.max_seq_pages = shape.max_seq_pages;
    a.page_size = shape.page_size;
    if (shape.swa) {
      a.swa_page_table = swa_page_table.data();
      a.swa_out_cache_loc = swa_out_cache_loc.data();
      a.swa_out_len = shape.batch_size;
    }
    return a;
  }

  static constexpr std::int64_t kSlots = 4096;
  BodyCase shape;
  std::vector<std::int32_t> cache_seqlens, cu_seqlens_k, cu_seqlens_q, page_table, swa_page_table;
  std::vector<std::int64_t> out_cache_loc, swa_out_cache_loc;
};

// A rank's device side: tables, state, ring, accept result.
struct DeviceBody {
  DeviceBody(const HostTables& t, std::int64_t ring_capacity)
      : cache_seqlens(t.cache_seqlens.size()),
        cu_seqlens_k(t.cu_seqlens_k.size()),
        cu_seqlens_q(t.cu_seqlens_q.size()),
        page_table(t.page_table.size()),
        swa_page_table(t.swa_page_table.size()),
        seq_lens(zeroed<std::int32_t>(t.cache_seqlens.size())),
        out_cache_loc(t.out_cache_loc.size()),
        swa_out_cache_loc(t.swa_out_cache_loc.size()),
        graph_stamps(zeroed<kernels::GraphStamp>(ring_capacity)) {}
  void write(const HostTables& t) {
    upload(cache_seqlens.data(), t.cache_seqlens);
    upload(cu_seqlens_k.data(), t.cu_seqlens_k);
    upload(cu_seqlens_q.data(), t.cu_seqlens_q);
    upload(page_table.data(), t.page_table);
    upload(swa_page_table.data(), t.swa_page_table);
    upload(out_cache_loc.data(), t.out_cache_loc);
    upload(swa_out_cache_loc.data(), t.swa_out_cache_loc);
  }

  DeviceBuffer<std::int32_t> cache_seqlens, cu_seqlens_k, cu_seqlens_q, page_table, swa_page_table,
      seq_lens;
  DeviceBuffer<std::int64_t> out_cache_loc, swa_out_cache_loc;
  DeviceBuffer<std::int32_t> kv = zeroed<std::int32_t>(HostTables::kSlots);
  DeviceBuffer<std::int32_t> swa_kv = zeroed<std::int32_t>(HostTables::kSlots);
  DeviceBuffer<kernels::DecodeBodyState> state = zeroed<kernels::DecodeBodyState>(1);
  DeviceBuffer<kernels::GraphStamp> graph_stamps;
  PinnedBuffer<kernels::AcceptResult> result{1};
};

class BodyRanks {
 public:
  static constexpr std::int64_t kRingCapacity = 4;
  static constexpr std::uint64_t kSeed = 5;
  static constexpr int kForwards = 2;  // of a graph, at most

  BodyRanks(const BodyCase& shape, const HostTables& tables)
      : shape_(shape), comm_(shape.world_size, shape.elements * 2, stamps_of(shape)) {
    for (int r = 0; r < shape.world_size * kForwards; ++r) {
      bodies_.emplace_back(tables, kRingCapacity);
    }
    check_cuda(cudaDeviceSynchronize());
  }

  kernels::DecodeBodyShape body_shape() const {
    kernels::DecodeBodyShape s;
    s.layers = shape_.layers;
    s.world_size = shape_.world_size;
    s.all_reduce_elements = shape_.elements;
    s.swa = shape_.swa;
    return s;
  }

  // All-reduce stamps: room of a replay, and of the ring.
  static int room(const BodyCase& shape) { return kForwards * 2 * shape.layers; }
  static int stamps_of(const BodyCase& shape) {
    return room(shape) * static_cast<int>(kRingCapacity);
  }

  void run_step(HostTables& tables) { run_graph({&tables}, /*end_of_step=*/true); }

  // A replay on every rank; all-reduces of the ranks interleave as their streams do.
  void run_graph(const std::vector<HostTables*>& forwards, bool end_of_step) {
    layers_ = shape_.layers * static_cast<int>(forwards.size());
    for (std::size_t f = 0; f < forwards.size(); ++f) {
      for (int r = 0; r < shape_.world_size; ++r) tables_of(f, r).write(*forwards[f]);
    }
    check_cuda(cudaDeviceSynchronize());
    for (int layer = 0; layer < layers_; ++layer) {
      const std::size_t f = layer / shape_.layers;
      const auto args_of = [&](int r) { return args(r, *forwards[f], tables_of(f, r)); };
      for_each_rank([&](int r) { return kernels::launch_attention(args_of(r), layer, stream(r)); });
      for_each_rank([&](int r) { return all_reduce(r, 2 * layer); });
      for_each_rank([&](int r) { return kernels::launch_load(args_of(r), layer, stream(r)); });
      for_each_rank([&](int r) { return all_reduce(r, 2 * layer + 1); });
    }
    const std::size_t last = forwards.size() - 1;
    for_each_rank([&](int r) {
      return kernels::launch_head(args(r, *forwards[last], tables_of(last, r)), stream(r));
    });
    for_each_rank(
        [&](int r) { return kernels::launch_accept(accept_args(r, end_of_step), stream(r)); });
    comm_.synchronize_all();
  }

  const kernels::AcceptResult& result(int rank) { return bodies_[rank].result[0]; }
  DeviceBody& body(int rank) { return bodies_[rank]; }
  AllReduceRanks& comm() { return comm_; }

 private:
  cudaStream_t stream(int r) { return comm_[r].stream.get(); }
  template <class Launch>
  void for_each_rank(Launch launch) {
    for (int r = 0; r < shape_.world_size; ++r) check_cuda(launch(r));
  }
  kernels::StampRing ring(int r) {
    kernels::StampRing ring;
    ring.all_reduces = comm_[r].stamps.data();
    ring.graphs = bodies_[r].graph_stamps.data();
    ring.entry = &bodies_[r].state.data()->ring_entry;
    ring.capacity = kRingCapacity;
    ring.all_reduces_per_replay = room(shape_);
    return ring;
  }
  int all_reduce(int r, int ordinal) {
    kernels::AllReduceArgs a = comm_.args(r, ordinal, shape_.elements * 2);
    a.ring = ring(r);
    return kernels::launch_one_shot_pull(a, stream(r));
  }
  // A rank's state is in its first body; further forwards have tables of their own.
  DeviceBody& tables_of(std::size_t forward, int r) {
    return bodies_[forward * shape_.world_size + r];
  }
  DecodeBodyArgs args(int r, HostTables& host, DeviceBody& tables) {
    DeviceBody& body = bodies_[r];
    DecodeBodyArgs a;
    a.metadata = host.args();
    a.metadata.cache_seqlens = tables.cache_seqlens.data();
    a.metadata.cu_seqlens_k = tables.cu_seqlens_k.data();
    a.metadata.cu_seqlens_q = tables.cu_seqlens_q.data();
    a.metadata.page_table = tables.page_table.data();
    a.metadata.swa_page_table = tables.swa_page_table.data();
    a.metadata.out_cache_loc = tables.out_cache_loc.data();
    a.metadata.swa_out_cache_loc = tables.swa_out_cache_loc.data();
    a.shape = body_shape();
    a.shape.layers = layers_;
    a.state = body.state.data();
    a.kv = body.kv.data();
    a.swa_kv = body.swa_kv.data();
    a.kv_slots = a.swa_kv_slots = HostTables::kSlots;
    a.reduced = comm_[r].output.data();
    a.inputs[0] = comm_[r].inputs[0].data();
    a.inputs[1] = comm_[r].inputs[1].data();
    a.layer_ns = 5'000;
    a.rank = r;
    a.stamp_begin = true;
    a.ring = ring(r);
    a.guard.abort = comm_[r].abort.data();
    return a;
  }
  kernels::AcceptArgs accept_args(int r, bool end_of_step) {
    kernels::AcceptArgs a;
    a.state = bodies_[r].state.data();
    a.seq_lens = bodies_[r].seq_lens.data();
    a.result = bodies_[r].result.data();
    a.seed = kSeed;
    a.live_rows = shape_.live_rows;
    a.end_of_step = end_of_step;
    a.ring = ring(r);
    a.guard.abort = comm_[r].abort.data();
    return a;
  }

  BodyCase shape_;
  AllReduceRanks comm_;
  std::vector<DeviceBody> bodies_;  // [forwards, ranks]
  int layers_ = 0;                  // of the graph being run
};

class DecodeBodyOnGpu : public AllRanksTest, public testing::WithParamInterface<BodyCase> {};
INSTANTIATE_TEST_SUITE_P(Shapes, DecodeBodyOnGpu,
                         testing::Values(BodyCase{1, 1, 1, 1, 1, 1, 8, false},
                                         BodyCase{1, 3, 8, 7, 33, 64, 23'040, true},
                                         BodyCase{2, 2, 5, 5, 16, 16, 14'400, true},
                                         BodyCase{3, 2, 17, 16, 300, 64, 4'096, false},
                                         BodyCase{2, 5, 200, 130, 7, 1, 200 * 128, true}));

TEST_P(DecodeBodyOnGpu, GivesTheReferenceChecksumInEveryStep) {
  const BodyCase& shape = GetParam();
  HostTables tables(shape, 1);
  BodyRanks ranks(shape, tables);
  std::vector<std::int32_t> seq_lens(shape.batch_size, 0);
  for (std::int64_t step = 0; step < 2 * BodyRanks::kRingCapacity; ++step) {
    tables = HostTables(shape, 10 + step);
    ranks.run_step(tables);
    const std::uint64_t expected =
        kernels::reference_step_checksum(tables.args(), ranks.body_shape(), step);
    std::int64_t accepted = 0;
    for (int row = 0; row < shape.live_rows; ++row) {
      const auto tokens = kernels::accepted_tokens(BodyRanks::kSeed, step, row);
      accepted += tokens;
      seq_lens[row] += tokens;
    }
    for (int r = 0; r < shape.world_size; ++r) {
      EXPECT_EQ(ranks.result(r).step, step + 1);
      EXPECT_EQ(ranks.result(r).checksum, expected) << "rank " << r << ", step " << step;
      EXPECT_EQ(ranks.result(r).accepted_tokens, accepted);
      EXPECT_EQ(ranks.result(r).abort, 0u);
      EXPECT_EQ(download(ranks.body(r).seq_lens.data(), shape.batch_size), seq_lens);
    }
  }
}

TEST_P(DecodeBodyOnGpu, WithThePreviousStepsMetadataFailsTheChecksum) {
  const BodyCase& shape = GetParam();
  HostTables previous(shape, 1);
  HostTables current(shape, 2);
  BodyRanks ranks(shape, previous);
  ranks.run_step(previous);
  const auto first = kernels::reference_step_checksum(previous.args(), ranks.body_shape(), 0);
  ASSERT_EQ(ranks.result(0).checksum, first);
  ranks.run_step(previous);  // a rebuild that did not happen
  EXPECT_NE(ranks.result(0).checksum,
            kernels::reference_step_checksum(current.args(), ranks.body_shape(), 1));
}

TEST_P(DecodeBodyOnGpu, WritesItsKvSlots) {
  const BodyCase& shape = GetParam();
  HostTables tables(shape, 3);
  BodyRanks ranks(shape, tables);
  ranks.run_step(tables);  // step 0 writes 0
  ranks.run_step(tables);
  const auto kv = download(ranks.body(0).kv.data(), HostTables::kSlots);
  const auto swa_kv = download(ranks.body(0).swa_kv.data(), HostTables::kSlots);
  for (int row = 0; row < shape.batch_size; ++row) {
    // The only layer of a one-layer body slides when there is SWA.
    if (!shape.swa || shape.layers > 1) EXPECT_EQ(kv[tables.out_cache_loc[row]], 1);
    const std::int64_t location = tables.swa_out_cache_loc[row];
    if (shape.swa && location >= 0) EXPECT_EQ(swa_kv[location], 1);
  }
}

TEST_P(DecodeBodyOnGpu, StampsEveryReplayInTheRing) {
  const BodyCase& shape = GetParam();
  HostTables tables(shape, 4);
  BodyRanks ranks(shape, tables);
  constexpr std::int64_t kSteps = BodyRanks::kRingCapacity + 1;  // wraps: entry 0 is the last step
  for (int step = 0; step < kSteps; ++step) ranks.run_step(tables);
  for (int r = 0; r < shape.world_size; ++r) {
    const auto graphs = download(ranks.body(r).graph_stamps.data(), BodyRanks::kRingCapacity);
    const auto stamps = download(ranks.comm()[r].stamps.data(), BodyRanks::stamps_of(shape));
    for (std::int64_t entry = 0; entry < BodyRanks::kRingCapacity; ++entry) {
      EXPECT_EQ(graphs[entry].replay, entry == 0 ? kSteps : entry + 1);
      std::int64_t last = graphs[entry].begin_ns;
      EXPECT_GT(last, 0);
      for (int n = 0; n < 2 * shape.layers; ++n) {
        const kernels::AllReduceStamp& stamp = stamps[entry * BodyRanks::room(shape) + n];
        EXPECT_LE(last, stamp.own_ns);
        EXPECT_LE(stamp.own_ns, stamp.end_ns);
        last = stamp.end_ns;
      }
      EXPECT_LE(last, graphs[entry].end_ns);
    }
  }
}

TEST_P(DecodeBodyOnGpu, TellsTheHostWhenItWasAborted) {
  const BodyCase& shape = GetParam();
  HostTables tables(shape, 5);
  BodyRanks ranks(shape, tables);
  for (int r = 0; r < shape.world_size; ++r) upload(ranks.comm()[r].abort.data(), {1u});
  ranks.run_step(tables);
  for (int r = 0; r < shape.world_size; ++r) {
    EXPECT_EQ(ranks.result(r).abort, 1u);
    EXPECT_EQ(ranks.result(r).step, 1);
    EXPECT_EQ(ranks.result(r).checksum, 0u) << "an aborted body does no work";
  }
}

// Draft passes in one graph, then another graph in the same step.
TEST_P(DecodeBodyOnGpu, FoldsEveryForwardOfAGraphAndAcceptsAtTheEndOfTheStep) {
  const BodyCase& shape = GetParam();
  HostTables first(shape, 6), second(shape, 7), third(shape, 8);
  BodyRanks ranks(shape, first);
  std::vector<std::int32_t> seq_lens(shape.batch_size, 0);
  for (std::int64_t step = 0; step < BodyRanks::kRingCapacity; ++step) {
    ranks.run_graph({&first, &second}, /*end_of_step=*/false);
    const kernels::GraphForward forwards[] = {{first.args(), shape.layers, shape.swa},
                                              {second.args(), shape.layers, shape.swa}};
    const std::int64_t entry = 2 * step % BodyRanks::kRingCapacity;
    for (int r = 0; r < shape.world_size; ++r) {
      const auto stamps = download(ranks.body(r).graph_stamps.data(), BodyRanks::kRingCapacity);
      EXPECT_EQ(stamps[entry].replay, 2 * step + 1);
      EXPECT_EQ(stamps[entry].checksum,
                kernels::reference_graph_checksum(forwards, ranks.body_shape(), step));
      EXPECT_EQ(ranks.result(r).step, step) << "the step goes on";
      EXPECT_EQ(download(ranks.body(r).seq_lens.data(), shape.batch_size), seq_lens);
    }
    ranks.run_graph({&third}, /*end_of_step=*/true);
    for (int row = 0; row < shape.live_rows; ++row) {
      seq_lens[row] += kernels::accepted_tokens(BodyRanks::kSeed, step, row);
    }
    for (int r = 0; r < shape.world_size; ++r) {
      const auto stamps = download(ranks.body(r).graph_stamps.data(), BodyRanks::kRingCapacity);
      EXPECT_EQ(stamps[entry + 1].replay, 2 * step + 2);
      EXPECT_EQ(stamps[entry + 1].checksum,
                kernels::reference_step_checksum(third.args(), ranks.body_shape(), step));
      EXPECT_EQ(ranks.result(r).step, step + 1);
      EXPECT_EQ(download(ranks.body(r).seq_lens.data(), shape.batch_size), seq_lens);
    }
  }
}

}  // namespace
}  // namespace tpjitter
