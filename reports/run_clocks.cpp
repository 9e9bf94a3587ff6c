#include "reports/run_clocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "reports/quantiles.h"
#include "reports/record_consistency.h"
#include "reports/stamps.h"

namespace tpjitter {
namespace {

constexpr int kMaxLaunches = 4096;             // taken from points alone
constexpr std::size_t kMaxExamined = 200'000;  // replays of a case: enough to check clocks with

std::optional<std::int64_t> integer(const Json& object, const char* key) {
  if (!object.contains(key) || !object[key].is_number_integer()) return std::nullopt;
  return object[key].get<std::int64_t>();
}

// "a" or "b" of a point: a rank, or null for the host.
std::optional<int> clock_of(const Json& point, const char* key, int world_size) {
  if (!point.contains(key)) return std::nullopt;
  if (point[key].is_null()) return kHostClock;
  const auto rank = integer(point, key);
  if (!rank || *rank < 0 || *rank >= world_size) return std::nullopt;
  return static_cast<int>(*rank);
}

std::optional<std::vector<ClockExchange>> exchanges_of(const Json& point) {
  const std::int64_t base_a = integer(point, "base_a_ns").value_or(0);
  const std::int64_t base_b = integer(point, "base_b_ns").value_or(0);
  if (!point.contains("exchanges_ns") || !point["exchanges_ns"].is_array()) return std::nullopt;
  const Json& stamps = point["exchanges_ns"];
  const bool whole = stamps.size() % 4 == 0 &&
                     std::all_of(stamps.begin(), stamps.end(),
                                 [](const Json& value) { return value.is_number_integer(); });
  if (!whole) return std::nullopt;
  std::vector<ClockExchange> out;
  for (std::size_t i = 0; i < stamps.size(); i += 4) {
    const auto stamp = [&](std::size_t k, std::int64_t base) {
      return sum_ns(stamps[i + k].get<std::int64_t>(), base);
    };
    out.push_back({stamp(0, base_a), stamp(1, base_b), stamp(2, base_b), stamp(3, base_a)});
  }
  return out;
}

// What the record holds of one pair in one launch.
struct Samples {
  std::vector<ClockExchange> exchanges;  // of all points
  std::vector<std::size_t> ends;         // of each point
  std::uint64_t made = 0;
  bool wraps = false;  // stamps of a 32-bit counter
};

ClockPair align_pair(int launch, int a, int b, Samples samples) {
  ClockPair pair{.launch = launch, .a = a, .b = b, .made = samples.made, .line = {}};
  if (samples.wraps) unwrap_32_bit(&samples.exchanges);
  // One damaged stamp makes the step look like 1 ns; no GPU's is below 32.
  pair.resolution_ns = std::max(kClockResolutionNs, stamp_resolution_ns(samples.exchanges));
  std::vector<ClockOffset> points;
  std::size_t begin = 0;
  for (const std::size_t end : samples.ends) {
    const std::span<const ClockExchange> all(samples.exchanges);
    points.push_back(estimate_offset(all.subspan(begin, end - begin), pair.resolution_ns));
    begin = end;
    const ClockOffset& point = points.back();
    pair.rejected += point.rejected;
    if (!point.reason.empty()) continue;
    pair.point_bound_ns = std::max(pair.point_bound_ns, point.bound_ns);
    if (pair.round_trip_ns == 0 || point.round_trip_ns < pair.round_trip_ns) {
      pair.round_trip_ns = point.round_trip_ns;
    }
  }
  pair.line = align_points(std::move(points));
  return pair;
}

}  // namespace

RunClocks::RunClocks(const RunInfo& info) : host_clock_(keeps_host_clock(info)) {
  if (host_clock_) return;
  read_pairs(info);
  if (pairs_.empty()) {
    reason_ = unreadable_ > 0 ? fmt::format("{} points of calibration cannot be read", unreadable_)
                              : "no calibration in run.json";
    return;
  }
  launches_.resize(
      std::max(info.launches.size(), static_cast<std::size_t>(pairs_.back().launch) + 1));
  bool any = false;
  for (int launch = 0; launch < static_cast<int>(launches_.size()); ++launch) {
    check_launch(launch, info.world_size);
    any = any || launches_[static_cast<std::size_t>(launch)].reason.empty();
  }
  if (!any) reason_ = launches_.front().reason;
}

void RunClocks::read_pairs(const RunInfo& info) {
  if (!info.clock.is_object() || !info.clock.contains("points")) return;
  const Json& points = info.clock["points"];
  std::map<std::tuple<int, int, int>, Samples> pairs;
  if (!points.is_array()) {
    ++unreadable_;
    return;
  }
  for (const Json& point : points) {
    if (!point.is_object()) {
      ++unreadable_;
      continue;
    }
    const auto launch = integer(point, "launch");
    const auto a = clock_of(point, "a", info.world_size);
    const auto b = clock_of(point, "b", info.world_size);
    const auto exchanges = exchanges_of(point);
    if (!launch || *launch < 0 || *launch >= kMaxLaunches || !a || !b || *a == *b || !exchanges) {
      ++unreadable_;
      continue;
    }
    Samples& samples = pairs[{static_cast<int>(*launch), *a, *b}];
    samples.exchanges.insert(samples.exchanges.end(), exchanges->begin(), exchanges->end());
    samples.ends.push_back(samples.exchanges.size());
    samples.made += static_cast<std::uint64_t>(std::max<std::int64_t>(
        integer(point, "made").value_or(0), static_cast<std::int64_t>(exchanges->size())));
    samples.wraps = samples.wraps || integer(point, "stamp_bits") == 32;
  }
  for (auto& [key, samples] : pairs) {
    const auto& [launch, a, b] = key;
    pairs_.push_back(align_pair(launch, a, b, std::move(samples)));
  }
}

const ClockPair* RunClocks::find(int launch, int a, int b) const {
  const auto found = std::find_if(pairs_.begin(), pairs_.end(), [&](const ClockPair& p) {
    return p.launch == launch && p.a == a && p.b == b;
  });
  return found == pairs_.end() ? nullptr : &*found;
}

// A launch is compared as a whole or not at all.
void RunClocks::check_launch(int launch, int world_size) {
  Launch& out = launches_[static_cast<std::size_t>(launch)];
  out.star.assign(static_cast<std::size_t>(world_size), nullptr);
  const auto refuse = [&](const std::string& why) {
    if (out.reason.empty()) out.reason = fmt::format("launch {}: {}", launch, why);
  };
  for (int rank = 1; rank < world_size; ++rank) {
    const ClockPair* pair = find(launch, 0, rank);
    if (pair == nullptr) {
      refuse(fmt::format("no calibration of rank {} against rank 0", rank));
    } else if (!pair->line.aligned()) {
      refuse(fmt::format("rank {} against rank 0: {}", rank, pair->line.reason));
    } else {
      out.star[static_cast<std::size_t>(rank)] = &pair->line;
    }
  }
  for (int rank = 1; rank + 1 < world_size; ++rank) {
    const ClockPair* closing = find(launch, rank, rank + 1);
    const ClockLine* to_first = out.star[static_cast<std::size_t>(rank)];
    const ClockLine* to_second = out.star[static_cast<std::size_t>(rank) + 1];
    if (to_first == nullptr || to_second == nullptr) continue;  // refused by the star
    if (closing == nullptr) {
      refuse(
          fmt::format("no calibration closes the triangle of ranks 0, {} and {}", rank, rank + 1));
      continue;
    }
    if (!closing->line.aligned()) {
      refuse(fmt::format("rank {} against rank {}: {}", rank + 1, rank, closing->line.reason));
      continue;
    }
    ClockClosure closure = close_triangle(*to_first, closing->line, *to_second);
    closure.a = 0;
    closure.b = rank;
    closure.c = rank + 1;
    closures_.push_back({launch, closure});
    if (closure.points == 0) {
      refuse(fmt::format("the calibrations of ranks 0, {} and {} have no time in common", rank,
                         rank + 1));
      continue;
    }
    if (closure.within) continue;
    refuse(
        fmt::format("the clocks of ranks 0, {} and {} do not close: {:.1f} us where the bounds "
                    "allow {:.1f}",
                    rank, rank + 1, static_cast<double>(closure.error_ns) / 1000,
                    static_cast<double>(closure.bound_ns) / 1000));
  }
}

std::vector<std::string> RunClocks::refused_launches() const {
  std::vector<std::string> reasons;
  for (const Launch& launch : launches_) {
    if (!launch.reason.empty()) reasons.push_back(launch.reason);
  }
  return reasons;
}

std::optional<RunClocks::Time> RunClocks::on_rank0(int launch, int rank,
                                                   std::int64_t stamp_ns) const {
  if (host_clock_) return Time{stamp_ns, 0};
  if (launch < 0 || launch >= static_cast<int>(launches_.size()) || rank < 0) return std::nullopt;
  const Launch& l = launches_[static_cast<std::size_t>(launch)];
  if (!l.reason.empty() || rank >= static_cast<int>(l.star.size())) return std::nullopt;
  if (rank == 0) return Time{stamp_ns, 0};
  const ClockLine& line = *l.star[static_cast<std::size_t>(rank)];
  // The line is over rank 0's time: with any offset of the launch first, then with that time's own.
  const auto near = line.at(difference_ns(stamp_ns, line.points.front().offset_ns));
  if (!near) return std::nullopt;
  const auto exact = line.at(difference_ns(stamp_ns, near->offset_ns));
  if (!exact) return std::nullopt;
  return Time{difference_ns(stamp_ns, exact->offset_ns), exact->bound_ns};
}

std::optional<AlignedOffset> RunClocks::between(int launch, int a, int b, std::int64_t a_ns) const {
  const auto time = on_rank0(launch, a, a_ns);
  if (!time) return std::nullopt;
  if (host_clock_ || a == b) return AlignedOffset{};
  const ClockLine* line =
      launches_[static_cast<std::size_t>(launch)].star[static_cast<std::size_t>(b)];
  const auto to_b = b == 0 ? std::optional(AlignedOffset{}) : line->at(time->time_ns);
  if (!to_b) return std::nullopt;
  const std::int64_t of_a = difference_ns(a_ns, time->time_ns);
  return AlignedOffset{difference_ns(to_b->offset_ns, of_a), to_b->bound_ns + time->bound_ns};
}

std::int64_t RunClocks::resolution_ns() const {
  std::int64_t coarsest = kClockResolutionNs;
  for (const ClockPair& pair : pairs_) coarsest = std::max(coarsest, pair.resolution_ns);
  return coarsest;
}

std::optional<std::int64_t> RunClocks::largest_bound(bool host) const {
  std::optional<std::int64_t> largest;
  for (const ClockPair& pair : pairs_) {
    const bool of_host = pair.a == kHostClock || pair.b == kHostClock;
    if (of_host != host || !pair.line.aligned()) continue;
    if (!host && !launches_[static_cast<std::size_t>(pair.launch)].reason.empty()) continue;
    largest = std::max(largest.value_or(0), pair.line.bound_ns);
  }
  return largest;
}

std::optional<std::int64_t> RunClocks::gpu_gpu_bound_ns() const {
  if (host_clock_) return 0;
  return largest_bound(false);
}

std::optional<std::int64_t> RunClocks::host_gpu_bound_ns() const {
  if (host_clock_) return 0;
  return largest_bound(true);
}

OwnExchanges own_exchanges(const Run& run, const ReplayTable& table, const RunClocks& clocks) {
  OwnExchanges own;
  constexpr int kCompared = ReplayTable::kAllRanks | ReplayTable::kLaunches;
  std::vector<const PhaseRow*> rows(run.ranks.size());
  const std::int64_t resolution_ns = clocks.resolution_ns();
  std::size_t stride = table.slots() / kMaxExamined + 1;
  while (std::gcd(stride, std::size_t{30}) != 1) ++stride;  // meets every phase of a step
  for (std::size_t slot = 0; slot < table.slots(); slot += stride) {
    if (run.ranks.size() < 2 || clocks.host_clock()) break;  // a modelled flight is a constant
    if (!table.has(slot, kCompared) || table.has(slot, ReplayTable::kExcluded)) continue;
    for (std::size_t rank = 0; rank < rows.size(); ++rank) {
      rows[rank] = &run.ranks[rank].rows[table.row_of_slot[rank][slot]];
    }
    if (!std::all_of(rows.begin(), rows.end(), [](auto* row) { return wait_ns(*row); })) continue;
    ++own.replays;
    bool paired = false;
    for (int p = 0; p < static_cast<int>(rows.size()); ++p) {
      const PhaseRow& at_p = *rows[static_cast<std::size_t>(p)];
      const int q = at_p.first_all_reduce_last_peer;
      if (q <= p || q >= static_cast<int>(rows.size())) continue;
      const PhaseRow& at_q = *rows[static_cast<std::size_t>(q)];
      if (at_q.first_all_reduce_last_peer != p) continue;
      paired = true;
      if ((at_p.flags & at_q.flags & kFlagWaited) == 0) {
        ++own.one_there;
        continue;
      }
      ++own.both_waited;
      const ClockExchange e = {at_p.first_all_reduce_own_ns, at_q.first_all_reduce_last_seen_ns,
                               at_q.first_all_reduce_own_ns, at_p.first_all_reduce_last_seen_ns};
      own.flights_ns.push_back(round_trip_ns(e) / 2);
      if (!clocks.reason().empty()) continue;
      own.check.add(e, clocks.between(at_p.launch, p, q, at_p.first_all_reduce_own_ns),
                    resolution_ns);
    }
    if (!paired) ++own.no_pair;
  }
  return own;
}

CaseClocks case_clocks(const RunClocks& clocks, const OwnExchanges& own) {
  if (!clocks.reason().empty()) return {nullptr, clocks.reason()};
  if (own.check.consistent()) return {&clocks, ""};
  return {nullptr, fmt::format("the run's own all-reduces contradict the calibration in {} of {} "
                               "exchanges",
                               own.check.contradictions, own.check.exchanges)};
}

}  // namespace tpjitter
