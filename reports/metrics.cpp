#include "reports/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "reports/metric_columns.h"
#include "reports/parallel.h"
#include "reports/stamps.h"

namespace tpjitter {
namespace {

// A span between two stamps, if both were taken.
std::int64_t span_ns(std::int64_t begin, std::int64_t end) {
  return begin == 0 || end == 0 ? kAbsent : difference_ns(end, begin);
}

std::int64_t inputs_ns(const RowContext& c) {
  return span_ns(c.row.inputs_begin_ns, c.row.inputs_end_ns);
}
std::int64_t dispatch_ns(const RowContext& c) {
  return span_ns(c.row.dispatch_begin_ns, c.row.dispatch_end_ns);
}
std::int64_t graph_launch_ns(const RowContext& c) {
  return launched(c.row) ? span_ns(c.row.launch_begin_ns, c.row.launch_end_ns) : kAbsent;
}
std::int64_t launch_offset_ns(const RowContext& c) {
  return c.earliest_launch_ns == kAbsent
             ? kAbsent
             : difference_ns(c.row.launch_begin_ns, c.earliest_launch_ns);
}
std::int64_t launch_skew_ns(const RowContext& c) {
  return c.earliest_launch_ns == kAbsent ? kAbsent
                                         : difference_ns(c.latest_launch_ns, c.earliest_launch_ns);
}
std::int64_t first_wait_ns(const RowContext& c) { return c.wait_ns.value_or(kAbsent); }
std::int64_t first_excess_wait_ns(const RowContext& c) {
  return c.wait_ns && c.floor_ns ? difference_ns(*c.wait_ns, *c.floor_ns) : kAbsent;
}
std::int64_t transfer_ns(const RowContext& c) {
  return c.wait_ns ? span_ns(c.row.first_all_reduce_last_seen_ns, c.row.first_all_reduce_end_ns)
                   : kAbsent;
}
std::int64_t coupling_wait_ns(const RowContext& c) {
  return c.first_of_step ? span_ns(c.row.coupling_begin_ns, c.row.accept_seen_ns) : kAbsent;
}
std::int64_t step_ns(const RowContext& c) {
  return c.first_of_step && c.next_step != nullptr
             ? span_ns(c.row.accept_seen_ns, c.next_step->accept_seen_ns)
             : kAbsent;
}

constexpr std::uint32_t kNeedsOwnWait =
    kNeedsLaunch | kNeedsPeers | kNeedsDevice | kNeedsAllReduce | kNeedsWait;

constexpr std::array<Metric, kNumMetrics> kMetrics = {{
    {"inputs_ns", "ns", "host time of the grouped copies into the input buffers", inputs_ns,
     MetricScope::kRebuild, 0, true, false},
    {"dispatch_ns", "ns", "host time of one metadata rebuild", dispatch_ns, MetricScope::kRebuild,
     0, true, true},
    {"graph_launch_ns", "ns", "host time inside the graph launch", graph_launch_ns,
     MetricScope::kReplay, kNeedsLaunch, true, true},
    {"launch_skew_ns", "ns", "latest rank's entry into the graph launch minus the earliest's",
     launch_skew_ns, MetricScope::kReplay, kNeedsLaunch | kNeedsPeers | kNeedsAllRanks, true,
     false},
    {"first_all_reduce_wait_ns", "ns", "wait inside the first all-reduce for the last peer's flag",
     first_wait_ns, MetricScope::kReplay, kNeedsOwnWait, true, true},
    {"first_all_reduce_excess_wait_ns", "ns", "that wait over its floor: what lateness cost",
     first_excess_wait_ns, MetricScope::kReplay, kNeedsOwnWait | kNeedsFloor, true, false},
    {"all_reduce_transfer_ns", "ns", "first all-reduce from the last flag seen to its end",
     transfer_ns, MetricScope::kReplay, kNeedsOwnWait, true, false},
    {"coupling_wait_ns", "ns", "host wait for the previous step's accept result", coupling_wait_ns,
     MetricScope::kStep, 0, true, false},
    {"step_ns", "ns", "accept of one step seen to accept of the next", step_ns, MetricScope::kStep,
     kNeedsNextStep, true, false},
    {"launch_offset_ns", "ns", "entry into the graph launch minus the earliest rank's",
     launch_offset_ns, MetricScope::kReplay, kNeedsLaunch | kNeedsPeers | kNeedsAllRanks, false,
     true},
}};

// Unrolled, so that each metric's function is inlined.
template <std::size_t... kMetric>
void set_values(const RowContext& context, std::size_t at, MetricColumns* columns,
                std::index_sequence<kMetric...>) {
  (((*columns)[kMetric][at] = kMetrics[kMetric].value(context)), ...);
}

void count(const RowContext& context, bool all_ranks, MetricEvidence* e) {
  const PhaseRow& row = context.row;
  ++e->rows;
  e->all_ranks += all_ranks ? 1 : 0;
  e->launches += launched(row) ? 1 : 0;
  e->device += (row.flags & kFlagNoDeviceStamps) == 0 ? 1 : 0;
  e->all_reduces += row.first_all_reduce_own_ns != 0 || row.all_reduce_count > 0 ? 1 : 0;
  e->own_wait += context.wait_ns ? 1 : 0;
  e->floors += context.floor_ns ? 1 : 0;
  e->next_steps += context.next_step != nullptr ? 1 : 0;
}

}  // namespace

std::string absence_reason(const Metric& metric, const MetricEvidence& e, std::size_t world_size) {
  const auto needs = [&](std::uint32_t bit) { return (metric.needs & bit) != 0; };
  if (e.rows == 0) return "no rows outside the first steps after warm-up and of blocks";
  if (needs(kNeedsPeers) && world_size == 1) return "one rank: nothing to compare with";
  if (needs(kNeedsLaunch) && e.launches == 0) return "no graph launches recorded";
  if (needs(kNeedsAllRanks) && e.all_ranks == 0) return "no replay was recorded by every rank";
  if (needs(kNeedsDevice) && e.device == 0) return "device stamps were lost or not taken";
  if (needs(kNeedsAllReduce) && e.all_reduces == 0) return "no all-reduce stamps in the graph";
  if (needs(kNeedsWait) && e.own_wait == 0) {
    return "the stamps bracket the collective (nccl): a rank's own wait is not seen";
  }
  if (needs(kNeedsFloor) && e.floors == 0) {
    return "no floor: run.json has no zero-skew control for this all-reduce";
  }
  if (needs(kNeedsNextStep) && e.next_steps == 0)
    return "no two steps follow each other in a block";
  return "its stamps are 0 in every row";
}

void MetricEvidence::add(const MetricEvidence& e) {
  rows += e.rows;
  all_ranks += e.all_ranks;
  launches += e.launches;
  all_reduces += e.all_reduces;
  device += e.device;
  own_wait += e.own_wait;
  floors += e.floors;
  next_steps += e.next_steps;
}

// First row of the rank's next step, if that follows without a gap or a block barrier.
const PhaseRow* ColumnFiller::next_step(std::size_t rank, std::size_t slot) const {
  do {
    if (++slot == table_.slots()) return nullptr;
  } while (!table_.has(slot, ReplayTable::kFirstOfStep));
  const std::uint32_t number = table_.row_of_slot[rank][slot];
  const bool follows =
      table_.has(slot, ReplayTable::kFollows) && !table_.has(slot, ReplayTable::kExcluded);
  return follows && number != kNoRow ? &run_.ranks[rank].rows[number] : nullptr;
}

MetricEvidence ColumnFiller::fill(std::size_t rank, std::size_t begin, std::size_t end,
                                  std::size_t origin, MetricColumns* columns) const {
  MetricEvidence evidence;
  const auto& numbers = table_.row_of_slot[rank];
  const bool peers = run_.ranks.size() > 1;
  for (std::size_t slot = begin; slot < end; ++slot) {
    fetch_ahead(run_.ranks[rank].rows, numbers, slot);
    if (numbers[slot] == kNoRow || table_.has(slot, ReplayTable::kExcluded)) {
      for (Column& column : *columns) column[slot - origin] = kAbsent;
      continue;
    }
    const PhaseRow& row = run_.ranks[rank].rows[numbers[slot]];
    const bool first = table_.has(slot, ReplayTable::kFirstOfStep);
    const RowContext context{row,
                             first ? next_step(rank, slot) : nullptr,
                             first,
                             table_.earliest_launch_ns[slot],
                             table_.latest_launch_ns[slot],
                             peers ? wait_ns(row) : std::nullopt,
                             peers ? floors_.of(row, rank) : std::nullopt};
    count(context, table_.has(slot, ReplayTable::kAllRanks), &evidence);
    set_values(context, slot - origin, columns, std::make_index_sequence<kNumMetrics>());
  }
  return evidence;
}

void resize_columns(std::size_t size, MetricColumns* columns) {
  for (Column& column : *columns) column.resize(size);
}

void resize_maxima(std::size_t size, MetricColumns* maxima) {
  for (std::size_t m = 0; m < kNumMetrics; ++m) {
    if (kMetrics[m].case_level) (*maxima)[m].resize(size);
  }
}

void add_to_maxima(std::size_t rank, const MetricColumns& columns, std::size_t begin,
                   std::size_t end, MetricColumns* maxima) {
  for (std::size_t m = 0; m < kNumMetrics; ++m) {
    if (!kMetrics[m].case_level) continue;
    const Column& values = columns[m];
    Column& most = (*maxima)[m];
    if (rank == 0) {
      std::copy(values.begin() + static_cast<std::ptrdiff_t>(begin),
                values.begin() + static_cast<std::ptrdiff_t>(end),
                most.begin() + static_cast<std::ptrdiff_t>(begin));
      continue;
    }
    for (std::size_t i = begin; i < end; ++i) {
      const bool unknown = values[i] == kAbsent || most[i] == kAbsent;
      most[i] = unknown ? kAbsent : std::max(values[i], most[i]);
    }
  }
}

std::span<const Metric, kNumMetrics> metrics() { return kMetrics; }

std::size_t metric_index(std::string_view key) {
  const auto metric =
      std::find_if(kMetrics.begin(), kMetrics.end(), [&](const Metric& m) { return key == m.key; });
  return static_cast<std::size_t>(metric - kMetrics.begin());
}

void visit_columns(const Run& run, const ReplayTable& table, const Floors& floors,
                   const ColumnObserver& observer) {
  const ColumnFiller filler(run, table, floors);
  MetricColumns columns, maxima;
  resize_columns(table.slots(), &columns);
  resize_maxima(table.slots(), &maxima);
  for (std::size_t rank = 0; rank < run.ranks.size(); ++rank) {
    parallel_ranges(table.slots(), [&](std::size_t begin, std::size_t end, std::size_t) {
      filler.fill(rank, begin, end, 0, &columns);
      add_to_maxima(rank, columns, begin, end, &maxima);
    });
    observer(rank, columns);
  }
  observer(std::nullopt, maxima);
}

}  // namespace tpjitter
