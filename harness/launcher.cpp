#include "harness/launcher.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "harness/clock.h"
#include "harness/contract/dispatch_profile.h"
#include "harness/contract/error.h"
#include "harness/contract/metadata_paths.h"
#include "harness/doctor.h"
#include "harness/environment.h"
#include "harness/messages.h"
#include "harness/noise.h"
#include "harness/plan.h"
#include "harness/rank_result.h"
#include "harness/recorder.h"
#include "harness/supervisor.h"

namespace tpjitter {
namespace {

// SIGINT, SIGTERM and SIGHUP as a descriptor, for as long as the run lasts.
class SignalFd {
 public:
  SignalFd() {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGHUP);
    sigprocmask(SIG_BLOCK, &set, &before_);
    pipe_before_ = signal(SIGPIPE, SIG_IGN);  // a closed stderr is no reason to stop measuring
    // A limit on file sizes is an error of the write that meets it, named there.
    file_size_before_ = signal(SIGXFSZ, SIG_IGN);
    fd_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  }
  ~SignalFd() {
    close(fd_);
    signal(SIGPIPE, pipe_before_);
    signal(SIGXFSZ, file_size_before_);
    sigprocmask(SIG_SETMASK, &before_, nullptr);
  }
  SignalFd(const SignalFd&) = delete;
  SignalFd& operator=(const SignalFd&) = delete;
  int fd() const { return fd_; }

 private:
  sigset_t before_{};
  sighandler_t pipe_before_ = SIG_DFL, file_size_before_ = SIG_DFL;
  int fd_ = -1;
};

// Progress with time left, on stderr; rewritten in place on a terminal, sparse otherwise.
class Progress {
 public:
  Progress(const std::string& name, std::int64_t total_rows, bool quiet)
      : name_(name), total_(total_rows), quiet_(quiet), terminal_(isatty(2) != 0) {}

  void show(std::int64_t rows) {
    if (quiet_) return;
    const std::int64_t now = now_ns();
    if (now - last_ < (terminal_ ? 200'000'000 : 2'000'000'000)) return;
    last_ = now;
    const double share = total_ > 0 ? static_cast<double>(rows) / static_cast<double>(total_) : 0;
    const double elapsed = static_cast<double>(now - start_) * 1e-9;
    const std::string left =
        share > 0.02 ? fmt::format("{:.0f} s left", elapsed / share - elapsed) : "starting";
    print_message(fmt::format("{}{}: {:3.0f} % of {} rows a rank, {}{}", terminal_ ? "\r" : "",
                              name_, share * 100, total_, left, terminal_ ? "   " : "\n"));
    shown_ = true;
  }
  ~Progress() {
    if (shown_ && terminal_) print_message("\n");
  }

 private:
  std::string name_;
  std::int64_t total_;
  bool quiet_, terminal_, shown_ = false;
  std::int64_t start_ = now_ns();
  std::int64_t last_ = 0;
};

class Launcher {
 public:
  Launcher(Scenario scenario, const RunOptions& options)
      : options_(options), scenario_(std::move(scenario)) {
    if (!std::isfinite(options.deadline_scale)) {
      throw ConfigError("--deadline-scale: not a number; allowed: 0.01..1000");
    }
    plan_ = make_plan(scenario_, find_backend(options.backend), options.case_glob);
  }

  RunOutcome run() {
    const SignalFd signals;
    const RunDirectoryLock lock(options_.out, options_.overwrite);
    describe_run();
    write_run_json(options_.out, info_);
    try {
      recorder_ = std::make_unique<Recorder>(options_.out, plan_.world_size,
                                             plan_.rows_per_launch() * plan_.launches);
      Progress progress(scenario_.name, plan_.rows_per_launch() * plan_.launches, options_.quiet);
      for (int launch = 0; launch < plan_.launches && failure_.empty(); ++launch) {
        run_launch(launch, progress, signals.fd());
      }
      recorder_->finish();
    } catch (const Error& error) {
      if (failure_.empty()) failure_ = error.what();
    }
    note_throttling();
    info_.status = failure_.empty() ? "complete" : "incomplete";
    info_.status_reason = failure_.empty() ? std::nullopt : std::optional(failure_);
    for (RunRank& rank : info_.ranks) {
      if (recorder_ != nullptr) rank.rows = recorder_->rows(rank.rank);
    }
    try {
      write_run_json(options_.out, info_);
    } catch (const Error& error) {  // the earlier one stays: incomplete, with the floors
      failure_ += (failure_.empty() ? "" : "; ") + std::string(error.what());
    }
    return {failure_.empty(), failure_};
  }

 private:
  void describe_run() {
    info_.backend = plan_.backend->name;
    info_.world_size = plan_.world_size;
    info_.scenario_name = scenario_.name;
    info_.scenario_file = scenario_.file;
    info_.summary = scenario_.summary;
    info_.source = scenario_.source;
    info_.overrides = scenario_.overrides;
    info_.command = options_.command;
    info_.seed = plan_.seed;
    info_.status_reason = "the run has not ended, or its launcher was killed";
    for (int i = 0; i < static_cast<int>(plan_.cases.size()); ++i) {
      const PlannedCase& planned = plan_.cases[i];
      RunCase& c = info_.cases.emplace_back();
      c.index = i;
      c.name = planned.name;
      c.path = planned.config.path;
      c.values = case_to_json(planned.config);
      if (!planned.skip_reason.empty()) c.skip_reason = planned.skip_reason;
    }
    for (int k = 0; k < plan_.world_size; ++k) info_.ranks.emplace_back().rank = k;
    info_.environment = read_environment();
    info_.versions = build_versions();
    info_.git_revision = git_revision();
    plan_.backend->describe(info_.environment, info_.versions);
    info_.warnings = environment_warnings(info_.environment, plan_.world_size);
    if (options_.step_pause_ns > 0) {
      info_.environment["step_pause_up_to_ns"] = options_.step_pause_ns;
    }
    if (has_noise()) {
      info_.warnings.push_back({"noise",
                                "cases with noise.kind load the machine on purpose: their figures "
                                "are of a machine that others use too",
                                std::nullopt});
    }
    describe_dispatch();
    for (const std::string& note : plan_.notes) {
      info_.warnings.push_back({"key_without_effect", note, std::nullopt});
    }
    info_.model = plan_.backend->model();
    info_.clock["pairs"] = Json::array();
    info_.clock["points"] = Json::array();
    info_.overhead["ranks"] = Json::array();
    info_.clock["host_gpu_bound_ns"] = nullptr;
    info_.clock["gpu_gpu_bound_ns"] = nullptr;
    if (info_.backend == "host") {
      info_.clock["host_gpu_bound_ns"] = 0;
      info_.clock["gpu_gpu_bound_ns"] = 0;
      info_.clock["reason"] = "the modelled device keeps the host's clock";
    }  // else the report makes them of the points
  }

  // The quota of a cgroup is no harm before it holds somebody back.
  void note_throttling() {
    const auto after = cgroup_throttled_us();
    const Json& before = info_.environment["cgroup_throttled_us"];
    if (!after || !before.is_number_integer()) return;
    const std::int64_t us = *after - before.get<std::int64_t>();
    info_.environment["cgroup_throttled_in_run_us"] = us;
    if (us <= 0) return;
    info_.warnings.push_back(
        {"cgroup_throttled",
         fmt::format("the cgroup's CPU quota held the run back for {} ms: lateness holds these "
                     "times; lift the quota",
                     us / 1000),
         std::nullopt});
  }

  void run_launch(int launch, Progress& progress, int signal_fd) {
    RankPlan rank_plan;
    rank_plan.backend = plan_.backend->name;
    rank_plan.launch = launch;
    rank_plan.order = plan_.order(launch);
    for (const PlannedCase& c : plan_.cases) rank_plan.cases.push_back(c.config);
    for (int k = 0; k < plan_.world_size; ++k) {
      rank_plan.numa_nodes.push_back(plan_.backend->numa_node(k));
    }
    ControlSegment control =
        ControlSegment::create(plan_.world_size, launch, plan_.rows_per_block(),
                               rank_plan_to_text(rank_plan), options_.deadline_scale);
    control.header().step_pause_ns = options_.step_pause_ns;
    give_gpus(control);
    info_.launches.push_back({launch, rank_plan.order, "incomplete"});

    std::vector<std::string> names;
    for (const PlannedCase& c : plan_.cases) names.push_back(c.name);
    const RunInfo before = info_;
    bool controls_written = false;
    std::optional<NoiseProcess> noise;
    if (has_noise()) noise.emplace(control);
    const auto on_tick = [&](std::int64_t rows) {
      progress.show(rows);
      if (noise) noise->check();
      if (controls_written || !all_ranks_left_results(control)) return;
      // Should the launcher be killed, the record still has its floors.
      controls_written = true;
      take_results(control, before, nullptr);
      write_run_json(options_.out, info_);
    };
    LaunchOutcome outcome;
    {
      Supervisor supervisor(control, *recorder_, names, on_tick, signal_fd);
      outcome = supervisor.run();
    }
    take_results(control, before, &outcome);
    if (outcome.failure) {
      failure_ = *outcome.failure;
    } else {
      info_.launches.back().status = "complete";
    }
    write_run_json(options_.out, info_);
  }

  // Each rank its GPU by UUID, of those visible here: a rank may number them otherwise.
  void give_gpus(ControlSegment& control) {
    const auto gpus = info_.environment.find("gpus");
    if (gpus == info_.environment.end()) return;  // the host backend
    for (int k = 0; k < std::min(plan_.world_size, static_cast<int>(gpus->size())); ++k) {
      const std::string uuid = (*gpus)[k].at("uuid").get<std::string>();
      std::strncpy(control.rank(k).uuid, uuid.c_str(), sizeof(RankSlot::uuid) - 1);
      info_.ranks[k].uuid = uuid;  // also of a rank that dies before it can say
    }
  }

  // Whether step.op_overhead_ns reaches the path.
  static bool has_calls(const CaseConfig& config) {
    return metadata_path(config.path).modelled_calls;
  }

  // What step.op_overhead_ns adds: profiles as they were measured, and what that makes of skew.
  void describe_dispatch() {
    std::string cases;
    for (const PlannedCase& c : plan_.cases) {
      const OpOverhead& overhead = c.config.op_overhead_ns;
      const bool modelled = has_calls(c.config) && overhead != OpOverhead(std::int64_t{0});
      if (!c.skip_reason.empty() || !modelled) continue;
      const auto* name = std::get_if<std::string>(&overhead);
      if (name != nullptr) {
        info_.environment["dispatch_profiles"][*name] = built_in_dispatch_profile(*name).summary();
      }
      const std::string what = name != nullptr ? fmt::format("profile {}", *name)
                                               : fmt::format("{} ns", std::get<0>(overhead));
      cases += fmt::format("{}{} ({})", cases.empty() ? "" : ", ", c.name, what);
    }
    if (cases.empty()) return;
    info_.warnings.push_back(
        {"modelled_dispatch",
         fmt::format(
             "step.op_overhead_ns: host time of dispatcher calls is modelled, and so is the "
             "skew that comes from it, in case{} {}",
             cases.find(", ") == std::string::npos ? "" : "s", cases),
         std::nullopt});
  }

  bool has_noise() const {
    return std::any_of(plan_.cases.begin(), plan_.cases.end(), [](const PlannedCase& c) {
      return c.skip_reason.empty() && c.config.noise_kind != "none";
    });
  }

  static bool all_ranks_left_results(ControlSegment& control) {
    for (int k = 0; k < control.world_size(); ++k) {
      if (control.latest_result(k).empty()) return false;
    }
    return true;
  }

  // Adds this launch's results to what was known `before` it. Without an outcome it still runs.
  void take_results(ControlSegment& control, const RunInfo& before, const LaunchOutcome* outcome) {
    info_ = before;
    for (int k = 0; k < plan_.world_size; ++k) {
      const RankSlot& slot = control.rank(k);
      RunRank& rank = info_.ranks[k];
      rank.device = slot.device;
      rank.uuid = slot.uuid;
      if (slot.cpu >= 0) rank.cpu = slot.cpu;
      if (slot.numa_node >= 0) rank.numa_node = slot.numa_node;
      if (outcome != nullptr) {
        rank.status = outcome->ranks[k].status;
        rank.ended_at = outcome->ranks[k].ended_at;
      }
      const std::string text = control.latest_result(k);
      if (text.empty()) continue;
      const RankResult result = RankResult::from_text(text);
      for (const auto& [index, checked] : result.cases) {
        RunCase& c = info_.cases[index];
        c.bit_equal = c.bit_equal.value_or(true) && checked.checks.bit_equal;
        c.steps_checked += checked.checks.steps_checked;
        c.checksum_failures += checked.checks.checksum_failures;
        c.operations = checked.operations;
        const OpOverhead& overhead = plan_.cases[index].config.op_overhead_ns;
        if (const auto* profile = std::get_if<std::string>(&overhead);
            profile != nullptr && has_calls(plan_.cases[index].config)) {
          // Whole: a later build may have another of that name.
          c.operations["dispatch_profile"] = built_in_dispatch_profile(*profile).document;
        }
      }
      info_.controls.insert(info_.controls.end(), result.controls.begin(), result.controls.end());
      for (const Json& pair : result.clock_pairs) info_.clock["pairs"].push_back(pair);
      for (const Json& point : result.clock_points) info_.clock["points"].push_back(point);
      for (const Json& noise : result.noise) info_.environment["noise"].push_back(noise);
      Json overhead = result.overhead;
      overhead["launch"] = control.header().launch;
      overhead["rank"] = k;
      info_.overhead["ranks"].push_back(overhead);
    }
  }

  RunOptions options_;
  Scenario scenario_;
  Plan plan_;
  RunInfo info_;
  std::unique_ptr<Recorder> recorder_;
  std::string failure_;
};

}  // namespace

void check_run(Scenario scenario, const RunOptions& options) {
  Launcher(std::move(scenario), options);
}

RunOutcome run_scenario(Scenario scenario, const RunOptions& options) {
  return Launcher(std::move(scenario), options).run();
}

}  // namespace tpjitter
