#include "reports/metrics.h"

#include <fmt/format.h>

#include <algorithm>

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

// Rows that had what a metric needs, to say why it has no value.
struct Evidence {
  std::uint64_t rows = 0, all_ranks = 0, launches = 0, all_reduces = 0, device = 0, own_wait = 0;
  std::uint64_t floors = 0, next_steps = 0;
};

std::string absence_reason(const Metric& metric, const Evidence& e, std::size_t world_size) {
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

// The earliest and latest entry into the graph launch of each slot; kAbsent unless all ranks have
// it.
struct LaunchColumns {
  std::vector<std::int64_t> earliest, latest;
};

LaunchColumns launch_columns(const Run& run, const ReplayTable& table) {
  LaunchColumns columns;
  columns.earliest.assign(table.slots(), kAbsent);
  columns.latest.assign(table.slots(), kAbsent);
  if (run.ranks.size() < 2) return columns;
  for (std::size_t slot = 0; slot < table.slots(); ++slot) {
    if (!table.has(slot, ReplayTable::kAllRanks | ReplayTable::kLaunches)) continue;
    std::int64_t earliest = INT64_MAX, latest = INT64_MIN;
    bool all = true;
    for (std::size_t rank = 0; rank < run.ranks.size(); ++rank) {
      const PhaseRow& row = run.ranks[rank].rows[table.row_of_slot[rank][slot]];
      all = all && launched(row);
      earliest = std::min(earliest, row.launch_begin_ns);
      latest = std::max(latest, row.launch_begin_ns);
    }
    if (!all) continue;
    columns.earliest[slot] = earliest;
    columns.latest[slot] = latest;
  }
  return columns;
}

// For each first row of a step on one rank: the slot of its next step's first row, if that follows
// without a gap or a block barrier.
std::vector<std::uint32_t> next_step_slots(const ReplayTable& table, std::size_t rank,
                                           std::span<const PhaseRow> rows) {
  std::vector<std::uint32_t> next(table.slots(), kNoRow);
  std::size_t previous = table.slots();  // none
  for (std::size_t slot = 0; slot < table.slots(); ++slot) {
    if (!table.has(slot, ReplayTable::kFirstOfStep)) continue;
    const std::uint32_t number = table.row_of_slot[rank][slot];
    if (number == kNoRow) {
      previous = table.slots();
      continue;
    }
    const PhaseRow& row = rows[number];
    if (previous != table.slots()) {
      const PhaseRow& last = rows[table.row_of_slot[rank][previous]];
      if (last.launch == row.launch && last.repetition == row.repetition &&
          last.step + 1 == row.step && (row.flags & kFlagFirstOfBlock) == 0) {
        next[previous] = static_cast<std::uint32_t>(slot);
      }
    }
    previous = slot;
  }
  return next;
}

using Columns = std::array<std::vector<std::int64_t>, kNumMetrics>;

class CaseAnalysis {
 public:
  CaseAnalysis(const Run& run, const ReplayTable& table, const Floors& floors)
      : run_(run), table_(table), floors_(floors), launches_(launch_columns(run, table)) {
    for (std::size_t m = 0; m < kNumMetrics; ++m) {
      if (kMetrics[m].case_level) maxima_[m].assign(table.slots(), INT64_MIN);
      columns_[m].assign(table.slots(), kAbsent);
    }
    // Until a rank takes part the maximum of a slot is unknown; a rank without it makes it absent.
    unknown_.assign(table.slots(), 0);
  }

  CaseMetrics compute() {
    CaseMetrics result;
    for (std::size_t rank = 0; rank < run_.ranks.size(); ++rank) {
      result.ranks.push_back(rank_metrics(rank));
    }
    result.metrics = case_level(-1);
    std::array<bool, kNumPhases> present{};
    for (const std::uint8_t phase : table_.phase) present[phase] = true;
    const bool only_phase = std::count(present.begin(), present.end(), true) == 1;
    for (int phase = 0; phase < kNumPhases; ++phase) {
      const auto p = static_cast<std::size_t>(phase);
      if (!present[p]) continue;
      result.phases[p] = only_phase ? result.metrics : case_level(phase);
    }
    return result;
  }

 private:
  RankMetrics rank_metrics(std::size_t rank) {
    const Evidence evidence = fill_columns(rank);
    RankMetrics result;
    result.rows = evidence.rows;
    add(evidence);
    for (std::size_t m = 0; m < kNumMetrics; ++m) {
      std::vector<std::int64_t>& values = scratch_;
      values.clear();
      for (const std::int64_t value : columns_[m]) {
        if (value != kAbsent) values.push_back(value);
      }
      MetricResult& metric = result.metrics[m];
      metric.values = describe(values);
      if (values.empty()) metric.reason = absence_reason(kMetrics[m], evidence, run_.ranks.size());
      if (kMetrics[m].jitter) result.jitter[m] = jitter(rank, m, metric);
    }
    return result;
  }

  // The one pass over a rank's rows: every metric's column, and its part in the case's maxima.
  Evidence fill_columns(std::size_t rank) {
    const std::span<const PhaseRow> rows = run_.ranks[rank].rows;
    const std::vector<std::uint32_t> next = next_step_slots(table_, rank, rows);
    const auto& numbers = table_.row_of_slot[rank];
    Evidence e;
    for (std::size_t slot = 0; slot < table_.slots(); ++slot) {
      const bool use = numbers[slot] != kNoRow && !table_.has(slot, ReplayTable::kExcluded);
      if (!use) {
        for (auto& column : columns_) column[slot] = kAbsent;
        unknown_[slot] = 1;
        continue;
      }
      const PhaseRow& row = rows[numbers[slot]];
      const bool peers = run_.ranks.size() > 1;
      const RowContext context{row,
                               next[slot] == kNoRow ? nullptr : &rows[numbers[next[slot]]],
                               table_.has(slot, ReplayTable::kFirstOfStep),
                               launches_.earliest[slot],
                               launches_.latest[slot],
                               peers ? wait_ns(row) : std::nullopt,
                               peers ? floors_.of(row, rank) : std::nullopt};
      count(context, table_.has(slot, ReplayTable::kAllRanks), &e);
      for (std::size_t m = 0; m < kNumMetrics; ++m) {
        const std::int64_t value = kMetrics[m].value(context);
        columns_[m][slot] = value;
        if (!kMetrics[m].case_level) continue;
        std::int64_t& most = maxima_[m][slot];
        // A rank without the value leaves the maximum unknown: INT64_MAX marks it until the end.
        most = value == kAbsent || most == INT64_MAX ? INT64_MAX : std::max(most, value);
      }
    }
    return e;
  }

  static void count(const RowContext& context, bool all_ranks, Evidence* e) {
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

  void add(const Evidence& e) {
    all_.rows += e.rows;
    all_.all_ranks += e.all_ranks;
    all_.launches += e.launches;
    all_.device += e.device;
    all_.all_reduces += e.all_reduces;
    all_.own_wait += e.own_wait;
    all_.floors += e.floors;
    all_.next_steps += e.next_steps;
  }

  std::array<MetricResult, kNumMetrics> case_level(int phase) {
    std::array<MetricResult, kNumMetrics> result;
    for (std::size_t m = 0; m < kNumMetrics; ++m) {
      if (!kMetrics[m].case_level) continue;
      scratch_.clear();
      for (std::size_t slot = 0; slot < table_.slots(); ++slot) {
        const std::int64_t most = maxima_[m][slot];
        if (unknown_[slot] != 0 || most == INT64_MAX) continue;
        if (phase < 0 || table_.phase[slot] == phase) scratch_.push_back(most);
      }
      result[m].values = describe(scratch_);
      if (!scratch_.empty()) continue;
      if (all_.rows > 0 && all_.all_ranks == 0) {
        result[m].reason = "no replay was recorded by every rank";
      } else {
        result[m].reason = absence_reason(kMetrics[m], all_, run_.ranks.size());
      }
    }
    return result;
  }

  // Differences are taken between the same rebuild of steps that follow each other.
  Jitter jitter(std::size_t rank, std::size_t m, const MetricResult& metric) {
    struct Last {
      std::int64_t value = kAbsent;
      std::int32_t launch = 0, repetition = 0, step = 0;
    };
    std::vector<Last> last_of_rebuild;  // by place in the step
    std::size_t place = 0;
    scratch_.clear();
    for (std::size_t slot = 0; slot < table_.slots(); ++slot) {
      place = table_.has(slot, ReplayTable::kFirstOfStep) ? 0 : place + 1;
      if (columns_[m][slot] == kAbsent) continue;
      if (place >= last_of_rebuild.size()) last_of_rebuild.resize(place + 1);
      const PhaseRow& row = run_.ranks[rank].rows[table_.row_of_slot[rank][slot]];
      Last& last = last_of_rebuild[place];
      if (last.value != kAbsent && last.launch == row.launch && last.repetition == row.repetition &&
          last.step + 1 == row.step) {
        const std::int64_t difference = difference_ns(columns_[m][slot], last.value);
        scratch_.push_back(difference < 0 ? difference_ns(0, difference) : difference);
      }
      last = {columns_[m][slot], row.launch, row.repetition, row.step};
    }
    Jitter jitter;
    jitter.step_difference = describe(scratch_);
    if (metric.values.p99) {
      jitter.p99_minus_p50 = difference_ns(*metric.values.p99, *metric.values.p50);
    } else {
      jitter.reason = metric.values.n == 0 ? metric.reason : quantile_reason(metric.values.n, kP99);
    }
    return jitter;
  }

  const Run& run_;
  const ReplayTable& table_;
  const Floors& floors_;
  LaunchColumns launches_;
  Columns columns_;                    // of the current rank
  Columns maxima_;                     // over the ranks seen so far
  std::vector<std::uint8_t> unknown_;  // [slot]: some rank has no usable row
  std::vector<std::int64_t> scratch_;
  Evidence all_;
};

}  // namespace

std::span<const Metric, kNumMetrics> metrics() { return kMetrics; }

CaseMetrics compute_metrics(const Run& run, const ReplayTable& table, const Floors& floors) {
  return CaseAnalysis(run, table, floors).compute();
}

}  // namespace tpjitter
