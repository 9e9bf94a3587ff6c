#include "reports/pair_clock.h"

#include <algorithm>

#include "reports/quantiles.h"
#include "reports/stamps.h"

namespace tpjitter {
namespace {

constexpr std::size_t kAround = 5;               // all-reduces that give an offset, each way
constexpr std::int64_t kMaxAwayNs = 50'000'000;  // clocks drift by less than 32 ns meanwhile

}  // namespace

void PairClock::sort() {
  for (auto* points : {&forth_, &back_}) {
    std::sort(points->begin(), points->end(),
              [](const Point& a, const Point& b) { return a.time_ns < b.time_ns; });
  }
}

std::optional<std::int64_t> PairClock::around(const std::vector<Point>& points,
                                              std::int64_t time_ns) {
  const auto at =
      std::lower_bound(points.begin(), points.end(), time_ns,
                       [](const Point& point, std::int64_t time) { return point.time_ns < time; });
  std::size_t before = static_cast<std::size_t>(at - points.begin());
  std::size_t after = before;
  while (after < points.size() && points[after].time_ns == time_ns) ++after;
  // The nearest on both sides.
  std::vector<std::int64_t> offsets;
  while (offsets.size() < kAround) {
    const std::int64_t back =
        before > 0 ? difference_ns(time_ns, points[before - 1].time_ns) : INT64_MAX;
    const std::int64_t ahead =
        after < points.size() ? difference_ns(points[after].time_ns, time_ns) : INT64_MAX;
    if (std::min(back, ahead) > kMaxAwayNs) return std::nullopt;
    offsets.push_back(back <= ahead ? points[--before].offset_ns : points[after++].offset_ns);
  }
  return nearest_rank(offsets, kP50);
}

std::optional<std::int64_t> PairClock::at(std::int64_t time_ns) const {
  const auto forth = around(forth_, time_ns);
  const auto back = around(back_, time_ns);
  if (!forth || !back) return std::nullopt;
  // The middle, without the overflow of a sum.
  return sum_ns(*back, difference_ns(*forth, *back) / 2);
}

}  // namespace tpjitter
