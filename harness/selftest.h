// The scenario that `tpjitter selftest` runs: a ladder of injected delays, made in code so that the
// program works without its scenario files.
#pragma once

#include "harness/contract/scenario.h"

namespace tpjitter {

inline constexpr int kSelftestDelays = 210;  // of each victim in a case: a p95 needs 200
// On GPUs, where a p95 is judged to 0.2 us: a timer tick at a delay's end makes it microseconds
// longer, so that the steps must not keep its pace, and must be many.
inline constexpr int kSelftestDelaysOnGpus = 600;
inline constexpr std::int64_t kSelftestPauseOnGpusNs = 1'000'000;

// `delays`: steps in which each rank is delayed, a case. Few layers: what is under test is the
// host and the first all-reduce.
Scenario selftest_scenario(int world_size, int delays);

}  // namespace tpjitter
