#include "reports/gate_series.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "harness/contract/error.h"
#include "reports/gate_statistics.h"

namespace tpjitter {
namespace {

constexpr std::size_t kMinBlocks = 3;

const Distribution* distribution_of(const LaunchCase& launch_case, const std::string& phase,
                                    std::size_t metric) {
  if (phase.empty()) return &launch_case.metrics[metric];
  const auto found = launch_case.phases.find(phase);
  return found == launch_case.phases.end() ? nullptr : &found->second[metric];
}

// The last block against the first, by the slope over all of them.
void add_block_change(const std::vector<std::int64_t>& blocks, std::vector<double>* changes) {
  if (blocks.size() < kMinBlocks) return;
  std::vector<double> places(blocks.size());
  std::iota(places.begin(), places.end(), 0.0);
  const std::vector<double> values(blocks.begin(), blocks.end());
  changes->push_back(theil_sen_slope(places, values) * static_cast<double>(blocks.size() - 1));
}

}  // namespace

std::size_t metric_index(const std::string& key) {
  for (std::size_t m = 0; m < kNumMetrics; ++m) {
    if (metrics()[m].key == key) return m;
  }
  throw ConfigError(fmt::format("metric {} is not known", key));
}

Series series_of(const LaunchSet& set, const Selector& selector) {
  const std::size_t metric = metric_index(selector.metric);
  Series series;
  bool timed = true, placed = true;
  series.launches = set.launches.size();
  for (const LaunchResult& launch : set.launches) {
    const auto found = launch.cases.find(selector.case_name);
    if (found == launch.cases.end()) continue;
    const Distribution* values = distribution_of(found->second, selector.phase, metric);
    if (values == nullptr) continue;
    series.samples = std::max(series.samples, values->n);
    const std::optional<double> value = statistic_of(*values, selector.statistic);
    if (!value) continue;
    series.values.push_back(*value);
    timed = timed && launch.began_ns.has_value();
    series.times_s.push_back(static_cast<double>(launch.began_ns.value_or(0)) * 1e-9);
    const std::vector<int>& positions = found->second.positions;
    placed = placed && !positions.empty();
    series.positions.push_back(std::accumulate(positions.begin(), positions.end(), 0.0) /
                               static_cast<double>(std::max<std::size_t>(1, positions.size())));
    if (selector.phase.empty()) {
      add_block_change(found->second.block_p50[metric], &series.block_changes);
    }
  }
  if (!timed) series.times_s.clear();
  if (!placed) series.positions.clear();
  return series;
}

std::vector<std::string> phases_of(const LaunchSet& set, const std::string& case_name) {
  std::set<std::string> names;
  for (const LaunchResult& launch : set.launches) {
    const auto found = launch.cases.find(case_name);
    if (found == launch.cases.end()) continue;
    for (const auto& [phase, values] : found->second.phases) names.insert(phase);
  }
  return {names.begin(), names.end()};
}

std::vector<double> in_time_order(const Series& series) {
  if (series.times_s.empty()) return series.values;
  std::vector<std::size_t> order(series.values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return series.times_s[a] < series.times_s[b]; });
  std::vector<double> values;
  for (const std::size_t i : order) values.push_back(series.values[i]);
  return values;
}

double drift_over(const Series& series, double seconds) {
  if (series.times_s.empty() || trend_p_value(in_time_order(series)) >= kTrendAlpha) return 0;
  const auto [first, last] = std::minmax_element(series.times_s.begin(), series.times_s.end());
  return theil_sen_slope(series.times_s, series.values) * std::min(seconds, *last - *first);
}

std::string doubt(const Series& base, const Series& contender, double effect, double limit) {
  for (const auto& [series, side] :
       {std::pair{&base, "baseline"}, std::pair{&contender, "contender"}}) {
    const auto gap = bistable_gap(series->values, limit);
    if (gap && std::abs(effect) < 2 * *gap) {
      return fmt::format("the {}'s launches have two states, {:.1f} us apart", side, *gap / 1000);
    }
    const std::vector<double> ordered = in_time_order(*series);
    if (trend_p_value(ordered) < kTrendAlpha) {
      const double drift = std::abs(ordered.back() - ordered.front());
      if (drift > limit && std::abs(effect) < 2 * drift) {
        return fmt::format("the {} drifts by {:.1f} us over its launches", side, drift / 1000);
      }
    }
  }
  return {};
}

std::string doubt_of_value(const Series& series, double limit) {
  const auto [least, most] = std::minmax_element(series.values.begin(), series.values.end());
  if (series.values.empty() || *least > limit || *most < limit) return {};  // all on one side of it
  if (bistable_gap(series.values, 0)) {
    return "the launches have two states, with the limit between them";
  }
  if (trend_p_value(in_time_order(series)) < kTrendAlpha) {
    return "the launches drift across the limit";
  }
  return {};
}

}  // namespace tpjitter
