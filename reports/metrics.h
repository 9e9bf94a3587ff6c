// The metrics: one table, one function each, over one row and its neighbours. Per rank the
// distribution of its own values; per case the maximum over ranks in each replay, then quantiles
// over replays. A case is gone through once, in pieces of a few thousand slots that stay in the cache:
// a piece's columns are filled rank by rank, counted and forgotten, whatever the run's size.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reports/column.h"
#include "reports/floors.h"
#include "reports/quantiles.h"
#include "reports/replays.h"
#include "reports/value_counts.h"

namespace tpjitter {

// A row with what its metrics need from other rows and ranks.
struct RowContext {
  const PhaseRow& row;
  const PhaseRow* next_step;  // first row of this rank's next step; null: none, or a block between
  bool first_of_step;
  std::int64_t earliest_launch_ns;  // over ranks in this replay; kAbsent unless all launched
  std::int64_t latest_launch_ns;
  std::optional<std::int64_t> wait_ns;  // of the first all-reduce; absent with one rank
  std::optional<std::int64_t> floor_ns;
};

// What a metric cannot do without; decides the reason that is given when it has no value.
enum MetricNeed : std::uint32_t {
  kNeedsLaunch = 1u << 0,
  kNeedsPeers = 1u << 1,     // more than one rank
  kNeedsAllRanks = 1u << 2,  // every rank's row of the replay
  kNeedsAllReduce = 1u << 3,
  kNeedsWait = 1u << 4,
  kNeedsFloor = 1u << 5,
  kNeedsNextStep = 1u << 6,
  kNeedsDevice = 1u << 7,
};

enum class MetricScope { kRebuild, kReplay, kStep };  // how often there is a value

struct Metric {
  const char* key;  // unit is part of the key
  const char* unit;
  const char* summary;
  std::int64_t (*value)(const RowContext&);  // kAbsent: none
  MetricScope scope;
  std::uint32_t needs;  // MetricNeed bits
  bool case_level;      // false: only per rank
  bool jitter;          // its jitter per rank means something
};
inline constexpr std::size_t kNumMetrics = 10;
std::span<const Metric, kNumMetrics> metrics();
std::size_t metric_index(std::string_view key);  // of a metric there is

struct MetricResult {
  Distribution values;
  std::string reason;  // set when n = 0: why there is no value
};

// p99 - p50 and the step-to-step differences of one metric on one rank.
struct Jitter {
  std::optional<std::int64_t> p99_minus_p50;
  std::string reason;            // set when p99_minus_p50 is null
  Distribution step_difference;  // |value - value in the step before|, ns
};

using MetricCounts = std::array<ValueCounts, kNumMetrics>;

struct RankMetrics {
  std::array<MetricResult, kNumMetrics> metrics;
  std::array<std::optional<Jitter>, kNumMetrics> jitter;
  MetricCounts counts;
  std::uint64_t rows = 0;
};

struct CaseMetrics {
  std::array<MetricResult, kNumMetrics> metrics;
  std::array<std::optional<std::array<MetricResult, kNumMetrics>>, kNumPhases> phases;
  MetricCounts counts;  // of the maxima over ranks
  std::vector<RankMetrics> ranks;
};

// Values by slot, [metric][slot]; kAbsent where there is none or the slot is out of the statistics.
using MetricColumns = std::array<Column, kNumMetrics>;

// The columns of consecutive slots, `begin` being the first: of a rank, or (nullopt) the maxima over
// all ranks, in which a metric that is only per rank has none. They live until the observer returns.
struct ColumnPiece {
  std::size_t begin = 0;
  std::optional<std::size_t> rank;
  const MetricColumns& columns;
};
using PieceObserver = std::function<void(const ColumnPiece&)>;

// Rows that had what a metric needs, to say why it has no value.
struct MetricEvidence {
  std::uint64_t rows = 0, all_ranks = 0, launches = 0, all_reduces = 0, device = 0, own_wait = 0;
  std::uint64_t floors = 0, next_steps = 0;

  void add(const MetricEvidence& e);
};

// The one pass over a case's rows, in parts that may run on several threads at once. What they
// count does not depend on their order. `observer` is called from all of them.
class MetricsPass {
 public:
  MetricsPass(const Run& run, const ReplayTable& table, const Floors& floors,
              PieceObserver observer);
  std::size_t parts() const { return part_begin_.size() - 1; }
  void run_part(std::size_t part);
  CaseMetrics finish();  // after all parts

 private:
  struct Rank {
    MetricCounts values, differences;
    MetricEvidence evidence;
  };
  struct Counts {
    std::vector<Rank> ranks;
    std::array<std::optional<MetricCounts>, kNumPhases> maxima;  // those that the case has
  };
  class Part;

  Counts no_counts() const;
  void add_up();  // the counts of all parts
  RankMetrics rank_metrics(std::size_t rank);
  std::array<MetricResult, kNumMetrics> case_level(const MetricCounts& counts,
                                                   const MetricEvidence& evidence) const;

  const Run& run_;
  const ReplayTable& table_;
  const Floors& floors_;
  const PieceObserver observer_;
  std::array<bool, kNumPhases> has_phase_{};
  std::vector<std::size_t> part_begin_;  // first slots, of steps, and the end
  std::mutex mutex_;
  std::vector<Counts> spare_;  // of parts that have ended; under mutex_
  Counts counts_;              // of all parts
};

// Whole columns: each rank's in turn, then the maxima.
using ColumnObserver =
    std::function<void(std::optional<std::size_t> rank, const MetricColumns& columns)>;
void visit_columns(const Run& run, const ReplayTable& table, const Floors& floors,
                   const ColumnObserver& observer);

}  // namespace tpjitter
