// What a page draws of a case besides its summary: cumulative distributions, intervals of the
// medians, excess wait by rank and block of steps, and the worst steps row by row. Made from the
// columns that the metrics are made from, and bounded in size whatever the run's length and width.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "reports/metrics.h"
#include "reports/replays.h"

namespace tpjitter {

// Where the median lies, from the medians of groups that do not share samples: launches, or, with
// one launch, the blocks of steps in it. By order statistics, so that no distribution is assumed.
struct MedianInterval {
  std::optional<std::int64_t> low_ns, high_ns;  // null with fewer than kMinIntervalGroups
  std::uint64_t groups = 0;
  double coverage = 0;  // probability that it holds the median: 0.95, or 0.93 with five groups
  bool launches = false;
};
// The extremes of fewer groups hold the median with less than 90 %.
inline constexpr std::size_t kMinIntervalGroups = 5;
MedianInterval median_interval(std::vector<std::int64_t> group_medians, bool launches);

// Slots of one step.
struct StepSlots {
  std::uint32_t begin = 0, end = 0;
  std::int64_t cost_ns = kAbsent;  // the largest of the cost column; kAbsent: none
};
std::vector<StepSlots> list_steps(const ReplayTable& table, std::span<const std::int64_t> cost);
// The rebuilds of these steps alone, in this order; none follows another.
ReplayTable select_steps(const ReplayTable& table, const std::vector<StepSlots>& steps);
// What makes a step bad: the metric whose maxima say it best of those that have values; nullopt if
// none has.
std::optional<std::size_t> cost_metric(const MetricColumns& maxima);
// The `count` costliest, in slot order of equals, worst first.
std::vector<StepSlots> worst_steps(std::vector<StepSlots> steps, std::size_t count);

// Mean and largest excess wait of a rank in a block of steps.
struct HeatCell {
  std::uint64_t n = 0;
  double mean_ns = 0;
  std::int64_t max_ns = 0;
};
struct StepId {
  std::int32_t launch = 0, repetition = 0, step = 0;
};
struct HeatBlock {  // one block, or consecutive blocks where there are many
  StepId first, last;
  std::vector<HeatCell> ranks;     // [rank]
  std::vector<std::size_t> worst;  // its worst steps, indices into CaseDetail::steps
};

struct WorstStep {
  StepId id;
  std::int64_t cost_ns = 0;
  std::vector<std::vector<PhaseRow>> rows;  // [rebuild][rank]; sequence 0: that rank has no row
};

struct CaseDetail {
  std::array<std::vector<std::vector<CumulativePoint>>, kNumMetrics> by_rank;  // [metric][rank]
  std::array<std::vector<CumulativePoint>, kNumMetrics> over_ranks;  // of the maxima over ranks
  std::array<MedianInterval, kNumMetrics> intervals;                 // of the maxima's median
  std::optional<std::size_t> heat_metric;  // excess wait, or the wait where there is no floor
  std::vector<HeatBlock> blocks;
  std::optional<std::size_t> worst_metric;  // of WorstStep::cost_ns
  std::vector<WorstStep> steps;
};

// Sees the pieces of a case's columns, from several threads.
class CaseDetailBuilder {
 public:
  CaseDetailBuilder(const Run& run, const ReplayTable& table);
  void see(const ColumnPiece& piece);
  CaseDetail finish(const CaseMetrics& metrics);

 private:
  // A HeatCell, summed in integers so that the order of the pieces does not matter.
  struct HeatSum {
    std::uint64_t n = 0;
    WideInt sum = 0;
    std::int64_t max_ns = INT64_MIN;
  };
  void find_blocks();
  void sum_heat(std::size_t heat, std::size_t rank, std::size_t begin, const Column& column);
  void finish_heat(const CaseMetrics& metrics);
  void find_intervals();
  void find_worst();
  void add_step(const StepSlots& step, HeatBlock* block);
  const PhaseRow* row_of(std::size_t rank, std::size_t slot) const;

  const Run& run_;
  const ReplayTable& table_;
  std::size_t step_budget_;                  // steps that may be kept row by row
  std::vector<std::uint32_t> block_begin_;   // first slot of each HeatBlock, and the end
  std::vector<std::uint32_t> sample_begin_;  // first slot of each block or launch, and the end
  bool by_launch_ = false;
  MetricColumns maxima_;  // of the whole case
  std::mutex mutex_;
  std::array<std::vector<HeatSum>, 2> heat_;  // [heat metric][block * ranks + rank]; under mutex_
  CaseDetail detail_;
};

}  // namespace tpjitter
