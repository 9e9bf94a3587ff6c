// What a distribution in a baseline file must be like. Such a file is edited and merged by hand: a
// figure that no run can have would silently become a limit.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reports/metrics.h"
#include "reports/quantiles.h"

namespace tpjitter {

// Whether values below 0 mean something: only of a wait minus its floor.
bool may_be_negative(const Metric& metric);

// "key `p50` is ..." of the first thing that is wrong, or nothing.
std::optional<std::string> distribution_problem(const Distribution& values, bool may_be_negative);
std::optional<std::string> block_problem(const std::vector<std::int64_t>& block_p50,
                                         bool may_be_negative);

}  // namespace tpjitter
