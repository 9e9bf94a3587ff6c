// What a record says about injected delays: for each delayed step the delay asked for, the delay
// that really stood there, and what launch skew and waits give back of it.
//
// The hard thing is the step's own skew, which is often larger than the delay. It is taken out
// within the replay: what the stages of the victim and of another rank took is in their stamps, so
// what is left of the difference between the two is the delay's. Between two GPU clocks no
// difference is taken but over the all-reduces of the replays around (PairClock) or, where a victim
// never waits, over the calibrated clocks of the launch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "harness/contract/scenario.h"
#include "reports/run_reader.h"

namespace tpjitter {

struct DelaySample {
  std::int64_t actual_ns = 0;                  // delay that the stamps show where it was injected
  std::int64_t skew_ns = 0;                    // launch skew without what the other stages explain
  std::optional<std::int64_t> excess_wait_ns;  // likewise, of the waits
  // Excess wait minus the gap between the arrivals, the largest over the ranks without its sign.
  std::optional<std::int64_t> gap_error_ns;
  std::int64_t natural_ns = 0;  // the most that the stages differ by without the delay
  // Arrival of the victim after that of the last other rank, on the calibrated clocks of the GPUs:
  // who was the last without a look at any wait. Absent: not aligned, or modelled.
  std::optional<std::int64_t> behind_ns;
  std::int64_t behind_bound_ns = 0;
  bool laggard_right = false;  // as the report attributes this replay
  bool stage_right = false;
};

struct DelayCase {
  std::size_t case_index = 0;
  CaseConfig config;
  std::int64_t asked_ns = 0;
  std::vector<std::vector<DelaySample>> samples;  // [victim]
  std::uint64_t steps = 0;                        // compared, with a delay or without
  std::uint64_t mismatches = 0;                   // rows whose delay is not the scenario's
  std::string first_mismatch;                     // "rank 1, step 12: ..."
};

// Cases of the run with inject.where set, in order; skipped ones are left out. Throws RecordError
// where a case's values cannot be read.
std::vector<DelayCase> delay_cases(const Run& run);

}  // namespace tpjitter
