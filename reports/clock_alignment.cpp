#include "reports/clock_alignment.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "reports/stamps.h"

namespace tpjitter {
namespace {

constexpr std::int64_t kMaxRoundTripNs = 1'000'000'000;  // beyond it a stamp is damage

std::uint64_t magnitude(std::int64_t value) {
  return value < 0 ? 0 - static_cast<std::uint64_t>(value) : static_cast<std::uint64_t>(value);
}

// Offsets that an exchange allows.
struct Range {
  std::int64_t low = 0, high = 0;
  bool overlaps(const Range& other) const { return low <= other.high && other.low <= high; }
};

Range allowed(const ClockExchange& e, std::int64_t resolution_ns) {
  return {difference_ns(difference_ns(e.send_b_ns, e.receive_a_ns), resolution_ns),
          sum_ns(difference_ns(e.receive_b_ns, e.send_a_ns), resolution_ns)};
}

// Is this exchange contradicted by too many of the others?
bool contradicted(const ClockExchange& e, std::span<const ClockExchange> all,
                  std::int64_t resolution_ns) {
  const Range range = allowed(e, resolution_ns);
  const auto agreeing = std::count_if(all.begin(), all.end(), [&](const ClockExchange& other) {
    return range.overlaps(allowed(other, resolution_ns));
  });
  return 4 * static_cast<std::size_t>(agreeing) < 3 * all.size();
}

double seconds_between(const ClockOffset& a, const ClockOffset& b) {
  return static_cast<double>(difference_ns(b.at_a_ns, a.at_a_ns)) * 1e-9;
}

double slope(const ClockOffset& from, const ClockOffset& to) {
  return static_cast<double>(difference_ns(to.offset_ns, from.offset_ns)) /
         static_cast<double>(difference_ns(to.at_a_ns, from.at_a_ns));
}

// How the offset's change in each interval differs from what the longer side of the rest makes of
// it, and how far off it may be before one of the clocks must have been set.
struct Deviations {
  std::vector<double> deviation_ns;
  // In what the rest makes of it: a step may hide there. Of changes of an offset, see changes_by.
  std::vector<double> doubt_ns;
  std::vector<bool> step;
  std::size_t steps() const {
    return static_cast<std::size_t>(std::count(step.begin(), step.end(), true));
  }
};

// How far off a point may be against another one of the launch. What the two ways of the fastest
// message differ by is in every offset alike and moves no change of it: only what the exchanges used
// took longer than the fastest of all does.
double changes_by(const ClockOffset& point, std::int64_t fastest_ns) {
  return static_cast<double>(point.bound_ns) - static_cast<double>(fastest_ns) / 2;
}

Deviations deviations(std::span<const ClockOffset> points) {
  Deviations d;
  std::int64_t fastest_ns = INT64_MAX;
  for (const ClockOffset& point : points) fastest_ns = std::min(fastest_ns, point.round_trip_ns);
  const std::size_t last = points.size() - 1;
  for (std::size_t i = 0; i < last; ++i) {
    const double left = seconds_between(points[0], points[i]);
    const double right = seconds_between(points[i + 1], points[last]);
    const auto& from = left >= right ? points[0] : points[i + 1];
    const auto& to = left >= right ? points[i] : points[last];
    const double interval = seconds_between(points[i], points[i + 1]);
    const double change =
        static_cast<double>(difference_ns(points[i + 1].offset_ns, points[i].offset_ns));
    const double deviation = change - slope(from, to) * interval * 1e9;
    const double own = static_cast<double>(points[i].bound_ns + points[i + 1].bound_ns);
    const double others = static_cast<double>(from.bound_ns + to.bound_ns);
    const double share = interval / std::max(left, right);
    const double doubt = others * share;
    d.deviation_ns.push_back(deviation);
    d.doubt_ns.push_back((changes_by(from, fastest_ns) + changes_by(to, fastest_ns)) * share);
    d.step.push_back(std::fabs(deviation) > own + doubt);
  }
  return d;
}

// Takes out points whose removal leaves fewer steps, a quarter at most. The first and the last
// stay: at an end a wrong point cannot be told from a step.
void reject_points(ClockLine* line) {
  const std::size_t most = line->points.size() / 4;
  while (line->rejected_points < most && line->points.size() > kMinPoints) {
    const std::size_t steps = deviations(line->points).steps();
    if (steps == 0) return;
    std::optional<std::size_t> best;
    std::size_t fewest = steps;
    for (std::size_t i = 1; i + 1 < line->points.size(); ++i) {
      std::vector<ClockOffset> without = line->points;
      without.erase(without.begin() + static_cast<std::ptrdiff_t>(i));
      const std::size_t left = deviations(without).steps();
      if (left >= fewest) continue;
      fewest = left;
      best = i;
    }
    if (!best) return;
    line->points.erase(line->points.begin() + static_cast<std::ptrdiff_t>(*best));
    ++line->rejected_points;
  }
}

void measure_intervals(ClockLine* line) {
  const Deviations d = deviations(line->points);
  for (std::size_t i = 0; i + 1 < line->points.size(); ++i) {
    const auto deviation = static_cast<std::int64_t>(std::llround(d.deviation_ns[i]));
    const std::int64_t bound = std::max(line->points[i].bound_ns, line->points[i + 1].bound_ns) +
                               std::llabs(deviation) + std::llround(d.doubt_ns[i]);
    line->intervals.push_back({deviation, bound});
    line->bound_ns = std::max(line->bound_ns, bound);
    line->residual_ns = std::max<std::int64_t>(line->residual_ns, std::llabs(deviation));
  }
  line->drift = slope(line->points.front(), line->points.back());
  line->steps = d.steps();
}

}  // namespace

std::int64_t round_trip_ns(const ClockExchange& e) {
  return difference_ns(difference_ns(e.receive_a_ns, e.send_a_ns),
                       difference_ns(e.send_b_ns, e.receive_b_ns));
}

std::int64_t middle_offset_ns(const ClockExchange& e) {
  // From the lower end: the sum of both ends need not fit.
  return sum_ns(difference_ns(e.send_b_ns, e.receive_a_ns), round_trip_ns(e) / 2);
}

bool possible(const ClockExchange& e) {
  const auto taken = [](std::int64_t stamp) { return stamp > 0; };
  const std::int64_t trip = round_trip_ns(e);
  return taken(e.send_a_ns) && taken(e.receive_b_ns) && taken(e.send_b_ns) &&
         taken(e.receive_a_ns) && e.receive_a_ns >= e.send_a_ns && trip >= 0 &&
         trip <= kMaxRoundTripNs;
}

ClockOffset estimate_offset(std::span<const ClockExchange> exchanges, std::int64_t resolution_ns) {
  ClockOffset result;
  std::vector<ClockExchange> all, fit;
  std::copy_if(exchanges.begin(), exchanges.end(), std::back_inserter(all), possible);
  for (const ClockExchange& e : all) {
    if (!contradicted(e, all, resolution_ns)) fit.push_back(e);
  }
  result.rejected = exchanges.size() - fit.size();
  if (fit.size() < kOffsetExchanges) {
    result.reason =
        all.size() < kOffsetExchanges
            ? fmt::format("{} usable exchanges, {} are needed", all.size(), kOffsetExchanges)
            : "the exchanges contradict each other: a clock was set, or stamps are damaged";
    return result;
  }
  const auto fastest = fit.begin() + kOffsetExchanges;
  std::partial_sort(fit.begin(), fastest, fit.end(), [](const auto& x, const auto& y) {
    return round_trip_ns(x) < round_trip_ns(y);
  });
  result.round_trip_ns = round_trip_ns(fit.front());
  result.bound_ns = (round_trip_ns(*(fastest - 1)) + 1) / 2 + resolution_ns;
  const auto middle = fit.begin() + kOffsetExchanges / 2;
  std::nth_element(fit.begin(), middle, fastest, [](const auto& x, const auto& y) {
    return middle_offset_ns(x) < middle_offset_ns(y);
  });
  result.offset_ns = middle_offset_ns(*middle);
  result.at_a_ns =
      sum_ns(middle->send_a_ns, difference_ns(middle->receive_a_ns, middle->send_a_ns) / 2);
  return result;
}

std::optional<AlignedOffset> ClockLine::at(std::int64_t a_ns) const {
  if (!aligned() || a_ns < points.front().at_a_ns || a_ns > points.back().at_a_ns) {
    return std::nullopt;
  }
  const auto after = std::upper_bound(
      points.begin() + 1, points.end() - 1, a_ns,
      [](std::int64_t time, const ClockOffset& point) { return time < point.at_a_ns; });
  const ClockOffset& to = *after;
  const ClockOffset& from = *(after - 1);
  const double part = static_cast<double>(difference_ns(a_ns, from.at_a_ns)) /
                      static_cast<double>(difference_ns(to.at_a_ns, from.at_a_ns));
  const double change = static_cast<double>(difference_ns(to.offset_ns, from.offset_ns)) * part;
  return AlignedOffset{sum_ns(from.offset_ns, std::llround(change)),
                       intervals[static_cast<std::size_t>(after - points.begin() - 1)].bound_ns};
}

ClockLine align_points(std::vector<ClockOffset> points) {
  ClockLine line;
  std::string first_reason;
  for (ClockOffset& point : points) {
    if (point.reason.empty()) {
      line.points.push_back(std::move(point));
      continue;
    }
    ++line.rejected_points;
    if (first_reason.empty()) first_reason = point.reason;
  }
  std::sort(line.points.begin(), line.points.end(),
            [](const auto& x, const auto& y) { return x.at_a_ns < y.at_a_ns; });
  const auto same_time = [](const auto& x, const auto& y) { return x.at_a_ns == y.at_a_ns; };
  if (std::adjacent_find(line.points.begin(), line.points.end(), same_time) != line.points.end()) {
    line.reason = "two points of calibration at the same time";
    return line;
  }
  if (line.points.size() < kMinPoints) {
    line.reason = fmt::format("{} points of calibration, {} are needed{}{}", line.points.size(),
                              kMinPoints, first_reason.empty() ? "" : "; others: ", first_reason);
    return line;
  }
  reject_points(&line);
  measure_intervals(&line);
  if (line.steps > 0) {
    line.reason =
        fmt::format("one of the clocks was set: {} steps, the largest deviation {:.1f} us",
                    line.steps, static_cast<double>(line.residual_ns) / 1000);
  } else if (std::fabs(line.drift) > kMaxDrift) {
    line.reason = fmt::format("the clocks drift apart by {:.0f} us a second: not two oscillators",
                              line.drift * 1e6);
  }
  return line;
}

ClockClosure close_triangle(const ClockLine& ab, const ClockLine& bc, const ClockLine& ac) {
  ClockClosure closure;
  closure.within = true;
  for (const ClockOffset& point : bc.points) {
    // The point is on b's clock; what the offset drifts within an offset's own length is nothing.
    const auto guess = ab.points.empty() ? 0 : ab.points.front().offset_ns;
    const auto near = ab.at(difference_ns(point.at_a_ns, guess));
    const auto at_a = near ? difference_ns(point.at_a_ns, near->offset_ns) : 0;
    const auto first = near ? ab.at(at_a) : std::nullopt;
    const auto direct = near ? ac.at(at_a) : std::nullopt;
    if (!first || !direct || !bc.aligned()) continue;
    ++closure.points;
    const std::int64_t error =
        difference_ns(sum_ns(first->offset_ns, point.offset_ns), direct->offset_ns);
    const std::int64_t bound = first->bound_ns + point.bound_ns + direct->bound_ns;
    closure.within = closure.within && magnitude(error) <= static_cast<std::uint64_t>(bound);
    if (closure.points == 1 || magnitude(error) > magnitude(closure.error_ns)) {
      closure.error_ns = error;
      closure.bound_ns = bound;
    }
  }
  closure.within = closure.within && closure.points > 0;
  return closure;
}

void ExchangeCheck::add(const ClockExchange& exchange, const std::optional<AlignedOffset>& offset,
                        std::int64_t resolution_ns) {
  if (!possible(exchange)) {
    ++contradictions;
    return;
  }
  if (!offset) {
    ++outside;
    return;
  }
  ++exchanges;
  const std::int64_t residual = difference_ns(middle_offset_ns(exchange), offset->offset_ns);
  residuals_ns.push_back(residual);
  const std::int64_t bound = (round_trip_ns(exchange) + 1) / 2 + resolution_ns + offset->bound_ns;
  if (magnitude(residual) > static_cast<std::uint64_t>(bound)) ++contradictions;
}

std::int64_t stamp_resolution_ns(std::span<const ClockExchange> exchanges) {
  std::uint64_t a = 0, b = 0;
  for (const ClockExchange& e : exchanges) {
    const ClockExchange& first = exchanges.front();
    for (const std::int64_t stamp : {e.send_a_ns, e.receive_a_ns}) {
      a = std::gcd(a, magnitude(difference_ns(stamp, first.send_a_ns)));
    }
    for (const std::int64_t stamp : {e.send_b_ns, e.receive_b_ns}) {
      b = std::gcd(b, magnitude(difference_ns(stamp, first.send_b_ns)));
    }
  }
  const std::uint64_t step = std::max(a, b);
  return step == 0 ? kClockResolutionNs : static_cast<std::int64_t>(step);
}

void unwrap_32_bit(std::vector<ClockExchange>* exchanges) {
  const auto follow = [](std::optional<std::int64_t>* last, std::int64_t* stamp) {
    if (*stamp == 0) return;  // not taken
    if (*last) {
      const auto step = static_cast<std::int32_t>(static_cast<std::uint32_t>(*stamp) -
                                                  static_cast<std::uint32_t>(**last));
      *stamp = sum_ns(**last, step);
    }
    *last = *stamp;
  };
  std::optional<std::int64_t> a, b;
  for (ClockExchange& e : *exchanges) {
    follow(&a, &e.send_a_ns);
    follow(&a, &e.receive_a_ns);
    follow(&b, &e.receive_b_ns);
    follow(&b, &e.send_b_ns);
  }
}

}  // namespace tpjitter
