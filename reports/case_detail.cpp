#include "reports/case_detail.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

#include "reports/parallel.h"
#include "reports/quantiles.h"

namespace tpjitter {
namespace {

constexpr std::size_t kMaxHeatBlocks = 24;
constexpr std::size_t kMaxStepsPerBlock = 3;
constexpr std::size_t kRowBudget = 12'000;  // rows of kept steps over all cases: about 1 MB of page
constexpr std::uint64_t kMinGroupSamples = 20;  // for the median of a launch or block
constexpr double kCoverage = 0.95;

// What the heat map shows: the first that has values.
constexpr std::array kHeatMetrics = {"first_all_reduce_excess_wait_ns", "first_all_reduce_wait_ns"};

bool has_values(std::span<const std::int64_t> column) {
  return std::any_of(column.begin(), column.end(), [](std::int64_t v) { return v != kAbsent; });
}

// Of a launch or block that has enough samples; counting takes less than putting many in order.
std::optional<std::int64_t> median_of(std::span<const std::int64_t> column,
                                      std::vector<std::int64_t>* scratch) {
  constexpr std::size_t kMany = 1u << 15;
  if (column.size() >= kMany) {
    ValueCounts counts;
    counts.add_column(column);
    return counts.size() < kMinGroupSamples ? std::nullopt : counts.nearest_rank(kP50);
  }
  scratch->clear();
  std::copy_if(column.begin(), column.end(), std::back_inserter(*scratch),
               [](std::int64_t value) { return value != kAbsent; });
  return scratch->size() < kMinGroupSamples ? std::nullopt : nearest_rank(*scratch, kP50);
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
  find_blocks();
  for (auto& sums : heat_) sums.resize(detail_.blocks.size() * run.ranks.size());
  for (std::size_t m = 0; m < kNumMetrics; ++m) {
    if (metrics()[m].case_level) maxima_[m].resize(table.slots());
  }
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

void CaseDetailBuilder::see(const ColumnPiece& piece) {
  if (piece.rank) {
    for (std::size_t heat = 0; heat < kHeatMetrics.size(); ++heat) {
      sum_heat(heat, *piece.rank, piece.begin, piece.columns[metric_index(kHeatMetrics[heat])]);
    }
    return;
  }
  for (std::size_t m = 0; m < kNumMetrics; ++m) {
    if (piece.columns[m].empty()) continue;  // no maximum is kept of it
    std::copy(piece.columns[m].begin(), piece.columns[m].end(),
              maxima_[m].begin() + static_cast<std::ptrdiff_t>(piece.begin));
  }
}

void CaseDetailBuilder::sum_heat(std::size_t heat, std::size_t rank, std::size_t begin,
                                 const Column& column) {
  std::size_t block = static_cast<std::size_t>(
      std::upper_bound(block_begin_.begin(), block_begin_.end(), begin) - block_begin_.begin() - 1);
  for (std::size_t i = 0; i < column.size(); ++block) {
    const std::size_t end = std::min(column.size(), block_begin_[block + 1] - begin);
    HeatSum sum;
    for (; i < end; ++i) {
      if (column[i] == kAbsent) continue;
      ++sum.n;
      sum.sum += column[i];
      sum.max_ns = std::max(sum.max_ns, column[i]);
    }
    const std::lock_guard lock(mutex_);
    HeatSum& all = heat_[heat][block * run_.ranks.size() + rank];
    all.n += sum.n;
    all.sum += sum.sum;
    all.max_ns = std::max(all.max_ns, sum.max_ns);
  }
}

CaseDetail CaseDetailBuilder::finish(const CaseMetrics& metrics) {
  for (std::size_t m = 0; m < kNumMetrics; ++m) {
    for (const RankMetrics& rank : metrics.ranks) {
      detail_.by_rank[m].push_back(rank.counts[m].cumulative_points());
    }
    detail_.over_ranks[m] = metrics.counts[m].cumulative_points();
  }
  finish_heat(metrics);
  find_intervals();
  find_worst();
  return std::move(detail_);
}

void CaseDetailBuilder::finish_heat(const CaseMetrics& metrics) {
  const std::size_t world = metrics.ranks.size();
  std::size_t heat = 0;
  for (std::size_t rank = 0; rank < world && !detail_.heat_metric; ++rank) {
    for (heat = 0; heat < kHeatMetrics.size(); ++heat) {
      const std::size_t m = metric_index(kHeatMetrics[heat]);
      if (metrics.ranks[rank].metrics[m].values.n == 0) continue;
      detail_.heat_metric = m;
      break;
    }
  }
  if (!detail_.heat_metric) return;
  for (std::size_t i = 0; i < heat_[heat].size(); ++i) {
    const HeatSum& sum = heat_[heat][i];
    if (sum.n == 0) continue;
    detail_.blocks[i / world].ranks[i % world] = {
        sum.n, static_cast<double>(sum.sum) / static_cast<double>(sum.n), sum.max_ns};
  }
}

void CaseDetailBuilder::find_intervals() {
  parallel_for(kNumMetrics, table_.slots(), [&](std::size_t m) {
    std::vector<std::int64_t> medians, scratch;
    if (maxima_[m].empty()) return;
    for (std::size_t g = 0; g + 1 < sample_begin_.size(); ++g) {
      const auto group = std::span<const std::int64_t>(maxima_[m])
                             .subspan(sample_begin_[g], sample_begin_[g + 1] - sample_begin_[g]);
      if (const auto median = median_of(group, &scratch)) medians.push_back(*median);
    }
    detail_.intervals[m] = median_interval(std::move(medians), by_launch_);
  });
}

void CaseDetailBuilder::find_worst() {
  detail_.worst_metric = cost_metric(maxima_);
  if (!detail_.worst_metric) return;
  const std::vector<StepSlots> steps = list_steps(table_, maxima_[*detail_.worst_metric]);
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
