// The pass over a case: its parts go through their slots piece by piece and count on where others
// have ended; at the end the few counts that were in use at once are added up.
#include <algorithm>
#include <utility>

#include "reports/metric_columns.h"
#include "reports/metrics.h"
#include "reports/stamps.h"

namespace tpjitter {
namespace {

void add_counts(const MetricCounts& counts, MetricCounts* sum) {
  for (std::size_t m = 0; m < kNumMetrics; ++m) (*sum)[m].add(counts[m]);
}

constexpr std::size_t kPieceSlots = 4096;    // a piece's columns stay in the cache
constexpr std::size_t kPartRows = 1u << 19;  // enough to look back for and to share out

}  // namespace

// The slots of one part, from its first piece to its last.
class MetricsPass::Part {
 public:
  Part(const MetricsPass& pass, Counts counts)
      : pass_(pass),
        table_(pass.table_),
        filler_(pass.run_, pass.table_, pass.floors_),
        counts_(std::move(counts)),
        last_(pass.run_.ranks.size()) {}

  Counts run(std::size_t begin, std::size_t end) {
    // Differences go back to the step before.
    std::size_t before = begin;
    while (before > 0 && !table_.has(--before, ReplayTable::kFirstOfStep)) {
    }
    if (before < begin) see(before, begin, false);
    for (std::size_t at = begin; at < end; at += kPieceSlots) {
      see(at, std::min(at + kPieceSlots, end), true);
    }
    return std::move(counts_);
  }

 private:
  // Where a slot stands: the how manieth rebuild of the how manieth step of this part.
  struct Place {
    std::size_t rebuild = 0, step = 0;
  };
  struct Last {
    std::int64_t value = kAbsent;
    std::size_t step = 0;
  };

  // A piece that is not counted is only looked back at.
  void see(std::size_t begin, std::size_t end, bool counted) {
    const std::size_t size = end - begin;
    resize_columns(size, &columns_);
    resize_maxima(size, &maxima_);
    find_places(begin, end);
    for (std::size_t rank = 0; rank < counts_.ranks.size(); ++rank) {
      const MetricEvidence evidence = filler_.fill(rank, begin, end, begin, &columns_);
      Rank& of_rank = counts_.ranks[rank];
      for (std::size_t m = 0; m < kNumMetrics; ++m) {
        if (metrics()[m].jitter) {
          see_differences(begin, columns_[m], &last_[rank][m],
                          counted ? &of_rank.differences[m] : nullptr);
        }
        if (counted) of_rank.values[m].add_column(columns_[m]);
      }
      if (!counted) continue;
      of_rank.evidence.add(evidence);
      add_to_maxima(rank, columns_, 0, size, &maxima_);
      if (pass_.observer_) pass_.observer_({begin, rank, columns_});
    }
    if (!counted) return;
    count_maxima(begin);
    if (pass_.observer_) pass_.observer_({begin, std::nullopt, maxima_});
  }

  void find_places(std::size_t begin, std::size_t end) {
    places_.resize(end - begin);
    for (std::size_t slot = begin; slot < end; ++slot) {
      const bool first = table_.has(slot, ReplayTable::kFirstOfStep);
      place_ = first ? Place{0, place_.step + 1} : Place{place_.rebuild + 1, place_.step};
      places_[slot - begin] = place_;
    }
  }

  // Between the same rebuild of steps that follow each other.
  void see_differences(std::size_t begin, const Column& values, std::vector<Last>* last_of_rebuild,
                       ValueCounts* differences) const {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::int64_t value = values[i];
      if (value == kAbsent) continue;
      const Place& place = places_[i];
      if (place.rebuild >= last_of_rebuild->size()) last_of_rebuild->resize(place.rebuild + 1);
      Last& last = (*last_of_rebuild)[place.rebuild];
      if (differences != nullptr && last.value != kAbsent && last.step + 1 == place.step &&
          table_.has(begin + i, ReplayTable::kFollows)) {
        const std::int64_t difference = difference_ns(value, last.value);
        differences->add(difference < 0 ? difference_ns(0, difference) : difference);
      }
      last = {value, place.step};
    }
  }

  void count_maxima(std::size_t begin) {
    const auto phase = table_.phase.begin() + static_cast<std::ptrdiff_t>(begin);
    const std::size_t size = places_.size();
    const bool one_phase = std::all_of(phase, phase + static_cast<std::ptrdiff_t>(size),
                                       [&](std::uint8_t other) { return other == *phase; });
    for (std::size_t m = 0; m < kNumMetrics; ++m) {
      if (!metrics()[m].case_level) continue;
      if (one_phase) {
        (*counts_.maxima[*phase])[m].add_column(maxima_[m]);
        continue;
      }
      for (std::size_t i = 0; i < size; ++i) {
        if (maxima_[m][i] != kAbsent) {
          (*counts_.maxima[phase[static_cast<std::ptrdiff_t>(i)]])[m].add(maxima_[m][i]);
        }
      }
    }
  }

  const MetricsPass& pass_;
  const ReplayTable& table_;
  const ColumnFiller filler_;
  Counts counts_;
  MetricColumns columns_, maxima_;                                // of the current rank and piece
  std::vector<Place> places_;                                     // of the current piece
  Place place_;                                                   // of the last slot
  std::vector<std::array<std::vector<Last>, kNumMetrics>> last_;  // [rank][metric][rebuild]
};

MetricsPass::MetricsPass(const Run& run, const ReplayTable& table, const Floors& floors,
                         PieceObserver observer)
    : run_(run), table_(table), floors_(floors), observer_(std::move(observer)) {
  for (const std::uint8_t phase : table.phase) has_phase_[phase] = true;
  for (std::size_t slot = 0; slot < table.slots(); ++slot) {
    if (!table.has(slot, ReplayTable::kFirstOfStep)) continue;
    if (part_begin_.empty() || (slot - part_begin_.back()) * run.ranks.size() >= kPartRows) {
      part_begin_.push_back(slot);
    }
  }
  part_begin_.push_back(table.slots());
}

MetricsPass::Counts MetricsPass::no_counts() const {
  Counts counts;
  counts.ranks.resize(run_.ranks.size());
  for (std::size_t phase = 0; phase < has_phase_.size(); ++phase) {
    if (has_phase_[phase]) counts.maxima[phase].emplace();
  }
  return counts;
}

// Counts go on from an earlier part, whose counters are there: as many as ever ran at once.
void MetricsPass::run_part(std::size_t part) {
  Counts counts;
  {
    const std::lock_guard lock(mutex_);
    if (spare_.empty()) {
      counts = no_counts();
    } else {
      counts = std::move(spare_.back());
      spare_.pop_back();
    }
  }
  counts = Part(*this, std::move(counts)).run(part_begin_[part], part_begin_[part + 1]);
  const std::lock_guard lock(mutex_);
  spare_.push_back(std::move(counts));
}

void MetricsPass::add_up() {
  counts_ = spare_.empty() ? no_counts() : std::move(spare_.front());
  for (std::size_t i = 1; i < spare_.size(); ++i) {
    Counts& counts = spare_[i];
    for (std::size_t rank = 0; rank < counts.ranks.size(); ++rank) {
      add_counts(counts.ranks[rank].values, &counts_.ranks[rank].values);
      add_counts(counts.ranks[rank].differences, &counts_.ranks[rank].differences);
      counts_.ranks[rank].evidence.add(counts.ranks[rank].evidence);
    }
    for (std::size_t phase = 0; phase < kNumPhases; ++phase) {
      if (counts.maxima[phase]) add_counts(*counts.maxima[phase], &*counts_.maxima[phase]);
    }
    counts = {};
  }
  spare_.clear();
}

CaseMetrics MetricsPass::finish() {
  add_up();
  CaseMetrics result;
  MetricEvidence all;
  for (std::size_t rank = 0; rank < counts_.ranks.size(); ++rank) {
    all.add(counts_.ranks[rank].evidence);
    result.ranks.push_back(rank_metrics(rank));
  }
  for (std::size_t phase = 0; phase < kNumPhases; ++phase) {
    if (!counts_.maxima[phase]) continue;
    result.phases[phase] = case_level(*counts_.maxima[phase], all);
    add_counts(*counts_.maxima[phase], &result.counts);
  }
  result.metrics = case_level(result.counts, all);
  return result;
}

RankMetrics MetricsPass::rank_metrics(std::size_t rank) {
  Rank& of_rank = counts_.ranks[rank];
  RankMetrics result;
  result.rows = of_rank.evidence.rows;
  for (std::size_t m = 0; m < kNumMetrics; ++m) {
    MetricResult& metric = result.metrics[m];
    metric.values = of_rank.values[m].distribution();
    const Distribution& values = metric.values;
    if (values.n == 0) {
      metric.reason = absence_reason(metrics()[m], of_rank.evidence, run_.ranks.size());
    }
    if (!metrics()[m].jitter) continue;
    Jitter& jitter = result.jitter[m].emplace();
    jitter.step_difference = of_rank.differences[m].distribution();
    if (values.p99) {
      jitter.p99_minus_p50 = difference_ns(*values.p99, *values.p50);
    } else {
      jitter.reason = values.n == 0 ? metric.reason : quantile_reason(values.n, kP99);
    }
  }
  result.counts = std::move(of_rank.values);
  return result;
}

std::array<MetricResult, kNumMetrics> MetricsPass::case_level(
    const MetricCounts& counts, const MetricEvidence& evidence) const {
  std::array<MetricResult, kNumMetrics> result;
  for (std::size_t m = 0; m < kNumMetrics; ++m) {
    if (!metrics()[m].case_level) continue;
    result[m].values = counts[m].distribution();
    if (result[m].values.n > 0) continue;
    result[m].reason = evidence.rows > 0 && evidence.all_ranks == 0
                           ? "no replay was recorded by every rank"
                           : absence_reason(metrics()[m], evidence, run_.ranks.size());
  }
  return result;
}

}  // namespace tpjitter
