#include "harness/injection.h"

namespace tpjitter {

Injection Injection::of(const CaseConfig& config, int rank) {
  Injection injection;
  if (config.inject_where == "before_dispatch") injection.where = InjectWhere::kBeforeDispatch;
  if (config.inject_where == "before_launch") injection.where = InjectWhere::kBeforeLaunch;
  injection.victim = injection.where != InjectWhere::kNone && config.inject_victim == rank;
  injection.amount_ns = static_cast<std::int64_t>(config.inject_delay_us * 1000.0);
  injection.every_steps = config.inject_every_steps;
  return injection;
}

}  // namespace tpjitter
