// One metric of one case as the gate sees it: a value a launch, with what tells where in time and
// in the launch's order each was taken. Internal to the gate.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reports/launch_set.h"

namespace tpjitter {

inline constexpr double kTrendAlpha = 0.01;  // of a drift or an effect of order

struct Selector {
  std::string case_name, metric, statistic;
  std::string phase;  // empty: all together
};

struct Series {
  std::vector<double> values;         // ns
  std::vector<double> times_s;        // as long as values, or empty
  std::vector<double> positions;      // mean place in the launch's order; as long, or empty
  std::vector<double> block_changes;  // ns, last block against first, of launches with 3 or more
  std::size_t launches = 0;           // of the side, with or without a value
  std::uint64_t samples = 0;          // largest n of a launch

  // Launches without the value are never left out: the others would then speak for all.
  bool is_whole() const { return !values.empty() && values.size() == launches; }
};

// Throws ConfigError for a metric that is not known.
std::size_t metric_index(const std::string& key);
Series series_of(const LaunchSet& set, const Selector& selector);
// Phases that the case mixes, in the order of their names; empty: it has one.
std::vector<std::string> phases_of(const LaunchSet& set, const std::string& case_name);

// In time order, when the times are known.
std::vector<double> in_time_order(const Series& series);
// Drift over `seconds`, ns, above 0 if later is more; 0 unless a trend is proven. Not past the time that the series itself
// spans: nobody knows how it went on.
double drift_over(const Series& series, double seconds);

// What speaks against a verdict from these two series, or empty.
std::string doubt(const Series& base, const Series& contender, double effect, double limit);
// The same of one series against a fixed limit.
std::string doubt_of_value(const Series& series, double limit);

}  // namespace tpjitter
