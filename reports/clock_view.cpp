// What the report says of the clocks: each pair over all launches, the triangles, and what the
// run's own all-reduces say of both.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "reports/summary_view.h"

namespace tpjitter {
namespace {

std::string clock_name(const Json& clock) {
  return clock.is_null() ? "host" : "rank " + plain(clock);
}

// The largest, or with `smallest` the smallest, of a figure over launches; none is null.
std::optional<std::int64_t> extreme(const std::vector<const Json*>& pairs, const char* key,
                                    bool smallest = false) {
  std::optional<std::int64_t> result;
  for (const Json* pair : pairs) {
    const auto value = integer_or_none((*pair)[key]);
    if (!value) continue;
    if (!result || (smallest ? *value < *result : *value > *result)) result = value;
  }
  return result;
}

std::uint64_t sum(const std::vector<const Json*>& pairs, const char* key) {
  std::uint64_t total = 0;
  for (const Json* pair : pairs) total += (*pair)[key].get<std::uint64_t>();
  return total;
}

std::string pair_line(const std::vector<const Json*>& pairs) {
  const Json& first = *pairs.front();
  std::string line = fmt::format("{} to {}: ", clock_name(first["a"]), clock_name(first["b"]));
  const auto aligned = std::find_if(pairs.begin(), pairs.end(),
                                    [](const Json* pair) { return (*pair)["reason"].is_null(); });
  if (aligned != pairs.end()) {
    const auto low = extreme(pairs, "drift_ns_per_s", true),
               high = extreme(pairs, "drift_ns_per_s");
    line += fmt::format(
        "offset {} in launch {}, drift {}{} a second, within {} (at the points {}), largest "
        "deviation {}, round trip {}; ",
        format_ns(integer_or_none((**aligned)["offset_ns"])), plain((**aligned)["launch"]),
        format_ns(low), low == high ? "" : " to " + format_ns(high),
        format_ns(extreme(pairs, "bound_ns")), format_ns(extreme(pairs, "point_bound_ns")),
        format_ns(extreme(pairs, "residual_ns")), format_ns(extreme(pairs, "round_trip_ns", true)));
  }
  line += fmt::format("{} points in {} launch{}, {} left out; {} of {} exchanges rejected",
                      sum(pairs, "points"), pairs.size(), pairs.size() == 1 ? "" : "es",
                      sum(pairs, "points_rejected"), sum(pairs, "exchanges_rejected"),
                      sum(pairs, "exchanges"));
  for (const Json* pair : pairs) {
    if ((*pair)["reason"].is_null()) continue;
    line += fmt::format("; launch {} not aligned: {}", plain((*pair)["launch"]),
                        plain((*pair)["reason"]));
  }
  return line;
}

std::string closure_line(const Json& closure) {
  const Json& ranks = closure["ranks"];
  const std::string name = fmt::format("ranks {}, {} and {} in launch {}", plain(ranks[0]),
                                       plain(ranks[1]), plain(ranks[2]), plain(closure["launch"]));
  if (closure["error_ns"].is_null()) return name + ": no common point to close at";
  return fmt::format("{}: {} {} where the bounds allow {}", name,
                     closure["within"] == true ? "close to" : "DO NOT CLOSE, off by",
                     format_ns(integer_or_none(closure["error_ns"])),
                     format_ns(integer_or_none(closure["bound_ns"])));
}

std::string case_line(const Json& c) {
  const Json& own = c["clock"];
  const Json& gap = c["attribution"]["arrival_gap_ns"];
  const Json& residual = c["attribution"]["arrival_residual_ns"];
  std::string line =
      fmt::format("{}: {} of {} replays are exchanges in which two ranks both waited",
                  plain(c["name"]), plain(own["both_waited"]), plain(own["replays"]));
  if (own["no_pair"] != 0) {
    line +=
        fmt::format(" ({} name no pair: a row knows only its last peer)", plain(own["no_pair"]));
  }
  if (own["both_waited"] != 0) {
    line += fmt::format(", flight p50 {}", format_ns(integer_or_none(own["flight_ns"])));
  }
  if (own["compared"] != 0) {
    line += fmt::format(", off the calibration by p50 {}, at most {}, {} beyond both bounds",
                        format_ns(integer_or_none(own["residual_ns"])),
                        format_ns(integer_or_none(own["residual_largest_ns"])),
                        plain(own["contradictions"]));
  }
  if (gap["n"] == 0) return line + "; no arrival gap: " + plain(gap["reasons"]["p50"]);
  line += fmt::format("; arrival gap p50 {} within {}", format_ns(integer_or_none(gap["p50"])),
                      format_ns(integer_or_none(c["attribution"]["arrival_bound_ns"])));
  if (residual["n"] != 0) {
    line += fmt::format(", exposed skew beyond it p50 {}, p99 {}",
                        format_ns(integer_or_none(residual["p50"])),
                        format_ns(integer_or_none(residual["p99"])));
  }
  return line;
}

}  // namespace

std::vector<std::string> clock_lines(const Json& summary) {
  const Json& clock = summary["clock"];
  std::vector<std::string> lines;
  if (clock["pairs"].empty()) return lines;
  std::vector<std::vector<const Json*>> by_pair;
  for (const Json& pair : clock["pairs"]) {
    const auto same = std::find_if(by_pair.begin(), by_pair.end(), [&](const auto& others) {
      return (*others.front())["a"] == pair["a"] && (*others.front())["b"] == pair["b"];
    });
    if (same == by_pair.end()) {
      by_pair.push_back({&pair});
    } else {
      same->push_back(&pair);
    }
  }
  for (const auto& pairs : by_pair) lines.push_back(pair_line(pairs));
  for (const Json& closure : clock["closures"]) lines.push_back(closure_line(closure));
  for (const Json& refused : clock["refused_launches"]) {
    lines.push_back("not compared between GPUs: " + plain(refused));
  }
  if (clock["unreadable_points"] != 0) {
    lines.push_back(fmt::format("{} points of calibration in run.json cannot be read",
                                plain(clock["unreadable_points"])));
  }
  if (summary["world_size"] == 1) return lines;
  for (const Json& c : summary["cases"]) lines.push_back(case_line(c));
  return lines;
}

}  // namespace tpjitter
