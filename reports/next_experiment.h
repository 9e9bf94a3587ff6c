// What to try next, one sentence, from where the lateness of a case lies. Only what the reader can
// do with this run: nothing that its backend or machine has not, nothing that it did already.
#pragma once

#include <cstddef>
#include <string>

#include "reports/attribution.h"
#include "reports/floors.h"
#include "reports/run_reader.h"

namespace tpjitter {

struct LatenessFacts {
  std::size_t largest_stage = 0;  // LatenessStage with the largest part of the lateness
  bool waits = false;             // some replay has the waits of all ranks
  double preempted = 0;  // part of the coupling lateness in steps with a preempted laggard, 0..1
};

// `attribution` has everything but its next experiment.
std::string next_experiment(const Run& run, const RunCase& run_case, const Floors& floors,
                            const Attribution& attribution, const LatenessFacts& facts);

// A case's setting, such as "/step/loop"; empty where the record does not say.
std::string case_text(const RunCase& run_case, const std::string& pointer);

}  // namespace tpjitter
