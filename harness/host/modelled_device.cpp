#include "harness/host/modelled_device.h"

#include <fmt/format.h>
#include <sched.h>
#include <time.h>

#include <algorithm>

#include "harness/clock.h"
#include "harness/contract/error.h"

namespace tpjitter {
namespace {

// The host sleeps until this long before a modelled end, then yields: wake-ups from sleep are late
// by tens of microseconds, a yield comes back as soon as no other rank wants the core.
constexpr std::int64_t kSleepMarginNs = 120'000;

void sleep_ns(std::int64_t ns) {
  const timespec t{ns / 1'000'000'000, ns % 1'000'000'000};
  nanosleep(&t, nullptr);
}

}  // namespace

Json DeviceModel::to_json() const {
  return {{"kernel_launch_host_ns", kernel_launch_host_ns},
          {"copy_launch_host_ns", copy_launch_host_ns},
          {"graph_launch_host_ns", graph_launch_host_ns},
          {"graph_launch_host_per_1000_nodes_ns", graph_launch_host_per_1000_nodes_ns},
          {"event_host_ns", event_host_ns},
          {"kernel_ns", kernel_ns},
          {"metadata_kernel_ns", metadata_kernel_ns},
          {"attention_ns", attention_ns},
          {"filler_node_ns", filler_node_ns},
          {"flight_ns", flight_ns},
          {"transfer_base_ns", transfer_base_ns},
          {"transfer_bytes_per_us", transfer_bytes_per_us},
          {"accept_ns", accept_ns}};
}

ModelledDevice::ModelledDevice(const RankContext& context, const DeviceModel& model)
    : context_(context), model_(model), deadline_ns_(context.control->deadlines().device_ns) {}

void ModelledDevice::launch_kernel(std::int64_t device_ns) {
  spin_until_ns(now_ns() + model_.kernel_launch_host_ns);
  enqueue_plain(device_ns, false);
}

void ModelledDevice::copy_async() {
  spin_until_ns(now_ns() + model_.copy_launch_host_ns);
  enqueue_plain(model_.kernel_ns, false);
}

void ModelledDevice::launch_glue_graph(std::int64_t nodes) {
  spin_until_ns(now_ns() + model_.graph_launch_ns(nodes));
  enqueue_plain(nodes * model_.kernel_ns, false);
}

void ModelledDevice::call_event() { spin_until_ns(now_ns() + model_.event_host_ns); }

void ModelledDevice::write_scheduled() {
  call_event();
  spin_until_ns(now_ns() + model_.copy_launch_host_ns + model_.kernel_launch_host_ns);
  enqueue_plain(2 * model_.kernel_ns, true);
  call_event();
  call_event();
}

void ModelledDevice::launch_graph(const ModelledGraph& graph, const ModelledDelay& delay) {
  Operation operation;
  operation.graph_ordinal = graph_launches_++;
  operation.graph = graph;
  operation.delay = delay;
  if (graph.eager_nodes > 0) {
    launch_eagerly(operation);
  } else {
    spin_until_ns(now_ns() + graph.host_ns);
    operation.enqueue_ns = now_ns();
  }
  enqueue(operation);
}

// Each launch is waited for by itself: a host that is interrupted is late with what comes after.
void ModelledDevice::launch_eagerly(Operation& operation) {
  for (std::int64_t node = 1; node <= operation.graph.eager_nodes; ++node) {
    spin_until_ns(now_ns() + model_.kernel_launch_host_ns);
    operation.last_enqueue_ns = now_ns();
    if (node == 1) operation.enqueue_ns = operation.last_enqueue_ns;
    if (node == operation.graph.lead_nodes) {
      operation.arrival_enqueue_ns = operation.last_enqueue_ns;
    }
  }
}

void ModelledDevice::enqueue_plain(std::int64_t device_ns, bool scheduled) {
  Operation operation;
  operation.enqueue_ns = now_ns();
  operation.device_ns = device_ns;
  operation.scheduled = scheduled;
  enqueue(operation);
}

void ModelledDevice::enqueue(const Operation& operation) {
  if (enqueued_ - resolved_ == kQueue)
    resolve_next();  // a full queue blocks the host, as real ones
  queue_[enqueued_++ % kQueue] = operation;
}

std::int64_t ModelledDevice::peer_arrival(int peer, std::int64_t ordinal) {
  RankSlot::Arrival& arrival = context_.control->rank(peer).arrivals[ordinal % kArrivalRing];
  std::int64_t give_up = 0;
  for (int polls = 0; arrival.ordinal.load(std::memory_order_acquire) != ordinal + 1; ++polls) {
    if (polls < 64) {
      sched_yield();
      continue;
    }
    if (context_.control->aborted()) {
      throw RunError(fmt::format("{} another rank or the launcher ended the run", kStoppedPrefix));
    }
    const std::int64_t now = now_ns();
    if (give_up == 0) give_up = now + deadline_ns_;
    if (now > give_up) {
      throw PeerTimeout(
          fmt::format("rank {}: the first all-reduce of graph launch {} waited {} ms for rank {}",
                      context_.rank, ordinal, deadline_ns_ / 1'000'000, peer),
          peer);
    }
    sleep_ns(20'000);
  }
  return arrival.arrival_ns.load(std::memory_order_relaxed);
}

ModelledDevice::Arrivals ModelledDevice::exchange(std::int64_t ordinal, std::int64_t arrival_ns) {
  RankSlot::Arrival& mine = context_.control->rank(context_.rank).arrivals[ordinal % kArrivalRing];
  mine.arrival_ns.store(arrival_ns, std::memory_order_relaxed);
  mine.ordinal.store(ordinal + 1, std::memory_order_release);

  Arrivals arrivals{arrival_ns, -1};
  std::int64_t last_of_peers = 0;
  for (int peer = 0; peer < context_.world_size; ++peer) {
    if (peer == context_.rank) continue;
    const std::int64_t arrival = peer_arrival(peer, ordinal);
    if (arrival > last_of_peers) {
      last_of_peers = arrival;
      arrivals.last_peer = peer;
    }
    arrivals.last_ns = std::max(arrivals.last_ns, arrival);
  }
  return arrivals;
}

void ModelledDevice::resolve_graph(const Operation& operation) {
  const ModelledGraph& graph = operation.graph;
  ModelledReplay& replay = history_[operation.graph_ordinal % history_.size()];
  replay = {};
  replay.begin_ns = std::max(operation.enqueue_ns, free_ns_);
  if (graph.all_reduces == 0) {
    replay.end_ns = free_ns_ = replay.begin_ns + graph.lead_ns;
    return;
  }
  const std::int64_t flight = context_.world_size > 1 ? model_.flight_ns : 0;
  Arrivals arrivals;
  if (const ModelledDelay& delay = operation.delay; delay.gate) {
    // Behind the gate every rank knows when every other arrives.
    replay.begin_ns = exchange(operation.graph_ordinal, replay.begin_ns).last_ns + flight;
    const bool late = delay.victim == context_.rank;
    replay.own_ns = replay.begin_ns + graph.lead_ns + (late ? delay.ns : 0);
    arrivals.last_ns = replay.begin_ns + graph.lead_ns + (delay.victim >= 0 ? delay.ns : 0);
    if (context_.world_size > 1) arrivals.last_peer = context_.rank == 0 ? 1 : 0;
    if (delay.victim >= 0 && !late) arrivals.last_peer = delay.victim;
  } else {
    replay.own_ns = std::max(replay.begin_ns + graph.lead_ns, operation.arrival_enqueue_ns);
    arrivals = exchange(operation.graph_ordinal, replay.own_ns);
  }
  replay.last_peer = arrivals.last_peer;
  replay.last_seen_ns = arrivals.last_ns + flight;
  replay.all_reduce_end_ns = replay.last_seen_ns + graph.transfer_ns;
  replay.end_ns = free_ns_ = std::max(replay.all_reduce_end_ns + graph.rest_ns,
                                      operation.last_enqueue_ns + model_.accept_ns);
  read_done_ns_ = replay.begin_ns + graph.read_ns;
}

void ModelledDevice::resolve_next() {
  const Operation& operation = queue_[resolved_ % kQueue];
  if (operation.graph_ordinal >= 0) {
    resolve_graph(operation);
    graphs_resolved_ = operation.graph_ordinal + 1;
  } else {
    const std::int64_t ready_ns =
        operation.scheduled ? std::max(scheduled_ns_, read_done_ns_) : free_ns_;
    const std::int64_t end_ns = std::max(operation.enqueue_ns, ready_ns) + operation.device_ns;
    if (operation.scheduled) scheduled_ns_ = end_ns;
    free_ns_ = std::max(free_ns_, end_ns);
  }
  ++resolved_;
}

void ModelledDevice::wait_until(std::int64_t end_ns) {
  const std::int64_t left = end_ns - now_ns();
  if (left > kSleepMarginNs) sleep_ns(left - kSleepMarginNs);
  while (now_ns() < end_ns) sched_yield();
}

void ModelledDevice::resolve_graph_launch(std::int64_t n) {
  while (graphs_resolved_ <= n && resolved_ < enqueued_) resolve_next();
}

void ModelledDevice::wait_for_graph(std::int64_t n) {
  resolve_graph_launch(n);
  wait_until(history_[n % history_.size()].end_ns);
}

void ModelledDevice::synchronize() {
  while (resolved_ < enqueued_) resolve_next();
  wait_until(free_ns_);
}

}  // namespace tpjitter
