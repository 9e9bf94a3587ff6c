// Change points of a series by E-divisive means (Matteson and James 2014): the split with the
// largest energy distance between its two sides, kept if a permutation test says so, then the same
// in both parts. Nothing is assumed of the distribution.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace tpjitter {

inline constexpr std::size_t kMinChangeSeries = 10;  // shorter: no change is looked for
inline constexpr std::size_t kMinChangeSegment = 3;  // values on each side of a change
inline constexpr double kChangeAlpha = 0.01;

struct ChangePoint {
  std::size_t index = 0;         // first value after the change
  double before = 0, after = 0;  // medians of the segments on both sides
  double p_value = 1;
};

// In order of index; none for a series with a value that is not finite. The permutations are seeded: same series, same result.
std::vector<ChangePoint> change_points(std::span<const double> values);

}  // namespace tpjitter
