#include "reports/record_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <set>

#include "harness/contract/victims.h"
#include "reports/stamps.h"

namespace tpjitter {
namespace {

constexpr std::size_t kMaxFollowedLaunches = 1u << 16;
constexpr std::int64_t kMaxWarmup = 1 << 30;  // steps

// Without overflow, whatever the stamps hold.
std::uint64_t distance_ns(std::int64_t a, std::int64_t b) {
  const auto x = static_cast<std::uint64_t>(a), y = static_cast<std::uint64_t>(b);
  return a > b ? x - y : y - x;
}

// Every stamp that was taken lies near the first one that was. Without branches: each row of a
// record passes here.
template <std::size_t kStamps>
bool together(const std::array<std::int64_t, kStamps>& stamps) {
  std::int64_t first = 0;
  for (const std::int64_t stamp : stamps) first = first != 0 ? first : stamp;
  std::int64_t least = first, most = first;
  for (const std::int64_t stamp : stamps) {
    const std::int64_t taken = stamp != 0 ? stamp : first;
    least = std::min(least, taken);
    most = std::max(most, taken);
  }
  return distance_ns(least, first) <= kMaxDurationNs && distance_ns(most, first) <= kMaxDurationNs;
}

std::optional<std::int64_t> integer_value(const RunCase& c, const char* table, const char* key) {
  if (!c.values.is_object() || !c.values.contains(table)) return std::nullopt;
  const Json& keys = c.values[table];
  if (!keys.is_object() || !keys.contains(key) || !keys[key].is_number_integer()) {
    return std::nullopt;
  }
  return keys[key].get<std::int64_t>();
}

std::optional<PlannedVictims> planned_victims(const RunCase& c, int world_size) {
  const auto first = integer_value(c, "inject", "victim");
  if (!first || *first < 0) return std::nullopt;
  PlannedVictims planned;
  planned.victims.first = *first < world_size ? static_cast<int>(*first) : -1;  // nobody
  planned.victims.world_size = world_size;
  const Json& inject = c.values["inject"];
  if (!inject.contains("pattern") || inject["pattern"] == "fixed") return planned;
  const auto pattern = inject["pattern"].is_string()
                           ? inject_pattern(inject["pattern"].get<std::string>())
                           : std::nullopt;
  const auto every = integer_value(c, "inject", "every_steps");
  const auto seed = integer_value(c, "inject", "seed");
  const auto warmup = integer_value(c, "sampling", "warmup_steps");
  if (!pattern || !every || *every < 1 || !seed || !warmup || *warmup < 0 || *warmup > kMaxWarmup)
    return std::nullopt;
  planned.victims.pattern = *pattern;
  planned.victims.every_steps = *every;
  planned.victims.seed = static_cast<std::uint64_t>(*seed);
  planned.warmup_steps = *warmup;
  return planned;
}

void add(const char* code, std::string text, std::optional<int> rank, Run* run) {
  run->problems.push_back({code, std::move(text), rank});
}

}  // namespace

std::optional<std::int64_t> first_host_stamp(const PhaseRow& row) {
  for (const std::int64_t stamp :
       {row.accept_seen_ns, row.dispatch_begin_ns, row.dispatch_end_ns, row.launch_begin_ns}) {
    if (stamp != 0) return stamp;
  }
  return std::nullopt;
}

bool stamps_in_range(const PhaseRow& row) {
  const bool modelled = (row.flags & kFlagModelledDevice) != 0;
  for (const std::int64_t duration :
       {row.all_reduce_wait_sum_ns, row.all_reduce_wait_max_ns, row.injected_ns}) {
    if (distance_ns(duration, 0) > kMaxDurationNs) return false;
  }
  return together(std::array{row.coupling_begin_ns, row.accept_seen_ns, row.inputs_begin_ns,
                             row.inputs_end_ns, row.dispatch_begin_ns, row.dispatch_end_ns,
                             row.launch_begin_ns, row.launch_end_ns,
                             modelled ? row.first_all_reduce_own_ns : 0}) &&
         together(std::array{row.gpu_begin_ns, row.gpu_end_ns, row.first_all_reduce_own_ns,
                             row.first_all_reduce_last_seen_ns, row.first_all_reduce_end_ns});
}

bool within_an_hour(std::int64_t a, std::int64_t b) { return distance_ns(a, b) <= kMaxDurationNs; }

bool wrapped_within(const PhaseRow& row) {
  const auto wrapped = [](std::int64_t begin, std::int64_t end) {
    if (begin == 0 || end == 0) return false;
    const std::int64_t difference = difference_ns(end, begin);
    return difference < -(std::int64_t{1} << 31) && difference >= -(std::int64_t{1} << 32);
  };
  return wrapped(row.coupling_begin_ns, row.accept_seen_ns) ||
         wrapped(row.accept_seen_ns, row.inputs_begin_ns) ||
         wrapped(row.inputs_begin_ns, row.inputs_end_ns) ||
         wrapped(row.dispatch_begin_ns, row.dispatch_end_ns) ||
         wrapped(row.dispatch_end_ns, row.launch_begin_ns) ||
         wrapped(row.launch_begin_ns, row.launch_end_ns) ||
         wrapped(row.gpu_begin_ns, row.gpu_end_ns) ||
         wrapped(row.first_all_reduce_own_ns, row.first_all_reduce_last_seen_ns) ||
         wrapped(row.first_all_reduce_own_ns, row.first_all_reduce_end_ns);
}

bool has_negative_counter(const PhaseRow& row) {
  return row.all_reduce_count < 0 || row.context_switches_voluntary < 0 ||
         row.context_switches_involuntary < 0 || row.faults_minor < 0 || row.faults_major < 0;
}

bool lacks_device_stamp(const PhaseRow& row) {
  if (!launched(row) || (row.flags & kFlagNoDeviceStamps) != 0) return false;
  return row.gpu_begin_ns == 0 || row.gpu_end_ns == 0 ||
         (row.first_all_reduce_own_ns != 0 && row.first_all_reduce_end_ns == 0);
}

bool ClockCheck::in_range(const PhaseRow& row) {
  if (!stamps_in_range(row)) return false;
  const auto stamp = first_host_stamp(row);
  const auto launch = static_cast<std::size_t>(row.launch);
  if (!stamp || row.launch < 0 || launch >= kMaxFollowedLaunches) return true;
  if (launch >= starts_->size()) starts_->resize(launch + 1);
  std::optional<std::int64_t>& start = (*starts_)[launch];
  const auto before = row.launch == launch_ && last_ ? last_ : start;
  if (before && distance_ns(*stamp, *before) > kMaxDurationNs) return false;
  if (!start) start = stamp;
  if (row.launch == launch_ && last_ && row.sequence > sequence_ && *stamp < *last_) ++went_back_;
  sequence_ = row.sequence;
  launch_ = row.launch;
  last_ = stamp;
  return true;
}

OwnerCheck::OwnerCheck(const RunInfo& info, int rank)
    : world_size_(info.world_size), rank_(rank), victims_(info.cases.size()) {
  for (std::size_t c = 0; c < victims_.size(); ++c) {
    victims_[c] = planned_victims(info.cases[c], world_size_);
  }
}

void OwnerCheck::see(const PhaseRow& row) {
  const std::int32_t peer = row.first_all_reduce_last_peer;
  if (peer < -1 || peer >= world_size_) ++no_peer_;
  if (world_size_ > 1 && peer == rank_ && wait_ns(row)) ++own_peer_;
  if (row.injected_ns <= 0) return;
  const auto& planned = victims_[static_cast<std::size_t>(row.case_index)];
  if (planned && planned->victims.of_step(row.step + planned->warmup_steps) != rank_) ++injected_;
}

std::vector<RunWarning> OwnerCheck::problems(bool has_last_peer) const {
  std::vector<RunWarning> problems;
  const auto found = [&](std::string text) {
    problems.push_back({"foreign_rank", std::move(text), rank_});
  };
  const std::string file = fmt::format("rank{}.phases.npy", rank_);
  if (has_last_peer && own_peer_ > 0) {
    found(
        fmt::format("{}: {} rows name this rank as its own peer: the file belongs to another rank",
                    file, own_peer_));
  }
  if (has_last_peer && no_peer_ > 0) {
    found(
        fmt::format("{}: {} rows name a peer that the run does not have (world_size {}): the file "
                    "belongs to another run",
                    file, no_peer_, world_size_));
  }
  if (injected_ > 0) {
    found(
        fmt::format("{}: {} rows carry an injected delay, but this rank is not the case's "
                    "inject.victim there: the file belongs to another rank",
                    file, injected_));
  }
  return problems;
}

void check_copies(Run* run) {
  for (std::size_t b = 1; b < run->ranks.size(); ++b) {
    const auto& rows = run->ranks[b].rows;
    if (run->ranks[b].written == 0) continue;
    for (std::size_t a = 0; a < b; ++a) {
      const auto& other = run->ranks[a].rows;
      if (other.size() != rows.size() ||
          std::memcmp(other.data(), rows.data(), rows.size_bytes()) != 0) {
        continue;
      }
      add("copied_rank",
          fmt::format("rank{}.phases.npy and rank{}.phases.npy hold the same rows: one is a copy",
                      a, b),
          static_cast<int>(b), run);
      break;
    }
  }
}

void check_run_info(Run* run) {
  const RunInfo& info = run->info;
  std::set<int> ranks;
  for (const RunRank& r : info.ranks) {
    if (ranks.insert(r.rank).second) continue;
    add("duplicate_rank", fmt::format("run.json lists rank {} twice", r.rank), r.rank, run);
  }
  for (const RunLaunch& launch : info.launches) {
    if (info.status == "complete" && launch.status != "complete") {
      add("incomplete_launch",
          fmt::format("run.json says complete, but its launch {} is {}", launch.index,
                      launch.status),
          std::nullopt, run);
    }
    const auto foreign =
        std::find_if(launch.order.begin(), launch.order.end(), [&](const RunOrderEntry& e) {
          return e.case_index < 0 || e.case_index >= static_cast<int>(info.cases.size());
        });
    if (foreign != launch.order.end()) {
      add("foreign_order",
          fmt::format("run.json: the order of launch {} names case {}, there are {} cases",
                      launch.index, foreign->case_index, info.cases.size()),
          std::nullopt, run);
    }
  }
}

}  // namespace tpjitter
