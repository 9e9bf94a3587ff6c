#include "reports/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

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

// Rows that had what a metric needs, to say why it has no value.
struct Evidence {
  std::uint64_t rows = 0, all_ranks = 0, launches = 0, all_reduces = 0, device = 0, own_wait = 0;
  std::uint64_t floors = 0, next_steps = 0;

  void add(const Evidence& e) {
    rows += e.rows;
    all_ranks += e.all_ranks;
    launches += e.launches;
    all_reduces += e.all_reduces;
    device += e.device;
    own_wait += e.own_wait;
    floors += e.floors;
    next_steps += e.next_steps;
  }
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

// For each first row of a step on one rank: the slot of its next step's first row, if that follows
// without a gap or a block barrier.
std::vector<std::uint32_t> next_step_slots(const ReplayTable& table, std::size_t rank) {
  std::vector<std::uint32_t> next(table.slots(), kNoRow);
  std::size_t previous = table.slots();  // none
  for (std::size_t slot = 0; slot < table.slots(); ++slot) {
    if (!table.has(slot, ReplayTable::kFirstOfStep)) continue;
    if (table.row_of_slot[rank][slot] == kNoRow) {
      previous = table.slots();
      continue;
    }
    if (previous != table.slots() && table.has(slot, ReplayTable::kFollows) &&
        !table.has(slot, ReplayTable::kExcluded)) {
      next[previous] = static_cast<std::uint32_t>(slot);
    }
    previous = slot;
  }
  return next;
}

class CaseAnalysis {
 public:
  CaseAnalysis(const Run& run, const ReplayTable& table, const Floors& floors)
      : run_(run), table_(table), floors_(floors) {
    for (std::size_t m = 0; m < kNumMetrics; ++m) {
      if (kMetrics[m].case_level) maxima_[m].resize(table.slots());
      columns_[m].resize(table.slots());
    }
    // Until a rank takes part the maximum of a slot is unknown; a rank without it makes it absent.
    unknown_.assign(table.slots(), 0);
  }

  CaseMetrics compute(const ColumnObserver& observer) {
    CaseMetrics result;
    for (std::size_t rank = 0; rank < run_.ranks.size(); ++rank) {
      result.ranks.push_back(rank_metrics(rank));
      if (observer) observer(rank, columns_);
    }
    finish_maxima();
    if (observer) observer(std::nullopt, maxima_);
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

  void visit(const ColumnObserver& observer) {
    for (std::size_t rank = 0; rank < run_.ranks.size(); ++rank) {
      fill_columns(rank);
      observer(rank, columns_);
    }
    finish_maxima();
    observer(std::nullopt, maxima_);
  }

 private:
  // Slots whose maximum is not known hold kAbsent from here on.
  void finish_maxima() {
    for (Column& column : maxima_) {
      for (std::size_t slot = 0; slot < column.size(); ++slot) {
        if (unknown_[slot] != 0 || column[slot] == INT64_MAX) column[slot] = kAbsent;
      }
    }
  }

  RankMetrics rank_metrics(std::size_t rank) {
    const Evidence evidence = fill_columns(rank);
    RankMetrics result;
    result.rows = evidence.rows;
    all_.add(evidence);
    parallel_for(kNumMetrics, table_.slots(), [&](std::size_t m) {
      MetricResult& metric = result.metrics[m];
      metric.values = describe_column(columns_[m]);
      if (metric.values.n == 0) {
        metric.reason = absence_reason(kMetrics[m], evidence, run_.ranks.size());
      }
      if (kMetrics[m].jitter) result.jitter[m] = jitter(m, metric);
    });
    return result;
  }

  // The one pass over a rank's rows: every metric's column, and its part in the case's maxima.
  Evidence fill_columns(std::size_t rank) {
    const std::vector<std::uint32_t> next = next_step_slots(table_, rank);
    std::vector<Evidence> parts(num_ranges(table_.slots()));
    parallel_ranges(table_.slots(), [&](std::size_t begin, std::size_t end, std::size_t part) {
      for (std::size_t slot = begin; slot < end; ++slot) fill_slot(rank, slot, next, &parts[part]);
    });
    Evidence sum;
    for (const Evidence& part : parts) sum.add(part);
    return sum;
  }

  void fill_slot(std::size_t rank, std::size_t slot, const std::vector<std::uint32_t>& next,
                 Evidence* e) {
    const std::span<const PhaseRow> rows = run_.ranks[rank].rows;
    const auto& numbers = table_.row_of_slot[rank];
    if (rank == 0) {
      for (Column& column : maxima_) {
        if (!column.empty()) column[slot] = INT64_MIN;
      }
    }
    if (numbers[slot] == kNoRow || table_.has(slot, ReplayTable::kExcluded)) {
      for (auto& column : columns_) column[slot] = kAbsent;
      unknown_[slot] = 1;
      return;
    }
    const PhaseRow& row = rows[numbers[slot]];
    const bool peers = run_.ranks.size() > 1;
    const RowContext context{row,
                             next[slot] == kNoRow ? nullptr : &rows[numbers[next[slot]]],
                             table_.has(slot, ReplayTable::kFirstOfStep),
                             table_.earliest_launch_ns[slot],
                             table_.latest_launch_ns[slot],
                             peers ? wait_ns(row) : std::nullopt,
                             peers ? floors_.of(row, rank) : std::nullopt};
    count(context, table_.has(slot, ReplayTable::kAllRanks), e);
    set_values(context, slot, std::make_index_sequence<kNumMetrics>());
  }

  // Unrolled, so that each metric's function is inlined.
  template <std::size_t... kMetric>
  void set_values(const RowContext& context, std::size_t slot, std::index_sequence<kMetric...>) {
    (set_value<kMetric>(context, slot), ...);
  }
  template <std::size_t kMetric>
  void set_value(const RowContext& context, std::size_t slot) {
    const std::int64_t value = kMetrics[kMetric].value(context);
    columns_[kMetric][slot] = value;
    if constexpr (kMetrics[kMetric].case_level) {
      std::int64_t& most = maxima_[kMetric][slot];
      // A rank without the value leaves the maximum unknown: INT64_MAX marks it until the end.
      most = value == kAbsent || most == INT64_MAX ? INT64_MAX : std::max(most, value);
    }
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

  std::array<MetricResult, kNumMetrics> case_level(int phase) {
    std::array<MetricResult, kNumMetrics> result;
    parallel_for(kNumMetrics, table_.slots(), [&](std::size_t m) {
      if (!kMetrics[m].case_level) return;
      if (phase < 0) {
        result[m].values = describe_column(maxima_[m]);
      } else {
        Column values;
        for (std::size_t slot = 0; slot < table_.slots(); ++slot) {
          if (table_.phase[slot] == phase) values.push_back(maxima_[m][slot]);
        }
        result[m].values = describe_column(values);
      }
      if (result[m].values.n > 0) return;
      if (all_.rows > 0 && all_.all_ranks == 0) {
        result[m].reason = "no replay was recorded by every rank";
      } else {
        result[m].reason = absence_reason(kMetrics[m], all_, run_.ranks.size());
      }
    });
    return result;
  }

  // Differences are taken between the same rebuild of steps that follow each other.
  Jitter jitter(std::size_t m, const MetricResult& metric) const {
    struct Last {
      std::int64_t value = kAbsent;
      std::size_t step = 0;
    };
    std::vector<Last> last_of_rebuild;  // by place in the step
    std::size_t place = 0, step = 0;
    Column differences;
    differences.reserve(table_.slots());
    for (std::size_t slot = 0; slot < table_.slots(); ++slot) {
      const bool first = table_.has(slot, ReplayTable::kFirstOfStep);
      place = first ? 0 : place + 1;
      step += first ? 1 : 0;
      const std::int64_t value = columns_[m][slot];
      if (value == kAbsent) continue;
      if (place >= last_of_rebuild.size()) last_of_rebuild.resize(place + 1);
      Last& last = last_of_rebuild[place];
      if (last.value != kAbsent && last.step + 1 == step &&
          table_.has(slot, ReplayTable::kFollows)) {
        const std::int64_t difference = difference_ns(value, last.value);
        differences.push_back(difference < 0 ? difference_ns(0, difference) : difference);
      }
      last = {value, step};
    }
    Jitter jitter;
    jitter.step_difference = describe(differences);
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
  MetricColumns columns_;              // of the current rank
  MetricColumns maxima_;               // over the ranks seen so far
  std::vector<std::uint8_t> unknown_;  // [slot]: some rank has no usable row
  Evidence all_;
};

}  // namespace

std::span<const Metric, kNumMetrics> metrics() { return kMetrics; }

std::size_t metric_index(std::string_view key) {
  const auto metric =
      std::find_if(kMetrics.begin(), kMetrics.end(), [&](const Metric& m) { return key == m.key; });
  return static_cast<std::size_t>(metric - kMetrics.begin());
}

CaseMetrics compute_metrics(const Run& run, const ReplayTable& table, const Floors& floors,
                            const ColumnObserver& observer) {
  return CaseAnalysis(run, table, floors).compute(observer);
}

void visit_columns(const Run& run, const ReplayTable& table, const Floors& floors,
                   const ColumnObserver& observer) {
  CaseAnalysis(run, table, floors).visit(observer);
}

}  // namespace tpjitter
