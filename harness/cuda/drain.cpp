#include "harness/cuda/drain.h"

#include <algorithm>

namespace tpjitter {
namespace {

// Ring entries [entry, entry + count) of `width` elements each, wrapped, appended in order.
template <class T>
void fetch_ring(const DeviceBuffer<T>& ring, std::int64_t capacity, std::int64_t width,
                std::int64_t first, std::int64_t count, std::vector<T>& to) {
  to.resize(static_cast<std::size_t>(count * width));
  std::int64_t done = 0;
  while (done < count) {
    const std::int64_t entry = (first + done) % capacity;
    const std::int64_t run = std::min(count - done, capacity - entry);
    check_cuda(cudaMemcpy(to.data() + done * width, ring.data() + entry * width,
                          static_cast<std::size_t>(run * width) * sizeof(T),
                          cudaMemcpyDeviceToHost));
    done += run;
  }
}

void fill_row(const kernels::GraphStamp& graph,
              std::span<const kernels::AllReduceStamp> all_reduces, int rank, int world_size,
              bool bracketed, PhaseRow& row) {
  const kernels::AllReduceStamp& first = all_reduces[0];
  row.gpu_begin_ns = graph.begin_ns;
  row.gpu_end_ns = graph.end_ns;
  row.first_all_reduce_own_ns = first.own_ns;
  row.first_all_reduce_end_ns = first.end_ns;
  row.all_reduce_count = static_cast<std::int32_t>(all_reduces.size());
  if (bracketed) {
    row.flags |= kFlagBracketed;
    return;
  }
  const LastSeen seen = last_seen(first, rank, world_size);
  row.first_all_reduce_last_seen_ns = seen.seen_ns;
  row.first_all_reduce_last_peer = seen.peer;
  if (first.waited != 0) row.flags |= kFlagWaited;
  for (const kernels::AllReduceStamp& stamp : all_reduces) {
    const LastSeen last = last_seen(stamp, rank, world_size);
    const std::int64_t wait = last.peer < 0 ? 0 : last.seen_ns - stamp.own_ns;
    row.all_reduce_wait_sum_ns += wait;
    row.all_reduce_wait_max_ns = std::max(row.all_reduce_wait_max_ns, wait);
  }
}

}  // namespace

void fetch_stamps(const CudaCase& c, std::int64_t first, std::int64_t end, DrainedStamps& stamps) {
  const kernels::StampRing ring = c.ring();
  stamps.per_replay = ring.all_reduces_per_replay;
  const std::int64_t begin = first * c.plan.graphs;
  const std::int64_t replays = (end - first) * c.plan.graphs;
  fetch_ring(c.graph_stamps, ring.capacity, 1, begin, replays, stamps.graphs);
  fetch_ring(c.all_reduce_stamps, ring.capacity, ring.all_reduces_per_replay, begin, replays,
             stamps.all_reduces);
}

LastSeen last_seen(const kernels::AllReduceStamp& stamp, int rank, int world_size) {
  LastSeen last;
  for (int p = 0; p < std::min(world_size, kernels::kMaxAllReduceRanks); ++p) {
    if (p == rank || stamp.seen_ns[p] < last.seen_ns) continue;
    last = {stamp.seen_ns[p], p};
  }
  return last;
}

void fill_device_fields(const CudaCase& c, const DrainedStamps& stamps, int rank,
                        std::span<PhaseRow> rows) {
  const std::size_t phases = c.plan.phases.size();
  const auto graphs = static_cast<std::size_t>(c.plan.graphs);
  const std::size_t unrecorded = stamps.graphs.size() / graphs - rows.size() / phases;  // steps
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const PlannedPhase& phase = c.plan.phases[i % phases];
    if (!phase.launches) continue;
    const std::size_t replay = (unrecorded + i / phases) * graphs + phase.graph;
    const auto all_reduces =
        std::span(stamps.all_reduces)
            .subspan(replay * stamps.per_replay, c.all_reduces_of_graph(phase.graph));
    fill_row(stamps.graphs[replay], all_reduces, rank, c.world_size, c.config.all_reduce == "nccl",
             rows[i]);
  }
}

}  // namespace tpjitter
