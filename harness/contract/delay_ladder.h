// The delays that `tpjitter selftest` injects: what it measures and what the analysis of its record
// expects to find there.
#pragma once

#include <array>
#include <cstdint>

namespace tpjitter {

inline constexpr std::array<std::int64_t, 7> kDelayLadderUs = {0, 1, 5, 20, 50, 250, 1000};
inline constexpr std::array<const char*, 3> kDelayPlaces = {"before_dispatch", "before_launch",
                                                            "gpu"};
// The ladder is climbed with rotating victims; the other patterns take one of its delays.
inline constexpr std::int64_t kOtherPatternsUs = 250;

}  // namespace tpjitter
