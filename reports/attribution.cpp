#include "reports/attribution.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "reports/next_experiment.h"
#include "reports/stamps.h"

namespace tpjitter {
namespace {

constexpr std::array<const char*, kNumStages> kStageNames = {
    "coupling", "inputs", "dispatch", "graph_launch", "launch_to_arrival", "unexplained"};

// Class: exposed / (exposed + transfer), both p50. Above two thirds the ranks wait for each other,
// below one third they move data.
constexpr double kSkewFrom = 2.0 / 3, kTransferTo = 1.0 / 3;
constexpr std::uint64_t kMinReplays = 20;  // for a p50

// Beyond this a share says only that stages cancel: each is many times what is left of their sum.
constexpr double kMaxShare = 10;

// Host time of one rank since the accept of its step, up to the current replay.
struct StageSums {
  std::int64_t accept = 0, inputs = 0, graph_launch = 0;
  bool usable = false;
  bool preempted = false;  // the first row of a step counts the switches of all of it

  void add(const PhaseRow& row, bool first_of_step) {
    if (first_of_step) {
      *this = {row.accept_seen_ns, 0, 0, row.accept_seen_ns != 0,
               row.context_switches_involuntary > 0};
    }
    if (row.inputs_begin_ns != 0 && row.inputs_end_ns != 0) {
      inputs = sum_ns(inputs, difference_ns(row.inputs_end_ns, row.inputs_begin_ns));
    }
    if (!launched(row)) return;
    usable = usable && row.launch_end_ns != 0 && row.dispatch_end_ns != 0;
    graph_launch = sum_ns(graph_launch, difference_ns(row.launch_end_ns, row.dispatch_end_ns));
  }
};

// One rank in one replay.
struct RankReplay {
  std::int64_t launch = 0;  // entry, host clock
  std::array<std::int64_t, kNumStages>
      at{};  // time spent in each stage; coupling: the accept itself
  bool stages = false;
  bool preempted = false;  // in this step
  bool modelled = false;   // arrival is on the host clock
  std::optional<std::int64_t> wait, excess, transfer;
};

RankReplay read_replay(const PhaseRow& row, const StageSums& sums, const Floors& floors,
                       std::size_t rank) {
  RankReplay r;
  r.launch = row.launch_begin_ns;
  r.wait = wait_ns(row);
  r.modelled = (row.flags & kFlagModelledDevice) != 0 && r.wait.has_value();
  if (r.wait) {
    const auto floor = floors.of(row, rank);
    if (floor) r.excess = difference_ns(*r.wait, *floor);
    if (row.first_all_reduce_end_ns != 0) {
      r.transfer = difference_ns(row.first_all_reduce_end_ns, row.first_all_reduce_last_seen_ns);
    }
  }
  r.stages = sums.usable;
  r.preempted = sums.preempted;
  if (!r.stages) return r;
  r.at[kStageCoupling] = sums.accept;
  r.at[kStageInputs] = sums.inputs;
  r.at[kStageGraphLaunch] = sums.graph_launch;
  r.at[kStageDispatch] = difference_ns(difference_ns(row.launch_end_ns, sums.accept),
                                       sum_ns(sums.inputs, sums.graph_launch));
  if (r.modelled) {
    r.at[kStageLaunchToArrival] = difference_ns(row.first_all_reduce_own_ns, row.launch_end_ns);
  }
  return r;
}

// Index of the one rank with the largest value; nullopt when two share it.
template <class Value>
std::optional<std::size_t> only_largest(const std::vector<RankReplay>& ranks, Value value) {
  std::size_t best = 0;
  bool tie = false;
  for (std::size_t i = 1; i < ranks.size(); ++i) {
    if (value(ranks[i]) > value(ranks[best])) {
      best = i;
      tie = false;
    } else if (value(ranks[i]) == value(ranks[best])) {
      tie = true;
    }
  }
  return tie ? std::nullopt : std::optional(best);
}

class Attributor {
 public:
  Attributor(const Run& run, const RunCase& run_case, const ReplayTable& table,
             const Floors& floors)
      : run_(run), case_(run_case), table_(table), floors_(floors), replay_(run.ranks.size()) {
    by_arrival_.assign(run.ranks.size(), 0);
    by_launch_.assign(run.ranks.size(), 0);
  }

  Attribution compute() {
    if (run_.ranks.size() > 1) walk();
    finish();
    return std::move(result_);
  }

 private:
  void walk() {
    std::vector<StageSums> sums(run_.ranks.size());
    constexpr int kCompared = ReplayTable::kAllRanks | ReplayTable::kLaunches;
    for (std::size_t slot = 0; slot < table_.slots(); ++slot) {
      const bool compared =
          table_.has(slot, kCompared) && !table_.has(slot, ReplayTable::kExcluded);
      bool all_launched = compared;
      std::int64_t largest = 0;  // injected delay of this replay
      std::size_t victim = 0;
      for (std::size_t rank = 0; rank < run_.ranks.size(); ++rank) {
        const std::uint32_t number = table_.row_of_slot[rank][slot];
        if (number == kNoRow) {
          sums[rank].usable = false;  // until the next step begins
          continue;
        }
        const PhaseRow& row = run_.ranks[rank].rows[number];
        sums[rank].add(row, table_.has(slot, ReplayTable::kFirstOfStep));
        all_launched = all_launched && launched(row);
        if (row.injected_ns > largest) {
          largest = row.injected_ns;
          victim = rank;
        }
        if (compared) replay_[rank] = read_replay(row, sums[rank], floors_, rank);
      }
      if (!all_launched) continue;
      add_replay();
      if (largest > 0) add_injected(victim, largest);
    }
  }

  void add_injected(std::size_t victim, std::int64_t delay_ns) {
    if (!result_.injected) {
      result_.injected.emplace();
      const Json& values = case_.values;
      if (values.is_object() && values.contains("inject") && values["inject"].is_object() &&
          values["inject"].contains("where") && values["inject"]["where"].is_string()) {
        result_.injected->where = values["inject"]["where"].get<std::string>();
      }
    }
    InjectedDelays& injected = *result_.injected;
    ++injected.replays;
    if (delay_ns > injected.delay_ns) {
      injected.delay_ns = delay_ns;
      injected.victim = static_cast<int>(victim);
    }
  }

  void add_replay() {
    ++result_.replays;
    const auto all = [&](auto has) { return std::all_of(replay_.begin(), replay_.end(), has); };
    const bool waits = all([](const RankReplay& r) { return r.wait.has_value(); });
    const bool excesses = all([](const RankReplay& r) { return r.excess.has_value(); });
    const auto launch = [](const RankReplay& r) { return r.launch; };
    const auto [first, last] = std::minmax_element(
        replay_.begin(), replay_.end(), [&](auto& a, auto& b) { return a.launch < b.launch; });
    if (excesses) {
      std::int64_t exposed = INT64_MIN;
      for (const RankReplay& r : replay_) exposed = std::max(exposed, *r.excess);
      exposed_.push_back(exposed);
      hidden_.push_back(difference_ns(difference_ns(last->launch, first->launch), exposed));
    }
    if (waits && all([](const RankReplay& r) { return r.transfer.has_value(); })) {
      std::int64_t transfer = INT64_MIN;
      for (const RankReplay& r : replay_) transfer = std::max(transfer, *r.transfer);
      transfer_.push_back(transfer);
    }
    const auto launch_laggard = only_largest(replay_, launch);
    if (launch_laggard) ++by_launch_[*launch_laggard];
    std::optional<std::size_t> laggard = launch_laggard;
    if (waits) {
      // The last to arrive has least to wait for.
      laggard =
          only_largest(replay_, [](const RankReplay& r) { return difference_ns(0, *r.wait); });
      ++waits_;
      if (laggard) ++by_arrival_[*laggard];
    }
    if (laggard && all([](const RankReplay& r) { return r.stages; })) {
      split_lateness(*laggard, waits, excesses);
    }
  }

  // Against the median other rank: one rank, so that its stages add up to its lateness.
  void split_lateness(std::size_t laggard, bool waits, bool excesses) {
    const bool modelled =
        std::all_of(replay_.begin(), replay_.end(), [](const RankReplay& r) { return r.modelled; });
    others_.clear();
    for (std::size_t rank = 0; rank < replay_.size(); ++rank) {
      if (rank != laggard) others_.push_back(rank);
    }
    const auto earlier = [&](std::size_t a, std::size_t b) {
      // Who waits longer arrived earlier.
      if (waits) return *replay_[a].wait > *replay_[b].wait;
      return replay_[a].launch < replay_[b].launch;
    };
    const auto middle = others_.begin() + static_cast<std::ptrdiff_t>((others_.size() - 1) / 2);
    std::nth_element(others_.begin(), middle, others_.end(), earlier);
    const RankReplay& late = replay_[laggard];
    const RankReplay& other = replay_[*middle];

    std::array<std::int64_t, kNumStages> stage{};
    std::int64_t explained = 0;
    for (std::size_t s = 0; s < kStageUnexplained; ++s) {
      stage[s] = difference_ns(late.at[s], other.at[s]);
      explained = sum_ns(explained, stage[s]);
    }
    std::int64_t lateness = explained;
    if (!modelled && waits) {
      // The arrival itself, from each rank's own clock: the difference of what they waited.
      lateness = excesses ? difference_ns(*other.excess, *late.excess)
                          : difference_ns(*other.wait, *late.wait);
      stage[kStageUnexplained] = difference_ns(lateness, explained);
    }
    lateness_.push_back(lateness);
    all_modelled_ = all_modelled_ && modelled;
    for (std::size_t s = 0; s < kNumStages; ++s) stage_sum_[s] += static_cast<double>(stage[s]);
    const auto coupling = static_cast<double>(std::max<std::int64_t>(0, stage[kStageCoupling]));
    late_coupling_ns_ += coupling;
    if (late.preempted) preempted_coupling_ns_ += coupling;
  }

  void finish() {
    result_.exposed = describe(exposed_);
    result_.hidden = describe(hidden_);
    result_.transfer = describe(transfer_);
    result_.lateness = describe(lateness_);
    finish_stages();
    finish_laggards();
    finish_missing();
    finish_class();
  }

  void finish_stages() {
    if (lateness_.empty()) return;
    double total = 0;
    for (const double sum : stage_sum_) total += sum;
    cancel_ = total > 0 && std::any_of(stage_sum_.begin(), stage_sum_.end(), [&](double sum) {
                return std::fabs(sum) > kMaxShare * total;
              });
    for (std::size_t s = 0; s < kNumStages; ++s) {
      if (s == kStageLaunchToArrival && !all_modelled_) continue;
      result_.mean_ns[s] = stage_sum_[s] / static_cast<double>(lateness_.size());
      if (total > 0 && !cancel_) result_.share[s] = stage_sum_[s] / total;
    }
  }

  void finish_laggards() {
    result_.laggard_share.resize(run_.ranks.size());
    if (files_mixed()) result_.injected.reset();  // on which rank is not known either
    if (result_.replays == 0 || files_mixed()) return;
    // One definition for the whole case: by arrival only if all compared replays have waits.
    const bool arrival = waits_ == result_.replays;
    result_.laggard_by = arrival ? "arrival" : "launch";
    std::uint64_t named = 0;
    for (std::size_t rank = 0; rank < run_.ranks.size(); ++rank) {
      const std::uint64_t times = arrival ? by_arrival_[rank] : by_launch_[rank];
      named += times;
      result_.laggard_share[rank] =
          static_cast<double>(times) / static_cast<double>(result_.replays);
    }
    result_.no_laggard = result_.replays - named;
  }

  // Which file is whose is not known, so nobody is blamed.
  bool files_mixed() const {
    return std::any_of(run_.problems.begin(), run_.problems.end(), [](const RunWarning& p) {
      return p.code == "foreign_rank" || p.code == "copied_rank";
    });
  }

  void finish_missing() {
    auto& missing = result_.missing_evidence;
    if (run_.ranks.size() < 2) {
      missing.push_back("one rank: nobody to wait for");
      return;
    }
    if (result_.replays < kMinReplays) {
      missing.push_back(
          fmt::format("{} replays with every rank; {} are needed", result_.replays, kMinReplays));
    }
    if (result_.replays == 0) return;
    if (files_mixed()) {
      missing.push_back(
          "which rank is late: a rank file belongs to another rank (see the warnings)");
    }
    if (waits_ == 0) {
      missing.push_back("waits of the first all-reduce (nccl, no all-reduce, or stamps lost)");
    } else if (exposed_.empty()) {
      missing.push_back("zero-skew controls of this all-reduce: no floor, so no excess wait");
    }
    if (waits_ > 0) {
      for (std::size_t rank = 0; rank < run_.ranks.size(); ++rank) {
        // No such row at all: nothing needed a local floor.
        if (floors_.local[rank] || floors_.local_rows[rank] == 0) continue;
        missing.push_back(
            fmt::format("local floor of rank {}: {} rows did not wait, {} are needed; "
                        "the flight floor stands in",
                        rank, floors_.local_rows[rank], kMinLocalFloorRows));
      }
    }
    if (waits_ > 0 && !all_modelled_ && !lateness_.empty()) {
      missing.push_back(run_.info.backend == "host"
                            ? "launch_to_arrival: rows are not marked as from the modelled "
                              "device, so their clock is not known"
                            : "launch_to_arrival: GPU clocks are not aligned to the host; what the "
                              "host stages do not explain is under unexplained");
    }
    if (cancel_) {
      missing.push_back(
          "shares of the stages: they cancel, and the lateness that is left is less "
          "than a tenth of one of them");
    }
  }

  void finish_class() {
    const auto& exposed = result_.exposed.p50;
    const auto& transfer = result_.transfer.p50;
    if (run_.ranks.size() > 1 && exposed && transfer) {
      const double wait = std::max(0.0, static_cast<double>(*exposed));
      const double move = std::max(1.0, static_cast<double>(*transfer));
      const double part = wait / (wait + move);
      result_.verdict = part >= kSkewFrom     ? "arrival_skew"
                        : part <= kTransferTo ? "transfer"
                                              : "mixed";
    }
    result_.next_experiment = next_experiment(run_, case_, floors_, result_, facts());
  }

  LatenessFacts facts() const {
    const auto largest = std::max_element(stage_sum_.begin(), stage_sum_.end());
    return {static_cast<std::size_t>(largest - stage_sum_.begin()), waits_ > 0,
            late_coupling_ns_ > 0 ? preempted_coupling_ns_ / late_coupling_ns_ : 0.0};
  }

  const Run& run_;
  const RunCase& case_;
  const ReplayTable& table_;
  const Floors& floors_;
  Attribution result_;
  std::vector<RankReplay> replay_;   // of the current slot, by rank
  std::vector<std::size_t> others_;  // scratch
  std::vector<std::int64_t> exposed_, hidden_, transfer_, lateness_;
  std::array<double, kNumStages> stage_sum_{};
  double late_coupling_ns_ = 0, preempted_coupling_ns_ = 0;  // without what coupling made up
  std::vector<std::uint64_t> by_arrival_, by_launch_;        // [rank]
  std::uint64_t waits_ = 0;  // replays in which every rank has a wait
  bool all_modelled_ = true;
  bool cancel_ = false;  // stages are many times their sum
};

}  // namespace

const char* stage_name(std::size_t stage) { return kStageNames[stage]; }

Attribution attribute(const Run& run, const RunCase& run_case, const ReplayTable& table,
                      const Floors& floors) {
  return Attributor(run, run_case, table, floors).compute();
}

}  // namespace tpjitter
