#include "reports/attribution.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "reports/arrivals.h"
#include "reports/gpu_idle.h"
#include "reports/next_experiment.h"
#include "reports/rank_replay.h"
#include "reports/value_counts.h"

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

class Attributor {
 public:
  Attributor(const Run& run, const RunCase& run_case, const ReplayTable& table,
             const Floors& floors, const ReplayObserver& observer, const CaseClocks& clocks)
      : run_(run),
        case_(run_case),
        inject_where_(case_text(run_case, "/inject/where")),
        table_(table),
        floors_(floors),
        observer_(observer),
        replay_(run.ranks.size()),
        arrivals_(clocks, run.ranks.size()),
        idle_(run.ranks.size()) {
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
      while (segment_ + 1 < table_.segments.size() && table_.segments[segment_ + 1].begin <= slot) {
        ++segment_;
      }
      const bool compared =
          table_.has(slot, kCompared) && !table_.has(slot, ReplayTable::kExcluded);
      bool all_launched = compared;
      std::int64_t largest = 0;  // injected delay of this replay
      std::size_t victim = 0;
      for (std::size_t rank = 0; rank < run_.ranks.size(); ++rank) {
        fetch_ahead(run_.ranks[rank].rows, table_.row_of_slot[rank], slot);
        const std::uint32_t number = table_.row_of_slot[rank][slot];
        if (number == kNoRow) {
          sums[rank].usable = false;  // until the next step begins
          idle_.forget(rank);
          first_graph_[rank] = 0;
          continue;
        }
        const PhaseRow& row = run_.ranks[rank].rows[number];
        sums[rank].add(row, table_.has(slot, ReplayTable::kFirstOfStep));
        watch_idle(rank, row, sums[rank], table_.has(slot, ReplayTable::kFirstOfStep));
        all_launched = all_launched && launched(row);
        if (row.injected_ns > largest) {
          largest = row.injected_ns;
          victim = rank;
        }
        if (!compared) continue;
        read_replay(row, sums[rank], floors_, rank, &replay_[rank]);
        arrivals_.read(row, rank);
      }
      idle_.end_of_replay(compared);
      if (!all_launched) continue;
      add_replay(slot);
      if (largest > 0) add_injected(victim, largest);
    }
  }

  void watch_idle(std::size_t rank, const PhaseRow& row, const StageSums& sums, bool step_begins) {
    if (step_begins) first_graph_[rank] = 1;
    // With a delay on the GPU the graph's begin is marked behind the gate where the ranks wait for
    // each other: the GPU is not idle there, and nothing says since when.
    if (!launched(row) || inject_where_ == "gpu") return;
    std::optional<HostStages> host;
    if (first_graph_[rank] != 0 && sums.usable) {
      host = HostStages{sums.inputs, sums.dispatch(row), sums.graph_launch};
    }
    first_graph_[rank] = 0;
    idle_.add(rank, row, host);
  }

  void add_injected(std::size_t victim, std::int64_t delay_ns) {
    if (!result_.injected) result_.injected.emplace().where = inject_where_;
    InjectedDelays& injected = *result_.injected;
    const int rank = static_cast<int>(victim);
    if (injected.replays++ == 0) injected.victim = rank;
    if (injected.victim != rank) injected.victim.reset();
    injected.delay_ns = std::max(injected.delay_ns, delay_ns);
  }

  // Of what every rank has.
  std::int64_t largest(std::optional<std::int64_t> RankReplay::*field) const {
    std::int64_t most = INT64_MIN;
    for (const RankReplay& r : replay_) most = std::max(most, *(r.*field));
    return most;
  }

  void add_replay(std::size_t slot) {
    ++result_.replays;
    ReplayLateness seen{.slot = slot, .laggard = {}, .exposed_ns = {}, .stage = {}};
    const auto all = [&](auto has) { return std::all_of(replay_.begin(), replay_.end(), has); };
    const bool waits = all([](const RankReplay& r) { return r.wait.has_value(); });
    const bool excesses = all([](const RankReplay& r) { return r.excess.has_value(); });
    const auto launch = [](const RankReplay& r) { return r.launch; };
    const auto [first, last] = std::minmax_element(
        replay_.begin(), replay_.end(), [&](auto& a, auto& b) { return a.launch < b.launch; });
    if (excesses) {
      const std::int64_t exposed = largest(&RankReplay::excess);
      exposed_.add(exposed);
      seen.exposed_ns = exposed;
      if (const auto shift = flight_shift(replay_)) shift_.add(*shift);
      hidden_.add(difference_ns(difference_ns(last->launch, first->launch), exposed));
    }
    arrivals_.add(seen.exposed_ns, &replay_);
    if (waits && all([](const RankReplay& r) { return r.transfer.has_value(); })) {
      transfer_.add(largest(&RankReplay::transfer));
    }
    if (all([](const RankReplay& r) { return r.later.has_value(); })) {
      later_.add(largest(&RankReplay::later));
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
    seen.laggard = laggard;
    if (laggard && all([](const RankReplay& r) { return r.stages; })) {
      seen.stage = split_lateness(*laggard, waits);
    }
    if (observer_) observer_(seen);
  }

  // Against the median other rank: one rank, so that its stages add up to its lateness.
  // Returns the stage with the largest part.
  std::size_t split_lateness(std::size_t laggard, bool waits) {
    const bool modelled =
        std::all_of(replay_.begin(), replay_.end(), [](const RankReplay& r) { return r.modelled; });
    const std::size_t median = median_other(replay_, laggard, waits, &others_);
    const RankReplay& late = replay_[laggard];
    const RankReplay& other = replay_[median];

    std::array<std::int64_t, kNumStages> stage{};
    std::int64_t explained = 0;
    for (std::size_t s = 0; s < kStageUnexplained; ++s) {
      stage[s] = difference_ns(late.at[s], other.at[s]);
      explained = sum_ns(explained, stage[s]);
    }
    Lateness lateness{explained, false};
    if (!modelled && waits) {
      // The arrival itself, from each rank's own clock: the difference of what they waited.
      lateness = lateness_of(replay_, median);
      stage[kStageUnexplained] = difference_ns(lateness.ns, explained);
    }
    // Not a stage of the case unless every replay has it.
    if (!modelled) gpu_arrivals_ += static_cast<double>(stage[kStageLaunchToArrival]);
    all_modelled_ = all_modelled_ && modelled;
    LaunchLateness& launch = this_launch();
    ++launch.replays;
    ++split_replays_;
    if (lateness.has_flight_shift) {
      shifted_lateness_.add(lateness.ns);
      ++shifted_replays_.back();
    } else {
      lateness_.add(lateness.ns);
    }
    for (std::size_t s = 0; s < kNumStages; ++s) {
      stage_sum_[s] += static_cast<double>(stage[s]);
      launch.sum_ns[s] += static_cast<double>(stage[s]);
    }
    const auto coupling = static_cast<double>(std::max<std::int64_t>(0, stage[kStageCoupling]));
    late_coupling_ns_ += coupling;
    if (late.preempted) preempted_coupling_ns_ += coupling;
    const auto most = std::max_element(stage.begin(), stage.end());
    return static_cast<std::size_t>(most - stage.begin());
  }

  LaunchLateness& this_launch() {
    const std::int32_t launch = table_.segments[segment_].launch;
    if (result_.launches.empty() || result_.launches.back().launch != launch) {
      result_.launches.push_back({.launch = launch, .replays = 0, .sum_ns = {}});
      shifted_replays_.push_back(0);
    }
    return result_.launches.back();
  }

  void finish() {
    finish_distributions();
    result_.gpu_idle = idle_.idle();
    result_.gpu_idle_dominant = idle_.dominant();
    if (const auto stage = idle_.stage()) {
      constexpr std::size_t kStages[] = {kStageInputs, kStageDispatch, kStageGraphLaunch};
      result_.gpu_idle_stage = kStages[*stage];
    }
    finish_arrivals();
    finish_stages();
    finish_laggards();
    finish_missing();
    finish_class();
  }

  void finish_distributions() {
    result_.flight_shift = shift_.distribution();
    const bool enough = result_.flight_shift.n >= kMinReplays;
    const std::int64_t shift = enough ? *result_.flight_shift.p50 : 0;
    result_.flight_shift_taken_ns = shift;
    result_.exposed = exposed_.distribution_less(shift);
    result_.later_excess = later_.distribution_less(shift);
    // What is not skew is the launch's, or the transfer's.
    result_.hidden = hidden_.distribution_less(difference_ns(0, shift));
    result_.transfer = transfer_.distribution_less(difference_ns(0, shift));
    result_.arrival_residual = arrivals_.residual().distribution_less(shift);
    lateness_.add(shifted_lateness_, shift);
    result_.lateness = lateness_.distribution();
    for (std::size_t launch = 0; launch < shifted_replays_.size(); ++launch) {
      const auto sum = static_cast<double>(shift) * static_cast<double>(shifted_replays_[launch]);
      stage_sum_[kStageUnexplained] -= sum;
      result_.launches[launch].sum_ns[kStageUnexplained] -= sum;
    }
  }

  void finish_arrivals() {
    if (!arrivals_known()) {
      stage_sum_[kStageLaunchToArrival] -= gpu_arrivals_;
      stage_sum_[kStageUnexplained] += gpu_arrivals_;
    }
    result_.arrival_gap = arrivals_.gap().distribution();
    result_.arrival_bound_ns = arrivals_.bound_ns();
    if (result_.arrival_gap.n == 0) {
      result_.arrival_reason = run_.ranks.size() < 2  ? "one rank: nobody to wait for"
                               : result_.replays == 0 ? "no replay was recorded by every rank"
                                                      : arrivals_.reason(result_.replays);
    }
  }

  // Of launch_to_arrival: every compared replay has it.
  bool arrivals_known() const { return all_modelled_ || arrivals_.unaligned() == 0; }

  void finish_stages() {
    if (split_replays_ == 0) return;
    double total = 0;
    for (const double sum : stage_sum_) total += sum;
    cancel_ = total > 0 && std::any_of(stage_sum_.begin(), stage_sum_.end(), [&](double sum) {
                return std::fabs(sum) > kMaxShare * total;
              });
    for (std::size_t s = 0; s < kNumStages; ++s) {
      if (s == kStageLaunchToArrival && !arrivals_known()) continue;
      result_.mean_ns[s] = stage_sum_[s] / static_cast<double>(split_replays_);
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
    } else if (result_.exposed.n == 0) {
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
    if (waits_ > 0 && !arrivals_known() && split_replays_ > 0) {
      missing.push_back(
          run_.info.backend == "host"
              ? "launch_to_arrival: rows are not marked as from the modelled "
                "device, so their clock is not known"
              : fmt::format("launch_to_arrival: GPU clocks are not aligned ({}); what the host "
                            "stages do not explain is under unexplained",
                            arrivals_.reason(result_.replays)));
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
  std::string inject_where_;  // inject.where; empty: the record does not say
  const ReplayTable& table_;
  const Floors& floors_;
  const ReplayObserver& observer_;
  Attribution result_;
  std::vector<RankReplay> replay_;  // of the current slot, by rank
  Arrivals arrivals_;
  std::vector<std::size_t> others_;  // scratch
  std::size_t segment_ = 0;          // of the current slot
  GpuIdle idle_;
  std::vector<char> first_graph_ = std::vector<char>(replay_.size());  // [rank]: not launched yet
  ValueCounts exposed_, hidden_, transfer_, lateness_, later_, shift_;
  ValueCounts shifted_lateness_;                // in which the flight shift is
  std::vector<std::uint64_t> shifted_replays_;  // [result_.launches]: with such a lateness
  std::uint64_t split_replays_ = 0;             // with any
  double gpu_arrivals_ = 0;                     // launch_to_arrival from aligned clocks, ns
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
                      const Floors& floors, const ReplayObserver& observer,
                      const CaseClocks& clocks) {
  return Attributor(run, run_case, table, floors, observer, clocks).compute();
}

}  // namespace tpjitter
