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
  enqueue({now_ns(), device_ns, -1, {}});
}

void ModelledDevice::copy_async() {
  spin_until_ns(now_ns() + model_.copy_launch_host_ns);
  enqueue({now_ns(), model_.kernel_ns, -1, {}});
}

void ModelledDevice::launch_graph(const ModelledGraph& graph) {
  spin_until_ns(now_ns() + graph.host_ns);
  enqueue({now_ns(), 0, graph_launches_++, graph});
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
      throw RunError("stopped: another rank or the launcher ended the run");
    }
    const std::int64_t now = now_ns();
    if (give_up == 0) give_up = now + deadline_ns_;
    if (now > give_up) {
      throw TimeoutError(
          fmt::format("rank {}: the first all-reduce of graph launch {} waited {} ms for rank {}",
                      context_.rank, ordinal, deadline_ns_ / 1'000'000, peer));
    }
    sleep_ns(20'000);
  }
  return arrival.arrival_ns.load(std::memory_order_relaxed);
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
  replay.own_ns = replay.begin_ns + graph.lead_ns;
  RankSlot::Arrival& mine =
      context_.control->rank(context_.rank).arrivals[operation.graph_ordinal % kArrivalRing];
  mine.arrival_ns.store(replay.own_ns, std::memory_order_relaxed);
  mine.ordinal.store(operation.graph_ordinal + 1, std::memory_order_release);

  std::int64_t last = replay.own_ns;
  std::int64_t last_of_peers = 0;
  for (int peer = 0; peer < context_.world_size; ++peer) {
    if (peer == context_.rank) continue;
    const std::int64_t arrival = peer_arrival(peer, operation.graph_ordinal);
    if (arrival > last_of_peers) {
      last_of_peers = arrival;
      replay.last_peer = peer;
    }
    last = std::max(last, arrival);
  }
  const std::int64_t flight = context_.world_size > 1 ? model_.flight_ns : 0;
  replay.last_seen_ns = last + flight;
  replay.all_reduce_end_ns = replay.last_seen_ns + graph.transfer_ns;
  replay.end_ns = free_ns_ = replay.all_reduce_end_ns + graph.rest_ns;
}

void ModelledDevice::resolve_next() {
  const Operation& operation = queue_[resolved_ % kQueue];
  if (operation.graph_ordinal >= 0) {
    resolve_graph(operation);
    graphs_resolved_ = operation.graph_ordinal + 1;
  } else {
    free_ns_ = std::max(operation.enqueue_ns, free_ns_) + operation.device_ns;
  }
  ++resolved_;
}

void ModelledDevice::wait_until(std::int64_t end_ns) {
  const std::int64_t left = end_ns - now_ns();
  if (left > kSleepMarginNs) sleep_ns(left - kSleepMarginNs);
  while (now_ns() < end_ns) sched_yield();
}

void ModelledDevice::wait_for_graph(std::int64_t n) {
  while (graphs_resolved_ <= n && resolved_ < enqueued_) resolve_next();
  wait_until(history_[n % history_.size()].end_ns);
}

void ModelledDevice::synchronize() {
  while (resolved_ < enqueued_) resolve_next();
  wait_until(free_ns_);
}

}  // namespace tpjitter
