#include "reports/baseline_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace tpjitter {
namespace {

struct Figure {
  const char* key;
  std::optional<std::int64_t> value;
};

std::optional<std::string> order_problem(const Distribution& d, bool may_be_negative) {
  // Also the order of their sizes. A minimum below 0 of a duration is what `negative` counts.
  const Figure figures[] = {{"min", d.min}, {"p50", d.p50},   {"p90", d.p90},
                            {"p99", d.p99}, {"p999", d.p999}, {"max", d.max}};
  const Figure* before = nullptr;
  for (const Figure& figure : figures) {
    if (!figure.value) continue;
    if (d.n == 0) return fmt::format("key `{}` has a value, but `n` is 0", figure.key);
    if (*figure.value < 0 && !may_be_negative && &figure != figures) {
      return fmt::format("key `{}` is {}: no duration is below 0", figure.key, *figure.value);
    }
    if (before != nullptr && *figure.value < *before->value) {
      return fmt::format("key `{}` is {}, less than `{}`, which is {}", figure.key, *figure.value,
                         before->key, *before->value);
    }
    before = &figure;
  }
  return std::nullopt;
}

std::optional<std::string> mean_problem(const Distribution& d, bool may_be_negative) {
  if (!d.mean) return std::nullopt;
  if (d.n == 0) return "key `mean` has a value, but `n` is 0";
  if (!std::isfinite(*d.mean)) return fmt::format("key `mean` is {}, not finite", *d.mean);
  if (*d.mean < 0 && !may_be_negative) {
    return fmt::format("key `mean` is {}: no duration is below 0", *d.mean);
  }
  const auto outside = [&](std::int64_t bound, double sign) {
    const auto limit = static_cast<double>(bound);
    return sign * (*d.mean - limit) > 1e-9 * std::abs(limit) + 1;  // of rounding
  };
  if ((d.min && outside(*d.min, -1)) || (d.max && outside(*d.max, 1))) {
    return fmt::format("key `mean` is {}, not between `min` and `max`", *d.mean);
  }
  return std::nullopt;
}

}  // namespace

bool may_be_negative(const Metric& metric) { return (metric.needs & kNeedsFloor) != 0; }

std::optional<std::string> distribution_problem(const Distribution& d, bool may_be_negative) {
  if (d.negative > d.n) {
    return fmt::format("key `negative` is {}, more than `n`, which is {}", d.negative, d.n);
  }
  if (auto problem = order_problem(d, may_be_negative)) return problem;
  if (auto problem = mean_problem(d, may_be_negative)) return problem;
  if (d.min && (*d.min < 0) != (d.negative > 0)) {
    return fmt::format("key `negative` is {}, but `min` is {}", d.negative, *d.min);
  }
  return std::nullopt;
}

std::optional<std::string> block_problem(const std::vector<std::int64_t>& block_p50,
                                         bool may_be_negative) {
  const auto negative =
      std::find_if(block_p50.begin(), block_p50.end(), [](std::int64_t v) { return v < 0; });
  if (may_be_negative || negative == block_p50.end()) return std::nullopt;
  return fmt::format("key `block_p50` holds {}: no duration is below 0", *negative);
}

}  // namespace tpjitter
