// The host backend's device: a modelled timeline on the real host clock. An operation starts at the
// later of its enqueue and the device being free; the first all-reduce of a graph ends at the last
// rank's arrival plus flight and transfer. Ranks exchange real arrivals through the shared segment,
// so launch skew between real processes becomes wait in the model exactly, and nothing else does.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "harness/backend.h"
#include "harness/contract/run_info.h"
#include "harness/control.h"

namespace tpjitter {

// Constants in ns. Orders of magnitude of an H200 node (launch costs, node time, all-reduce of a
// few KiB as published with 2 x H200, 2026-11); they stand in each run.json. A model, not a claim.
struct DeviceModel {
  std::int64_t kernel_launch_host_ns = 4200;  // host time of one kernel launch
  std::int64_t copy_launch_host_ns = 4200;    // host time of one asynchronous copy
  std::int64_t graph_launch_host_ns = 2200;   // host time of a graph launch, and per 1000 nodes:
  std::int64_t graph_launch_host_per_1000_nodes_ns = 1300;
  std::int64_t event_host_ns = 800;        // of an event's record, or of a stream's wait for one
  std::int64_t kernel_ns = 1200;           // device time of a small kernel or copy
  std::int64_t metadata_kernel_ns = 2000;  // the fused rebuild
  std::int64_t attention_ns = 2000;        // the attention stand-in of one layer
  std::int64_t filler_node_ns = 500;
  std::int64_t flight_ns = 1800;        // flag of the last rank to reach the others
  std::int64_t transfer_base_ns = 900;  // reduction after the last flag, and per byte:
  std::int64_t transfer_bytes_per_us = 200'000;
  std::int64_t accept_ns = 1500;

  std::int64_t transfer_ns(std::int64_t bytes) const {
    return transfer_base_ns + bytes * 1000 / transfer_bytes_per_us;
  }
  std::int64_t graph_launch_ns(std::int64_t nodes) const {
    return graph_launch_host_ns + nodes * graph_launch_host_per_1000_nodes_ns / 1000;
  }
  Json to_json() const;
};

// A forward, captured or launched kernel by kernel, reduced to what the timeline needs.
struct ModelledGraph {
  std::int64_t host_ns = 0;      // of its launch as a graph
  std::int64_t eager_nodes = 0;  // launched one by one; 0: as a graph
  std::int64_t lead_nodes = 0;   // up to the first all-reduce, included
  std::int64_t lead_ns = 0;      // graph begin to this rank's first all-reduce
  std::int64_t transfer_ns = 0;  // of one all-reduce
  std::int64_t rest_ns = 0;      // end of the first all-reduce to graph end
  std::int64_t read_ns = 0;      // graph begin to the end of its reads of the scheduler's tables
  std::int32_t all_reduces = 0;
};

// An injected delay on the device, the same on every rank: all wait for each other at the begin of
// the graph, so that what follows starts together, then the victim alone is late.
struct ModelledDelay {
  bool gate = false;
  int victim = -1;
  std::int64_t ns = 0;
};

// Device stamps of one graph replay.
struct ModelledReplay {
  std::int64_t begin_ns = 0, end_ns = 0;
  std::int64_t own_ns = 0, last_seen_ns = 0, all_reduce_end_ns = 0;
  std::int32_t last_peer = -1;
};

class ModelledDevice {
 public:
  ModelledDevice(const RankContext& context, const DeviceModel& model);

  // Each costs host time (a busy wait) and enqueues device time.
  void launch_kernel(std::int64_t device_ns);
  void copy_async();
  void launch_glue_graph(std::int64_t nodes);  // small kernels and copies
  void call_event();                           // its record, or a stream's wait for it
  // The scheduler's copy and kernel, on a stream of their own between two events: they begin when
  // the reads of the graph before are over, and what is enqueued next waits for them.
  void write_scheduled();
  void launch_graph(const ModelledGraph& graph, const ModelledDelay& delay = {});

  // Works the timeline off up to graph launch `n`, waiting for other ranks' arrivals: a GPU would
  // do so by itself. Throws PeerTimeout naming the peer, RunError on abort.
  void resolve_graph_launch(std::int64_t n);
  // The same (synchronize: for everything enqueued), then waits until its modelled end has passed.
  void wait_for_graph(std::int64_t n);
  void synchronize();

  // Graph launches so far, and the replay of launch `n`; the last `count` are kept. The device must
  // be idle when that number changes.
  std::int64_t graph_launches() const { return graph_launches_; }
  void keep_replays(std::int64_t count) { history_.assign(count, {}); }
  const ModelledReplay& replay(std::int64_t n) const { return history_[n % history_.size()]; }

  const DeviceModel& model() const { return model_; }

 private:
  struct Operation {
    std::int64_t enqueue_ns = 0;          // of its first kernel
    std::int64_t arrival_enqueue_ns = 0;  // eager: of the first all-reduce
    std::int64_t last_enqueue_ns = 0;     // eager: of the last kernel
    bool scheduled = false;               // on the scheduler's stream
    std::int64_t device_ns = 0;           // plain operations
    std::int64_t graph_ordinal = -1;
    ModelledGraph graph;
    ModelledDelay delay;
  };
  struct Arrivals {
    std::int64_t last_ns = 0;  // over all ranks
    int last_peer = -1;        // of the others
  };
  static constexpr int kQueue = 2048;  // operations that may be pending; a power of two

  void enqueue(const Operation& operation);
  void enqueue_plain(std::int64_t device_ns, bool scheduled);
  void launch_eagerly(Operation& operation);
  void resolve_next();
  void wait_until(std::int64_t end_ns);
  void resolve_graph(const Operation& operation);
  Arrivals exchange(std::int64_t ordinal, std::int64_t arrival_ns);
  std::int64_t peer_arrival(int peer, std::int64_t ordinal);

  RankContext context_;
  DeviceModel model_;
  std::int64_t deadline_ns_;
  std::int64_t free_ns_ = 0;       // the device is idle from here on
  std::int64_t scheduled_ns_ = 0;  // end of the scheduler's last writes
  std::int64_t read_done_ns_ = 0;  // of the graph resolved last
  std::int64_t graph_launches_ = 0;
  std::array<Operation, kQueue> queue_;  // a ring
  std::int64_t enqueued_ = 0;
  std::int64_t resolved_ = 0;
  std::int64_t graphs_resolved_ = 0;
  std::vector<ModelledReplay> history_{1};
};

}  // namespace tpjitter
