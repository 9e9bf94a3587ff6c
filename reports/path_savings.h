// What one metadata path saves against another of the same run: by stage, the lateness that the
// last rank brings to the first all-reduce, as a ratio to the op-by-op path. Each process launch
// runs both paths, so launches are the samples and come in pairs; the interval of the ratio is
// Fieller's (1954), which stays right where a difference of two means over a third would not.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "harness/contract/run_info.h"
#include "reports/attribution.h"

namespace tpjitter {

inline constexpr std::size_t kMinSavingsLaunches = 3;  // of both cases, for an interval

// Mean of `contender` over mean of `base`, of pairs in the same order, with its 95 % interval.
struct PairedRatio {
  double ratio = 0;
  std::optional<double> low, high;
  std::string reason;  // why there is no interval
};
// nullopt: no pairs, or a mean of `base` that is not above 0.
std::optional<PairedRatio> paired_ratio(std::span<const double> base,
                                        std::span<const double> contender);

// The stages of one case, and what its path and other keys are.
struct CaseLateness {
  const RunCase* run_case = nullptr;
  std::vector<LaunchLateness> launches;
};

// `savings[]` of the summary: a row for each case whose keys but `step.path` are those of a case of
// path "aten" in the same run (where there is none, of the first path).
Json path_savings_json(const std::vector<CaseLateness>& cases);

}  // namespace tpjitter
