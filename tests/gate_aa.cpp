// The gate on real launches of unchanged code: how much each metric varies between launches, and the
// exit codes of comparisons of random halves of one pool, as found. The pairs share their launches,
// so they are no independent draws: what they show is this pool.
// Usage: gate_aa PAIRS RUN...   RUN: run directories or baseline files, one pool together
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <random>
#include <vector>

#include "harness/contract/error.h"
#include "reports/baseline.h"
#include "reports/gate.h"

namespace {

using namespace tpjitter;

void print_variation(const LaunchSet& pool) {
  fmt::print(
      "| case | metric | launches | p50, mean us | between launches | smallest us | largest us | "
      "limit us | 10 a side detect us | a side for the limit |\n"
      "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|\n");
  for (const auto& [name, keys] : pool.case_values) {
    for (const std::string& metric : gate_metrics()) {
      const Series series = series_of(pool, {name, metric, "p50", ""});
      const MeanAndVariance m = mean_and_variance(series.values);
      if (m.n < 2 || m.mean == 0) continue;
      const auto [least, most] = std::minmax_element(series.values.begin(), series.values.end());
      WelchResult ten;  // two sides of ten such launches
      ten.standard_error = std::sqrt(2 * m.variance / 10);
      ten.degrees_of_freedom = 18;
      const double limit = std::max(0.10 * std::abs(m.mean), default_floor_ns(pool.backend));
      const auto needed = launches_needed(series.values, series.values, limit);
      fmt::print("| {} | {} | {} | {:.3f} | {:.2f} % | {:.3f} | {:.3f} | {:.1f} | {:.3f} | {} |\n",
                 name, metric, m.n, m.mean / 1000, 100 * std::sqrt(m.variance) / std::abs(m.mean),
                 *least / 1000, *most / 1000, limit / 1000, detectable_effect(ten) / 1000,
                 needed ? std::to_string(*needed) : "over 1000");
    }
  }
}

// Which rows kept the verdict from being a pass, by exit code.
struct Outcomes {
  std::map<int, int> codes;
  std::map<std::string, int> reasons;
  int voids = 0;
};

Outcomes compare_halves(const LaunchSet& pool, int pairs) {
  GateOptions options;
  options.thresholds = default_thresholds(gate_metrics(), pool.backend);
  options.today = "2026-01-01";
  Outcomes outcomes;
  std::mt19937_64 random(1);
  std::vector<LaunchResult> launches = pool.launches;
  for (int i = 0; i < pairs; ++i) {
    std::shuffle(launches.begin(), launches.end(), random);
    const auto middle = launches.begin() + static_cast<std::ptrdiff_t>(launches.size() / 2);
    LaunchSet base = pool, contender = pool;
    base.launches.assign(launches.begin(), middle);
    contender.launches.assign(middle, launches.end());
    const GateResult result = evaluate_gate(&base, contender, options);
    ++outcomes.codes[result.exit_code];
    outcomes.voids += result.is_void;
    for (const GateRow& row : result.rows) {
      if (!row.required || row.verdict == Verdict::kPass || row.verdict == Verdict::kImproved) {
        continue;
      }
      ++outcomes.reasons[fmt::format("{} {}", row_label(row), verdict_name(row.verdict))];
    }
  }
  return outcomes;
}

void print_outcomes(const LaunchSet& pool, int pairs, const Outcomes& outcomes) {
  const std::size_t half = pool.launches.size() / 2;
  fmt::print("\n| exit code | comparisons of {} |\n|---:|---:|\n", pairs);
  for (const auto& [code, count] : outcomes.codes) fmt::print("| {} | {} |\n", code, count);
  fmt::print("\n{} launches a side, {} void.\n", half, outcomes.voids);
  if (outcomes.reasons.empty()) return;
  fmt::print("\n| what was no pass | comparisons |\n|---|---:|\n");
  for (const auto& [what, count] : outcomes.reasons) fmt::print("| {} | {} |\n", what, count);
}

}  // namespace

int main(int argc, char** argv) {
  const int pairs = argc > 1 ? std::atoi(argv[1]) : 0;
  if (pairs < 1 || argc < 3) {
    fmt::print(stderr, "usage: gate_aa PAIRS RUN...\n");
    return kExitUsage;
  }
  try {
    const LaunchSet pool = read_sides({argv + 2, argv + argc});
    if (pool.launches.size() < 2 * kMinLaunches) {
      throw ConfigError(fmt::format("the pool has {} launches; at least {} are needed",
                                    pool.launches.size(), 2 * kMinLaunches));
    }
    print_variation(pool);
    const Outcomes outcomes = compare_halves(pool, pairs);
    print_outcomes(pool, pairs, outcomes);
    return outcomes.codes.count(kExitRegressed) > 0 ? kExitRegressed : kExitPass;
  } catch (const Error& error) {
    fmt::print(stderr, "gate_aa: {}\n", error.what());
    return error.exit_code();
  }
}
