#include "harness/rank.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "harness/affinity.h"
#include "harness/backend.h"
#include "harness/contract/error.h"
#include "harness/control.h"
#include "harness/gpu_lock.h"
#include "harness/noise.h"
#include "harness/overhead.h"
#include "harness/plan.h"
#include "harness/rank_result.h"
#include "harness/spawn.h"

namespace tpjitter {
namespace {

// Points of clock calibration of a launch, besides the first and the last: enough to follow a drift,
// few enough to read run.json.
constexpr std::int64_t kMaxPointsBetween = 30;
constexpr int kPointsPerHostPoint = 8;

std::int64_t clock_ns(clockid_t id) {
  timespec t;
  clock_gettime(id, &t);
  return t.tv_sec * std::int64_t{1'000'000'000} + t.tv_nsec;
}

Json clock_pair(int rank, const char* when) {
  return {{"rank", rank},
          {"when", when},
          {"monotonic_raw_ns", now_ns()},
          {"monotonic_ns", clock_ns(CLOCK_MONOTONIC)},
          {"realtime_ns", clock_ns(CLOCK_REALTIME)}};
}

class RankProcess {
 public:
  RankProcess(ControlSegment& control, int rank)
      : control_(control),
        slot_(control.rank(rank)),
        rank_(rank),
        plan_(rank_plan_from_text(control.plan())),
        deadlines_(control.deadlines()) {
    context_ = {rank, control.world_size(), &control};
    const std::int64_t blocks = blocks_of_launch();
    blocks_per_point_ =
        std::max<std::int64_t>(1, (blocks + kMaxPointsBetween - 1) / kMaxPointsBetween);
    points_behind_blocks_ = 2 * blocks <= kMaxPointsBetween;
  }

  void run() {
    stage(Stage::kPreparing);
    const BackendEntry& backend = find_backend(plan_.backend);
    if (const auto node = plan_.numa_nodes.at(rank_)) bind_to_numa_node(*node);
    lock_gpu(slot_.uuid);  // before anything is made on the GPU; held until the process ends
    backend_ = backend.make(context_);
    std::strncpy(slot_.device, backend_->device_name().c_str(), sizeof(slot_.device) - 1);
    std::strncpy(slot_.uuid, backend_->device_uuid().c_str(), sizeof(slot_.uuid) - 1);
    pin();
    const Overhead overhead = measure_overhead();
    result_.overhead = {{"stamp_ns", overhead.stamp_ns},
                        {"row_ns", overhead.row_ns},
                        {"recording_ns", overhead.recording_ns}};
    barrier("start");
    result_.clock_pairs.push_back(clock_pair(rank_, "before"));
    calibrate("before");

    run_controls("before");
    leave_result();
    for (const RunOrderEntry& entry : plan_.order) run_entry(entry);
    run_controls("after");

    calibrate("after");
    result_.clock_pairs.push_back(clock_pair(rank_, "after"));
    barrier("end");
    leave_result();
    stage(Stage::kFinished);
  }

 private:
  void stage(Stage s) {
    slot_.stage.store(static_cast<std::int32_t>(s), std::memory_order_relaxed);
    slot_.progress.fetch_add(1, std::memory_order_relaxed);
  }
  void barrier(const char* what) { control_.barrier(rank_, deadlines_.prepare_ns, what); }

  void pin() {
    const std::vector<int> cpus = allowed_cpus();
    const auto core = plan_.pin ? core_for_rank(cpus, rank_, control_.world_size()) : std::nullopt;
    if (core && pin_timed_thread(*core)) {
      slot_.cpu = *core;
      slot_.numa_node = numa_node_of_cpu(*core).value_or(-1);
    }
  }

  // Whether there was anything to calibrate. Every rank calls it at the same places.
  bool calibrate(const char* when) {
    stage(Stage::kControls);
    // The host's clock is needed to draw only: fewer points.
    const bool with_host =
        std::strcmp(when, "between") != 0 || points_between_++ % kPointsPerHostPoint == 0;
    const Json points = backend_->calibrate_clocks(with_host);
    for (Json point : points) {
      point["launch"] = plan_.launch;
      point["when"] = when;
      result_.clock_points.push_back(std::move(point));
    }
    return !points.is_null();
  }

  std::int64_t blocks_of_launch() const {
    std::int64_t blocks = 0;
    for (const RunOrderEntry& entry : plan_.order) {
      const CaseConfig& config = plan_.cases[entry.case_index];
      blocks += (config.steps + config.block_steps - 1) / config.block_steps;
    }
    return blocks;
  }

  void run_controls(const char* when) {
    stage(Stage::kControls);
    std::set<std::string> done;  // one control per all-reduce kernel, with its first case's size
    for (const RunOrderEntry& entry : sorted_order()) {
      const CaseConfig& config = plan_.cases[entry.case_index];
      if (!done.insert(config.all_reduce).second) continue;
      RunControl control = backend_->controls(config);
      control.launch = plan_.launch;
      control.rank = rank_;
      control.when = when;
      result_.controls.push_back(std::move(control));
    }
  }

  // By case, whatever the launch's order: the same controls in every launch.
  std::vector<RunOrderEntry> sorted_order() const {
    std::vector<RunOrderEntry> order = plan_.order;
    std::sort(order.begin(), order.end(), [](const RunOrderEntry& a, const RunOrderEntry& b) {
      return std::pair(a.case_index, a.repetition) < std::pair(b.case_index, b.repetition);
    });
    return order;
  }

  void run_entry(const RunOrderEntry& entry) {
    const CaseConfig& config = plan_.cases[entry.case_index];
    const int phases = phases_per_step(config);
    slot_.case_index.store(entry.case_index, std::memory_order_relaxed);
    slot_.repetition.store(entry.repetition, std::memory_order_relaxed);
    slot_.step.store(-1, std::memory_order_relaxed);
    stage(Stage::kPreparing);
    RankCaseResult& result = result_.cases[entry.case_index];
    result.add(backend_->prepare(config));
    if (!result.checks.bit_equal) {
      throw RunError(result.checks.first_failure + "; the paths do not agree, nothing was timed");
    }
    result.operations = backend_->operations();

    begin_noise(config);
    std::vector<PhaseRow> scratch(phases);
    std::int64_t step = 0;  // of the case, warm-up included
    stage(Stage::kWarmup);
    while (step < config.warmup_steps) {
      const std::int64_t end = std::min(step + config.block_steps, config.warmup_steps);
      for (; step < end; ++step) {
        backend_->run_step(step, scratch);
        slot_.progress.fetch_add(1, std::memory_order_relaxed);
      }
      stage(Stage::kVerifying);
      result.add(backend_->finish_block({}));
    }
    for (std::int64_t timed = 0; timed < config.steps;) {
      const std::int64_t count = std::min(config.block_steps, config.steps - timed);
      const bool calibrated = blocks_++ % blocks_per_point_ == 0 && calibrate("between");
      barrier("before a block");
      run_block(entry, config, step, timed, count, calibrated || timed == 0);
      if (points_behind_blocks_) calibrate("between");
      step += count;
      timed += count;
    }
    end_noise(entry, config);
  }

  // From before a case's warm-up to after its last step on every rank.
  void begin_noise(const CaseConfig& config) {
    if (config.noise_kind == "none") return;
    if (rank_ == 0) start_noise(control_, config, deadlines_.prepare_ns);
    barrier("noise has begun");
  }
  void end_noise(const RunOrderEntry& entry, const CaseConfig& config) {
    if (config.noise_kind == "none") return;
    barrier("end of a case with noise");
    if (rank_ != 0) return;
    Json noise = stop_noise(control_, config, deadlines_.prepare_ns);
    noise["launch"] = plan_.launch;
    noise["case"] = entry.case_index;
    noise["repetition"] = entry.repetition;
    result_.noise.push_back(std::move(noise));
  }

  void run_block(const RunOrderEntry& entry, const CaseConfig& config, std::int64_t step,
                 std::int64_t timed, std::int64_t count, bool first_replay) {
    const int phases = phases_per_step(config);
    const std::span<PhaseRow> block = control_.rows(rank_).first(count * phases);
    for (std::int64_t i = 0; i < count; ++i) {
      slot_.step.store(timed + i, std::memory_order_relaxed);
      const std::span<PhaseRow> rows = block.subspan(i * phases, phases);
      backend_->run_step(step + i, rows);
      for (int phase = 0; phase < phases; ++phase) {
        PhaseRow& row = rows[phase];
        row.launch = plan_.launch;
        row.case_index = entry.case_index;
        row.repetition = entry.repetition;
        row.step = static_cast<std::int32_t>(timed + i);
        if (i == 0) row.flags |= kFlagFirstOfBlock;
        // After warm-up, graph upload or calibration.
        if (i == 0 && first_replay) row.flags |= kFlagFirstAfterWarmup;
        std::atomic_ref(row.sequence).store(++sequence_, std::memory_order_release);
      }
      slot_.progress.fetch_add(1, std::memory_order_relaxed);
    }
    stage(Stage::kVerifying);
    const CaseChecks checks = backend_->finish_block(block);
    result_.cases[entry.case_index].add(checks);
    stage(Stage::kDraining);
    leave_result();
    publish(static_cast<std::int64_t>(block.size()));
    if (checks.checksum_failures > 0) {
      throw RunError(checks.first_failure + "; stale or wrong metadata reached the body");
    }
  }

  // Hands the block's rows to the launcher and waits until it has written them.
  void publish(std::int64_t rows) {
    slot_.block_rows.store(rows, std::memory_order_relaxed);
    const std::uint32_t block = slot_.blocks_published.fetch_add(1, std::memory_order_release) + 1;
    const std::int64_t give_up = now_ns() + deadlines_.launcher_ns;
    for (;;) {
      const std::uint32_t drained = slot_.blocks_drained.load(std::memory_order_acquire);
      if (drained == block) break;
      if (control_.aborted()) {
        throw RunError(
            fmt::format("{} another rank or the launcher ended the run", kStoppedPrefix));
      }
      if (now_ns() > give_up) throw TimeoutError("the launcher did not take a block of rows");
      futex_wait(slot_.blocks_drained, drained, 50'000'000);
    }
  }

  void leave_result() {
    const std::string text = result_.to_text();
    const std::uint32_t n = slot_.results.load(std::memory_order_relaxed) + 1;
    const std::span<char> room = control_.result(rank_, n);  // not the one that may be read
    if (text.size() + 1 > room.size()) throw RunError("the rank's result is larger than its room");
    std::memcpy(room.data(), text.c_str(), text.size() + 1);
    slot_.results.store(n, std::memory_order_release);
  }

  ControlSegment& control_;
  RankSlot& slot_;
  int rank_;
  RankPlan plan_;
  Deadlines deadlines_;
  RankContext context_;
  std::unique_ptr<Backend> backend_;
  RankResult result_;
  std::int64_t sequence_ = 0;
  std::int64_t blocks_ = 0;            // of this launch, started
  std::int64_t blocks_per_point_ = 1;  // of clock calibration
  // In a launch of few blocks the time between two of them, in which the next case is prepared, is
  // long against the launch: a step of a clock that hides there would widen the bound.
  bool points_behind_blocks_ = false;
  int points_between_ = 0;
};

}  // namespace

int rank_main(int control_fd, int rank, pid_t parent) {
  // Ctrl-C and a stopping service reach the whole group; the launcher decides.
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) signal(number, SIG_IGN);
  if (!die_with_parent(parent)) return kExitRunFailed;
  ControlSegment control = ControlSegment::open(control_fd);
  if (rank < 0 || rank >= control.world_size()) {
    throw RunError("rank: no such rank; ranks are started by `tpjitter run`, not by hand");
  }
  control.rank(rank).pid.store(getpid());
  std::optional<RankProcess> process;  // taken down after its failure is known to all
  try {
    process.emplace(control, rank).run();
  } catch (const PeerTimeout& error) {
    control.fail(rank, error.what(), error.peer());
    return kExitRunFailed;
  } catch (const std::exception& error) {
    control.fail(rank, error.what());
    return kExitRunFailed;
  }
  return kExitPass;
}

}  // namespace tpjitter
