// Injected delays: seeded, recorded, on one rank at a time. The truth that selftest recovers.
#pragma once

#include <cstdint>

#include "harness/contract/scenario.h"

namespace tpjitter {

enum class InjectWhere { kNone, kBeforeDispatch, kBeforeLaunch };

struct Injection {
  InjectWhere where = InjectWhere::kNone;
  bool victim = false;  // this rank
  std::int64_t amount_ns = 0;
  std::int64_t every_steps = 1;

  static Injection of(const CaseConfig& config, int rank);
  std::int64_t delay_ns(std::int64_t step) const {
    return victim && step % every_steps == 0 ? amount_ns : 0;
  }
};

}  // namespace tpjitter
