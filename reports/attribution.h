// Which rank is late, in which stage, and what it costs the others. Per replay the laggard's
// lateness against the median of the other ranks is split over the stages of its host timeline
// since the accept of the previous step, where all ranks last met. All differences are taken
// between host stamps (one clock for all ranks of a host) or between waits on a rank's own GPU
// clock, so that no clock offset enters; launch_to_arrival alone, and the arrival gap, compare
// GPUs, over clocks that are aligned.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "reports/floors.h"
#include "reports/quantiles.h"
#include "reports/replays.h"
#include "reports/run_clocks.h"

namespace tpjitter {

// Stages are contiguous: a delay between two of them counts to the one that it holds up.
enum LatenessStage : std::size_t {
  kStageCoupling = 0,         // until the host has seen the previous step's accept
  kStageInputs = 1,           // input copies
  kStageDispatch = 2,         // metadata rebuilds, and what comes before them besides the inputs
  kStageGraphLaunch = 3,      // end of the rebuild to the return of the graph launch
  kStageLaunchToArrival = 4,  // return of the graph launch to the release of the first all-reduce
  kStageUnexplained = 5,      // lateness seen in the waits that no host stage explains
};
inline constexpr std::size_t kNumStages = 6;
const char* stage_name(std::size_t stage);

// Delays that the case asked for: then they, not the machine, make the ranks late.
struct InjectedDelays {
  std::string where;          // inject.where, "" if the record does not say
  std::optional<int> victim;  // none: several ranks in turn
  std::int64_t delay_ns = 0;  // the largest
  std::uint64_t replays = 0;  // with such a delay, of the compared ones
};

// One compared replay, as it is attributed.
struct ReplayLateness {
  std::size_t slot = 0;                    // of the replay table
  std::optional<std::size_t> laggard;      // rank; none: a tie
  std::optional<std::int64_t> exposed_ns;  // largest excess wait over ranks, flight shift included
  std::optional<std::size_t> stage;        // that holds most of the lateness, shift included
};
using ReplayObserver = std::function<void(const ReplayLateness&)>;

// One process launch: its replays whose lateness could be split, and their sums by stage.
struct LaunchLateness {
  std::int32_t launch = 0;
  std::uint64_t replays = 0;
  std::array<double, kNumStages> sum_ns{};
};

struct Attribution {
  std::string verdict = "inconclusive";  // class: transfer | arrival_skew | mixed | inconclusive
  // [stage]: its part of the summed lateness; the parts add up to 1, a negative one made up time.
  std::array<std::optional<double>, kNumStages> share;
  std::array<std::optional<double>, kNumStages> mean_ns;  // per replay
  std::vector<LaunchLateness> launches;                   // those with such a replay, in order
  Distribution exposed;   // largest excess wait over ranks, per replay
  Distribution hidden;    // launch skew - exposed; negative: made by the GPU
  Distribution transfer;  // largest transfer over ranks
  Distribution lateness;  // of the laggard against the other ranks' median
  // What the flight took over the control's floor, where two ranks both polled: no skew makes it.
  // It is taken out of `exposed`, `later_excess` and `lateness` and counts as transfer.
  Distribution flight_shift;
  std::int64_t flight_shift_taken_ns = 0;  // out of each replay: its p50, 0 of too few replays
  // Mean excess wait of the other all-reduces of the graph, the largest over ranks.
  Distribution later_excess;
  // Between two steps, the longest over ranks. None with a delay on the GPU, whose gate comes before
  // the graph's begin.
  Distribution gpu_idle;
  std::optional<std::size_t> gpu_idle_stage;  // LatenessStage that fills it in most steps
  bool gpu_idle_dominant = false;             // a quarter of the step or more, in most steps
  // Last minus first arrival on aligned clocks, per replay: a cross-check that no wait enters.
  Distribution arrival_gap;
  Distribution arrival_residual;                 // exposed - arrival gap
  std::optional<std::int64_t> arrival_bound_ns;  // of a gap, the largest
  std::string arrival_reason;                    // why there is no gap
  std::vector<std::string> missing_evidence;
  std::string next_experiment;
  // "arrival" (smallest wait) | "launch" (largest offset) | "": no replay, or files are mixed up
  std::string laggard_by;
  std::vector<std::optional<double>> laggard_share;  // [rank], 0..1 of all compared replays
  std::uint64_t replays = 0;                         // compared: every rank launched, not excluded
  std::uint64_t no_laggard = 0;                      // of these: ties
  std::optional<InjectedDelays> injected;
};

// `observer`, if any, sees each compared replay in order. Without `clocks` nothing that compares
// stamps of two GPUs is given.
Attribution attribute(const Run& run, const RunCase& run_case, const ReplayTable& table,
                      const Floors& floors, const ReplayObserver& observer = {},
                      const CaseClocks& clocks = {});

}  // namespace tpjitter
