#include "reports/case_detail.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "reports/parallel.h"
#include "reports/quantiles.h"

namespace tpjitter {
namespace {

constexpr std::size_t kMaxHeatBlocks = 24;
constexpr std::size_t kMaxStepsPerBlock = 3;
constexpr std::size_t kRowBudget = 12'000;  // rows of kept steps over all cases: about 1 MB of page
constexpr std::uint64_t kMinGroupSamples = 20;  // for the median of a launch or block
constexpr double kCoverage = 0.95;

// Buckets that grow with the value, so that a point stands for a fixed share of it: 64 an octave.
constexpr int kBucketsLog2 = 6;
constexpr std::size_t kNumBuckets = (64u << kBucketsLog2) + 1;

// 0 for values of at most 0.
std::size_t bucket_of(std::int64_t value) {
  if (value <= 0) return 0;
  const auto v = static_cast<std::uint64_t>(value);
  const int octave = static_cast<int>(std::bit_width(v)) - 1;
  const std::uint64_t part =
      octave >= kBucketsLog2 ? v >> (octave - kBucketsLog2) : v << (kBucketsLog2 - octave);
  return (static_cast<std::size_t>(octave) << kBucketsLog2) + (part & ((1u << kBucketsLog2) - 1)) +
         1;
}

bool has_values(std::span<const std::int64_t> column) {
  return std::any_of(column.begin(), column.end(), [](std::int64_t v) { return v != kAbsent; });
}

// Every k-th begin, so that at most `most` groups are left; the last begin is the end.
std::vector<std::uint32_t> thin(const std::vector<std::uint32_t>& begins, std::size_t most) {
  const std::size_t blocks = begins.size() - 1;
  const std::size_t step = (blocks + most - 1) / std::max<std::size_t>(most, 1);
  std::vector<std::uint32_t> out;
  for (std::size_t i = 0; i < blocks; i += std::max<std::size_t>(step, 1)) out.push_back(begins[i]);
  out.push_back(begins.back());
  return out;
}

StepId step_id(const PhaseRow& row) { return {row.launch, row.repetition, row.step}; }

}  // namespace

std::vector<CumulativePoint> cumulative_points(std::span<const std::int64_t> column) {
  struct Bucket {
    std::uint64_t count = 0;
    std::int64_t most = INT64_MIN;
  };
  std::vector<Bucket> buckets(kNumBuckets);
  for (const std::int64_t value : column) {
    if (value == kAbsent) continue;
    Bucket& bucket = buckets[bucket_of(value)];
    ++bucket.count;
    bucket.most = std::max(bucket.most, value);
  }
  std::vector<CumulativePoint> points;
  std::uint64_t below = 0;
  for (const Bucket& bucket : buckets) {
    if (bucket.count == 0) continue;
    below += bucket.count;
    points.push_back({bucket.most, below});
  }
  if (points.size() <= kMaxCumulativePoints) return points;
  std::vector<CumulativePoint> fewer;
  const std::size_t n = points.size(), last = kMaxCumulativePoints - 1;
  for (std::size_t i = 0; i <= last; ++i) fewer.push_back(points[i * (n - 1) / last]);
  return fewer;
}

MedianInterval median_interval(std::vector<std::int64_t> group_medians, bool launches) {
  MedianInterval interval;
  interval.groups = group_medians.size();
  interval.launches = launches;
  const std::size_t n = group_medians.size();
  if (n < kMinIntervalGroups) return interval;
  std::sort(group_medians.begin(), group_medians.end());
  // The k-th smallest to the k-th largest misses the median with probability
  // 2 * P(Binomial(n, 1/2) < k).
  double term = std::pow(0.5, static_cast<double>(n)), below = term;
  std::size_t k = 1;
  interval.coverage = 1 - 2 * below;
  while (k < n / 2) {
    term *= static_cast<double>(n - k + 1) / static_cast<double>(k);
    if (1 - 2 * (below + term) < kCoverage) break;
    below += term;
    interval.coverage = 1 - 2 * below;
    ++k;
  }
  interval.low_ns = group_medians[k - 1];
  interval.high_ns = group_medians[n - k];
  return interval;
}

std::vector<StepSlots> list_steps(const ReplayTable& table, std::span<const std::int64_t> cost) {
  std::vector<StepSlots> steps;
  for (std::size_t slot = 0; slot < table.slots(); ++slot) {
    const auto number = static_cast<std::uint32_t>(slot);
    if (table.has(slot, ReplayTable::kFirstOfStep)) steps.push_back({number, number, kAbsent});
    steps.back().end = number + 1;
    if (!cost.empty()) steps.back().cost_ns = std::max(steps.back().cost_ns, cost[slot]);
  }
  return steps;
}

ReplayTable select_steps(const ReplayTable& table, const std::vector<StepSlots>& steps) {
  ReplayTable selected;
  selected.row_of_slot.resize(table.row_of_slot.size());
  for (const StepSlots& step : steps) {
    for (std::size_t slot = step.begin; slot < step.end; ++slot) {
      for (std::size_t rank = 0; rank < table.row_of_slot.size(); ++rank) {
        selected.row_of_slot[rank].push_back(table.row_of_slot[rank][slot]);
      }
      selected.flags.push_back(
          static_cast<std::uint8_t>(table.flags[slot] & ~ReplayTable::kFollows));
      selected.phase.push_back(table.phase[slot]);
      selected.earliest_launch_ns.push_back(table.earliest_launch_ns[slot]);
      selected.latest_launch_ns.push_back(table.latest_launch_ns[slot]);
    }
  }
  return selected;
}

std::optional<std::size_t> cost_metric(const MetricColumns& maxima) {
  for (const char* key : {"first_all_reduce_excess_wait_ns", "first_all_reduce_wait_ns",
                          "launch_skew_ns", "step_ns", "dispatch_ns"}) {
    const std::size_t m = metric_index(key);
    if (has_values(maxima[m])) return m;
  }
  return std::nullopt;
}

std::vector<StepSlots> worst_steps(std::vector<StepSlots> steps, std::size_t count) {
  std::erase_if(steps, [](const StepSlots& s) { return s.cost_ns == kAbsent; });
  const auto worse = [](const StepSlots& a, const StepSlots& b) {
    return a.cost_ns != b.cost_ns ? a.cost_ns > b.cost_ns : a.begin < b.begin;
  };
  const std::size_t kept = std::min(count, steps.size());
  std::partial_sort(steps.begin(), steps.begin() + static_cast<std::ptrdiff_t>(kept), steps.end(),
                    worse);
  steps.resize(kept);
  return steps;
}

CaseDetailBuilder::CaseDetailBuilder(const Run& run, const ReplayTable& table)
    : run_(run), table_(table) {
  std::size_t cases = 0, first_steps = 0;
  for (const RunCase& c : run.info.cases) cases += c.skip_reason ? 0 : 1;
  for (std::size_t slot = 0; slot < table.slots(); ++slot) {
    first_steps += table.has(slot, ReplayTable::kFirstOfStep) ? 1 : 0;
  }
  const std::size_t rebuilds = first_steps == 0 ? 1 : (table.slots() - 1) / first_steps + 1;
  step_budget_ = std::max<std::size_t>(
      1, kRowBudget / (std::max<std::size_t>(cases, 1) * rebuilds * run.ranks.size()));
  for (auto& ranks : detail_.by_rank) ranks.resize(run.ranks.size());
  find_blocks();
}

void CaseDetailBuilder::find_blocks() {
  std::vector<std::uint32_t> begins, launches;
  std::size_t segment = 0;
  for (std::size_t slot = 0; slot < table_.slots(); ++slot) {
    const auto number = static_cast<std::uint32_t>(slot);
    if (segment < table_.segments.size() && table_.segments[segment].begin == slot) {
      const auto& s = table_.segments[segment];
      if (segment == 0 || s.launch != table_.segments[segment - 1].launch) {
        launches.push_back(number);
      }
      begins.push_back(number);
      ++segment;
    } else if (table_.has(slot, ReplayTable::kFirstOfStep | ReplayTable::kExcluded)) {
      begins.push_back(number);
    }
  }
  const auto end = static_cast<std::uint32_t>(table_.slots());
  by_launch_ = launches.size() > 1;
  sample_begin_ = by_launch_ ? launches : begins;
  sample_begin_.push_back(end);
  begins.push_back(end);
  block_begin_ = thin(begins, std::min(kMaxHeatBlocks, step_budget_));
  for (std::size_t b = 0; b + 1 < block_begin_.size(); ++b) {
    HeatBlock& block = detail_.blocks.emplace_back();
    block.ranks.resize(run_.ranks.size());
    for (std::size_t rank = 0; rank < run_.ranks.size(); ++rank) {
      const PhaseRow* first = row_of(rank, block_begin_[b]);
      const PhaseRow* last = row_of(rank, block_begin_[b + 1] - 1);
      if (first == nullptr || last == nullptr) continue;
      block.first = step_id(*first);
      block.last = step_id(*last);
      break;
    }
  }
}

const PhaseRow* CaseDetailBuilder::row_of(std::size_t rank, std::size_t slot) const {
  const std::uint32_t number = table_.row_of_slot[rank][slot];
  return number == kNoRow ? nullptr : &run_.ranks[rank].rows[number];
}

void CaseDetailBuilder::operator()(std::optional<std::size_t> rank, const MetricColumns& columns) {
  if (rank) {
    parallel_for(kNumMetrics, table_.slots(),
                 [&](std::size_t m) { detail_.by_rank[m][*rank] = cumulative_points(columns[m]); });
    add_heat(*rank, columns);
    return;
  }
  parallel_for(kNumMetrics, table_.slots(), [&](std::size_t m) {
    detail_.over_ranks[m] = cumulative_points(columns[m]);
    std::vector<std::int64_t> medians, values;
    if (columns[m].empty()) return;
    for (std::size_t g = 0; g + 1 < sample_begin_.size(); ++g) {
      values.clear();
      for (std::size_t slot = sample_begin_[g]; slot < sample_begin_[g + 1]; ++slot) {
        if (columns[m][slot] != kAbsent) values.push_back(columns[m][slot]);
      }
      if (values.size() >= kMinGroupSamples) medians.push_back(*describe(values).p50);
    }
    detail_.intervals[m] = median_interval(std::move(medians), by_launch_);
  });
  find_worst(columns);
}

void CaseDetailBuilder::add_heat(std::size_t rank, const MetricColumns& columns) {
  static constexpr const char* kKeys[] = {"first_all_reduce_excess_wait_ns",
                                          "first_all_reduce_wait_ns"};
  for (const char* key : kKeys) {
    if (detail_.heat_metric) break;
    const std::size_t m = metric_index(key);
    if (has_values(columns[m])) detail_.heat_metric = m;
  }
  if (!detail_.heat_metric) return;
  const Column& column = columns[*detail_.heat_metric];
  for (std::size_t b = 0; b + 1 < block_begin_.size(); ++b) {
    HeatCell& cell = detail_.blocks[b].ranks[rank];
    double sum = 0;
    for (std::size_t slot = block_begin_[b]; slot < block_begin_[b + 1]; ++slot) {
      if (column[slot] == kAbsent) continue;
      cell.max_ns = cell.n == 0 ? column[slot] : std::max(cell.max_ns, column[slot]);
      ++cell.n;
      sum += static_cast<double>(column[slot]);
    }
    if (cell.n > 0) cell.mean_ns = sum / static_cast<double>(cell.n);
  }
}

void CaseDetailBuilder::find_worst(const MetricColumns& maxima) {
  detail_.worst_metric = cost_metric(maxima);
  if (!detail_.worst_metric) return;
  const std::vector<StepSlots> steps = list_steps(table_, maxima[*detail_.worst_metric]);
  const std::size_t blocks = std::max<std::size_t>(detail_.blocks.size(), 1);
  const std::size_t each = std::clamp<std::size_t>(step_budget_ / blocks, 1, kMaxStepsPerBlock);
  auto begin = steps.begin();
  for (std::size_t b = 0; b < detail_.blocks.size(); ++b) {
    const auto end = std::find_if(
        begin, steps.end(), [&](const StepSlots& s) { return s.begin >= block_begin_[b + 1]; });
    for (const StepSlots& step : worst_steps({begin, end}, each)) {
      add_step(step, &detail_.blocks[b]);
    }
    begin = end;
  }
}

void CaseDetailBuilder::add_step(const StepSlots& step, HeatBlock* block) {
  WorstStep out;
  out.cost_ns = step.cost_ns;
  for (std::size_t slot = step.begin; slot < step.end; ++slot) {
    std::vector<PhaseRow>& rows = out.rows.emplace_back(run_.ranks.size(), PhaseRow{});
    for (std::size_t rank = 0; rank < run_.ranks.size(); ++rank) {
      const PhaseRow* row = row_of(rank, slot);
      if (row == nullptr) continue;
      rows[rank] = *row;
      out.id = step_id(*row);
    }
  }
  block->worst.push_back(detail_.steps.size());
  detail_.steps.push_back(std::move(out));
}

}  // namespace tpjitter
