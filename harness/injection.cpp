#include "harness/injection.h"

#include <cmath>

namespace tpjitter {

Injection Injection::of(const CaseConfig& config, int rank, int world_size) {
  Injection injection;
  if (config.inject_where == "before_dispatch") injection.where = InjectWhere::kBeforeDispatch;
  if (config.inject_where == "before_launch") injection.where = InjectWhere::kBeforeLaunch;
  if (config.inject_where == "gpu") injection.where = InjectWhere::kGpu;
  injection.rank = rank;
  injection.amount_ns = std::llround(config.inject_delay_us * 1000.0);
  injection.victims.pattern = inject_pattern(config.inject_pattern).value_or(InjectPattern::kFixed);
  injection.victims.first = static_cast<int>(config.inject_victim);
  injection.victims.world_size = world_size;
  injection.victims.every_steps = config.inject_every_steps;
  injection.victims.seed = static_cast<std::uint64_t>(config.inject_seed);
  return injection;
}

}  // namespace tpjitter
