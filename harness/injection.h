// Injected delays: seeded, recorded, on one rank at a time. The truth that selftest recovers.
#pragma once

#include <cstdint>

#include "harness/contract/scenario.h"
#include "harness/contract/victims.h"

namespace tpjitter {

enum class InjectWhere { kNone, kBeforeDispatch, kBeforeLaunch, kGpu };

struct Injection {
  InjectWhere where = InjectWhere::kNone;
  int rank = 0;  // this one
  std::int64_t amount_ns = 0;
  Victims victims;

  static Injection of(const CaseConfig& config, int rank, int world_size);

  // Rank delayed in the step; -1: nobody.
  int victim(std::int64_t step) const {
    return where == InjectWhere::kNone || amount_ns == 0 ? -1 : victims.of_step(step);
  }
  // Of this rank in the step, wherever it stands.
  std::int64_t delay_ns(std::int64_t step) const { return victim(step) == rank ? amount_ns : 0; }
};

}  // namespace tpjitter
