#include "reports/next_experiment.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <string_view>

#include "harness/contract/metadata_paths.h"

namespace tpjitter {
namespace {

// Coupling lateness: this part of it in steps with a preempted laggard makes preemption the cause.
constexpr double kPreemptedFrom = 0.5;

// By the stage with the largest share; coupling asks the record further.
constexpr std::array<const char*, kNumStages> kNextByStage = {
    nullptr,
    "compare CPU frequency and NUMA placement of the ranks: one copies its inputs more slowly",
    "run the same case with step.path = \"fused_in_graph\": the rebuild on the host makes the "
    "ranks late",
    "run with fewer nodes per graph (body.nodes_per_layer) and look for host noise between the "
    "rebuild and the launch",
    "look at GPU clocks and other work on the laggard's GPU: its graph starts late after a launch "
    "in time",
    "look at GPU clocks and other work on the laggard's GPU: its host stages do not explain when "
    "it arrives"};

bool more_ranks_than_cpus(const RunInfo& info) {
  return std::any_of(info.warnings.begin(), info.warnings.end(),
                     [](const RunWarning& w) { return w.code == "oversubscribed"; });
}

std::string next_without_waits(const Floors& floors, const Attribution& attribution) {
  if (attribution.replays == 0) return "record steps on every rank";
  // Those that stamp their own waits.
  constexpr std::string_view kOurs[] = {"one_shot_pull", "one_shot_push", "two_shot", "auto"};
  if (std::find(std::begin(kOurs), std::end(kOurs), floors.all_reduce) == std::end(kOurs)) {
    return "run with body.all_reduce = \"one_shot_pull\" to see the waits";
  }
  return "look for why the stamps of the first all-reduce are missing: this kernel takes them";
}

std::string next_for_coupling(const Run& run, double preempted) {
  constexpr const char* kSeen = "the ranks see the accept of the previous step at different times";
  const auto& ranks = run.info.ranks;
  const bool pinned = ranks.size() == run.ranks.size() &&
                      std::all_of(ranks.begin(), ranks.end(), [](auto& r) { return r.cpu; });
  if (!pinned) return fmt::format("pin the ranks' timed threads: {}", kSeen);
  if (preempted >= kPreemptedFrom) {
    return fmt::format(
        "move other work off the ranks' cores, or run fewer ranks than cores: {:.0f}% of the time "
        "lost to coupling fell in steps in which the late rank's pinned thread was preempted",
        100 * preempted);
  }
  if (run.info.backend == "host") {  // where coupling_wait changes nothing
    return fmt::format("compare idle states and frequency of the ranks' cores: {}", kSeen);
  }
  return fmt::format("compare step.coupling_wait = \"mapped_flag\" with \"d2h_event\": {}", kSeen);
}

bool rebuilds_in_graph(const RunCase& run_case) {
  const MetadataPath* path = find_metadata_path(run_case.path);
  return path != nullptr && path->in_graph;
}

std::string next_for_stage(const Run& run, const RunCase& run_case, const LatenessFacts& facts) {
  const std::size_t stage = facts.largest_stage;
  if (stage <= kStageGraphLaunch && more_ranks_than_cpus(run.info)) {
    return fmt::format(
        "run fewer ranks than cores: they take turns, and {} holds the scheduler's "
        "time slices",
        stage_name(stage));
  }
  if (stage == kStageCoupling) return next_for_coupling(run, facts.preempted);
  if (stage == kStageDispatch && rebuilds_in_graph(run_case)) {
    return "look for host noise before the launch: the rebuild is in the graph already";
  }
  if (stage >= kStageLaunchToArrival && run.info.backend == "host") {
    return "look at what the modelled device still ran: its graph starts late after a launch in "
           "time";
  }
  return kNextByStage[stage];
}

// Inside a step too, not only before its first all-reduce.
bool late_at_every_all_reduce(const Attribution& attribution) {
  const auto& later = attribution.later_excess.p50;
  return later && *later > 0 && *later >= *attribution.exposed.p50 / 2;
}

std::string step_value(const RunCase& run_case, const char* key) {
  return case_text(run_case, fmt::format("/step/{}", key));
}

std::string next_between_all_reduces(const RunCase& run_case) {
  if (step_value(run_case, "execution") == "eager") {
    return "run with step.execution = \"graph\": the ranks are late at every all-reduce, not only "
           "the first, because the host launches what runs between them";
  }
  return "look at GPU clocks and other work on the GPUs: the ranks are late at every all-reduce of "
         "the graph, not only the first";
}

std::string next_for_idle_gpu(const RunCase& run_case, const Attribution& attribution) {
  const std::string why = fmt::format(
      "the ranks arrive together, but their GPUs stand idle for {} us between two "
      "steps, while the host is in {}",
      *attribution.gpu_idle.p50 / 1000, stage_name(*attribution.gpu_idle_stage));
  if (attribution.gpu_idle_stage == kStageDispatch && !rebuilds_in_graph(run_case)) {
    return "run the same case with step.path = \"fused_in_graph\": " + why;
  }
  const bool ahead = step_value(run_case, "loop") == "run_ahead";
  return (ahead ? "run with a larger step.run_ahead_depth: "
                : "run with step.loop = \"run_ahead\": ") +
         why;
}

}  // namespace

std::string case_text(const RunCase& run_case, const std::string& pointer) {
  const Json::json_pointer at(pointer);
  const Json& values = run_case.values;
  return values.contains(at) && values[at].is_string() ? values[at].get<std::string>() : "";
}

std::string next_experiment(const Run& run, const RunCase& run_case, const Floors& floors,
                            const Attribution& attribution, const LatenessFacts& facts) {
  if (run.ranks.size() < 2) return "run with world_size 2 or more";
  if (attribution.replays > 0 && attribution.laggard_by.empty()) {
    return "put each rank's own file into the directory and report again";
  }
  if (!attribution.exposed.p50 || !attribution.transfer.p50) {
    return facts.waits ? "record more steps (sampling.steps) with both controls"
                       : next_without_waits(floors, attribution);
  }
  if (attribution.injected) {
    return "run without injected delays (inject.where = \"none\") to see the machine's own "
           "lateness";
  }
  if (attribution.verdict != "transfer") {
    return late_at_every_all_reduce(attribution) ? next_between_all_reduces(run_case)
                                                 : next_for_stage(run, run_case, facts);
  }
  if (attribution.gpu_idle_dominant && attribution.gpu_idle_stage) {
    return next_for_idle_gpu(run_case, attribution);
  }
  // A quiet median says nothing about the tail.
  const auto& p99 = attribution.exposed.p99;
  if (p99 && *p99 / 2 > *attribution.transfer.p50) {
    return fmt::format("{} (the median replay only transfers, but its p99 is lateness)",
                       next_for_stage(run, run_case, facts));
  }
  if (run.info.backend == "host") {  // it has one kernel, and its transfer is a constant
    return "measure on GPUs: the ranks arrive together, and the transfer is the model's";
  }
  return "compare body.all_reduce kernels: the ranks arrive together, the transfer itself costs";
}

}  // namespace tpjitter
