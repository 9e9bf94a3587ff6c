// A trace of chosen steps, or of the worst ones, for Perfetto and chrome://tracing: a process for
// each rank with its host and GPU tracks, arrows from launch to graph to all-reduce, counters of
// skew and wait. The one hard thing is that GPU clocks are not the host's: tracks whose place on the
// time axis is not measured say so in their name.
#include <fmt/format.h>

#include <algorithm>
#include <ostream>

#include "harness/contract/error.h"
#include "reports/device_time.h"
#include "reports/report.h"
#include "reports/stamps.h"
#include "reports/summary_view.h"
#include "reports/trace_tracks.h"

namespace tpjitter {
namespace {

constexpr std::size_t kWorstSteps = 100;      // of all cases of a run together
constexpr std::size_t kMaxRows = 400'000;     // with --steps; a viewer takes no more
constexpr std::int64_t kPidsPerRun = 10'000;  // world_size is at most 4096

enum Track : std::int64_t { kHostTrack = 1, kGpuTrack = 2, kAllReduceTrack = 3 };

struct ChosenStep {
  std::size_t of_case;  // index into TraceRun::cases_
  StepSlots slots;
};

// The rows of one run and what stands beside them.
class TraceRun {
 public:
  TraceRun(const AnalysedRun& analysed, std::string label, std::int64_t first_pid,
           const ReportOptions& options, TraceTracks* tracks)
      : run_(analysed.run),
        label_(std::move(label)),
        first_pid_(first_pid),
        options_(options),
        tracks_(tracks),
        clocks_(analysed.run.info),
        time_(clocks_) {}

  void add() {
    std::vector<ChosenStep> chosen;
    for (const RunCase& c : run_.info.cases) {
      if (c.skip_reason || !matches(options_.case_glob, c.name)) continue;
      read_case(c, &chosen);
    }
    choose(std::move(chosen));
    for (const ChosenStep& step : chosen_) add_step(step);
    name_tracks();
  }
  std::size_t steps() const { return chosen_.size(); }
  // Of the cases looked at, with --steps; nothing: they have no steps.
  std::optional<StepRange> range() const { return range_; }
  bool aligned() const { return time_.aligned(); }
  std::int64_t bound_ns() const { return time_.bound_ns(); }

 private:
  struct Case {
    const RunCase* run_case;
    ReplayTable table;  // of the steps that may be drawn
    Column skew_ns;
    std::vector<Column> wait_ns;  // [rank][slot]: excess wait, or the wait
    const char* wait_name = "wait";
  };

  std::int64_t pid(std::size_t rank) const {
    return first_pid_ + 1 + static_cast<std::int64_t>(rank);
  }

  // Figures are made for the steps that may be drawn; only which are the worst needs all of them.
  void read_case(const RunCase& c, std::vector<ChosenStep>* chosen) {
    const ReplayTable all = match_replays(run_, c.index);
    const Floors floors = compute_floors(run_, c.index, all);
    const std::vector<StepSlots> steps =
        options_.steps ? steps_in_range(all) : worst_of(all, floors);
    Case one{&c, select_steps(all, steps), {}, {}};
    std::vector<Column> waits;
    bool excess = false;
    visit_columns(run_, one.table, floors,
                  [&](std::optional<std::size_t> rank, const MetricColumns& columns) {
                    if (!rank) {
                      one.skew_ns = columns[metric_index("launch_skew_ns")];
                      return;
                    }
                    one.wait_ns.push_back(columns[metric_index("first_all_reduce_excess_wait_ns")]);
                    waits.push_back(columns[metric_index("first_all_reduce_wait_ns")]);
                    for (const std::int64_t v : one.wait_ns.back()) excess = excess || v != kAbsent;
                  });
    one.wait_name = excess ? "excess wait" : "wait";
    if (!excess) one.wait_ns = std::move(waits);
    std::uint32_t begin = 0;
    for (const StepSlots& s : steps) {
      const std::uint32_t end = begin + (s.end - s.begin);
      chosen->push_back({cases_.size(), {begin, end, s.cost_ns}});
      begin = end;
    }
    cases_.push_back(std::move(one));
  }

  std::vector<StepSlots> steps_in_range(const ReplayTable& table) {
    std::vector<StepSlots> steps = list_steps(table, {});
    std::erase_if(steps, [&](const StepSlots& s) {
      const PhaseRow* row = any_row(table, s.begin);
      if (row != nullptr) note_step(row->step);
      return row == nullptr || row->step < options_.steps->first ||
             row->step > options_.steps->last;
    });
    for (const StepSlots& s : steps) rows_ += (s.end - s.begin) * run_.ranks.size();
    if (rows_ > kMaxRows) {
      throw ConfigError(fmt::format("--steps {}..{}: more than {} rows; give fewer, or --case",
                                    options_.steps->first, options_.steps->last, kMaxRows));
    }
    return steps;
  }

  void note_step(int step) {
    if (!range_) range_ = StepRange{step, step};
    range_->first = std::min(range_->first, step);
    range_->last = std::max(range_->last, step);
  }

  std::vector<StepSlots> worst_of(const ReplayTable& table, const Floors& floors) const {
    std::vector<StepSlots> steps;
    visit_columns(run_, table, floors,
                  [&](std::optional<std::size_t> rank, const MetricColumns& columns) {
                    if (rank) return;
                    const auto cost = cost_metric(columns);
                    steps = list_steps(table, cost ? columns[*cost] : Column());
                    if (cost) {
                      steps = worst_steps(std::move(steps), kWorstSteps);
                    } else {
                      steps.resize(std::min(steps.size(), kWorstSteps));
                    }
                  });
    return steps;
  }

  void choose(std::vector<ChosenStep> all) {
    if (!options_.steps && all.size() > kWorstSteps) {
      std::stable_sort(all.begin(), all.end(), [](const ChosenStep& a, const ChosenStep& b) {
        return a.slots.cost_ns > b.slots.cost_ns;
      });
      all.resize(kWorstSteps);
    }
    // In time order, so that GPU clocks are placed by the first launch that is drawn.
    std::stable_sort(all.begin(), all.end(), [&](const ChosenStep& a, const ChosenStep& b) {
      return accept_ns(a) < accept_ns(b);
    });
    chosen_ = std::move(all);
  }

  const PhaseRow* row_of(const ReplayTable& table, std::size_t rank, std::size_t slot) const {
    const std::uint32_t number = table.row_of_slot[rank][slot];
    return number == kNoRow ? nullptr : &run_.ranks[rank].rows[number];
  }
  const PhaseRow* any_row(const ReplayTable& table, std::size_t slot) const {
    for (std::size_t rank = 0; rank < run_.ranks.size(); ++rank) {
      if (const PhaseRow* row = row_of(table, rank, slot)) return row;
    }
    return nullptr;
  }
  std::int64_t accept_ns(const ChosenStep& step) const {
    const PhaseRow* row = any_row(cases_[step.of_case].table, step.slots.begin);
    return row == nullptr ? 0 : row->accept_seen_ns;
  }

  void add_step(const ChosenStep& step) {
    const Case& c = cases_[step.of_case];
    for (std::size_t slot = step.slots.begin; slot < step.slots.end; ++slot) {
      for (std::size_t rank = 0; rank < run_.ranks.size(); ++rank) {
        if (const PhaseRow* row = row_of(c.table, rank, slot)) {
          add_row(c, rank, *row, slot == step.slots.begin);
          add_wait(c, rank, slot, *row);
        }
      }
      const PhaseRow* first = any_row(c.table, slot);
      const std::int64_t skew = c.skew_ns[slot];
      if (first != nullptr && skew != kAbsent) {
        tracks_->add_counter(first_pid_, "launch skew", first->launch_begin_ns, skew);
      }
    }
  }

  void add_wait(const Case& c, std::size_t rank, std::size_t slot, const PhaseRow& row) {
    const std::int64_t wait = c.wait_ns[rank][slot];
    if (wait == kAbsent || row.launch_begin_ns == 0) return;
    tracks_->add_counter(pid(rank), c.wait_name, row.launch_begin_ns, wait);
  }

  void slice(std::size_t rank, Track track, const char* name, std::int64_t begin, std::int64_t end,
             const Json& args = nullptr) {
    if (begin != 0 && end != 0) tracks_->add_slice(pid(rank), track, name, begin, end, args);
  }

  void add_row(const Case& c, std::size_t rank, const PhaseRow& row, bool first_of_step) {
    const Json where = {{"case", printable(c.run_case->name)},
                        {"launch", row.launch},
                        {"repetition", row.repetition},
                        {"step", row.step},
                        {"phase", phase_name(static_cast<Phase>(row.phase))}};
    if (first_of_step) {
      slice(rank, kHostTrack, "wait for accept", row.coupling_begin_ns, row.accept_seen_ns, where);
    }
    slice(rank, kHostTrack, "inputs", row.inputs_begin_ns, row.inputs_end_ns, where);
    slice(rank, kHostTrack, "dispatch", row.dispatch_begin_ns, row.dispatch_end_ns, where);
    if (!launched(row)) return;
    Json launch = where;
    if (row.injected_ns > 0) launch["injected_ns"] = row.injected_ns;
    slice(rank, kHostTrack, "graph launch", row.launch_begin_ns, row.launch_end_ns, launch);
    const auto offset = time_.offset_ns(rank, row);
    if (!offset) return;
    const auto on_host = [&](std::int64_t stamp) {
      return stamp == 0 ? 0 : sum_ns(stamp, *offset);
    };
    slice(rank, kGpuTrack, "graph", on_host(row.gpu_begin_ns), on_host(row.gpu_end_ns), where);
    std::vector<TraceTracks::FlowPoint> flow = {{pid(rank), kHostTrack, row.launch_begin_ns},
                                                {pid(rank), kGpuTrack, on_host(row.gpu_begin_ns)}};
    if (row.gpu_end_ns == 0) flow.pop_back();
    if (row.first_all_reduce_own_ns != 0 && row.first_all_reduce_end_ns != 0) {
      add_all_reduce(rank, row, *offset, where);
      flow.push_back({pid(rank), kAllReduceTrack, on_host(row.first_all_reduce_own_ns)});
    }
    tracks_->add_flow(fmt::format("launch of rank {}", rank), flow);
  }

  void add_all_reduce(std::size_t rank, const PhaseRow& row, std::int64_t offset, Json args) {
    args["last_peer"] = row.first_all_reduce_last_peer;
    const std::int64_t own = sum_ns(row.first_all_reduce_own_ns, offset);
    const std::int64_t end = sum_ns(row.first_all_reduce_end_ns, offset);
    slice(rank, kAllReduceTrack, "first all-reduce", own, end, args);
    if (!wait_ns(row)) return;
    const std::int64_t seen = sum_ns(row.first_all_reduce_last_seen_ns, offset);
    slice(rank, kAllReduceTrack, "wait for peers", own, seen);
    slice(rank, kAllReduceTrack, "transfer", seen, end);
  }

  void name_tracks() {
    tracks_->name_process(first_pid_, label_ + ": across ranks", first_pid_);
    const bool host = run_.info.backend == "host";
    const std::string clock = host ? " (modelled device, host clock)"
                              : time_.aligned()
                                  ? ""
                                  : " (clock not aligned: placed by the first launch drawn)";
    for (std::size_t rank = 0; rank < run_.ranks.size(); ++rank) {
      tracks_->name_process(pid(rank), fmt::format("{}: rank {}", label_, rank), pid(rank));
      tracks_->name_track(pid(rank), kHostTrack, "host", kHostTrack);
      tracks_->name_track(pid(rank), kGpuTrack, "GPU graph" + clock, kGpuTrack);
      tracks_->name_track(pid(rank), kAllReduceTrack, "GPU first all-reduce" + clock,
                          kAllReduceTrack);
    }
  }

  const Run& run_;
  const std::string label_;
  std::int64_t first_pid_;
  const ReportOptions& options_;
  TraceTracks* tracks_;
  std::vector<Case> cases_;
  std::size_t rows_ = 0;  // of the steps in range
  std::optional<StepRange> range_;
  std::vector<ChosenStep> chosen_;
  RunClocks clocks_;
  DeviceTime time_;
};

// An empty trace looks like a run without steps.
void check_range(const StepRange& asked, bool drawn, const std::string& ranges) {
  if (drawn || ranges.empty()) return;
  throw ConfigError(
      fmt::format("--steps {}..{}: holds no step of {}", asked.first, asked.last, ranges));
}

}  // namespace

void write_perfetto(std::span<const AnalysedRun> runs, const ReportOptions& options,
                    std::ostream& out) {
  TraceTracks tracks;
  Json about = {{"tool", "tpjitter"}, {"runs", Json::array()}};
  std::int64_t pid = 1;
  bool drawn = false;
  std::string ranges;  // of the runs, for --steps
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const AnalysedRun& analysed = runs[i];
    TraceRun run(analysed, run_label(runs, i), pid, options, &tracks);
    run.add();
    drawn = drawn || run.steps() > 0;
    if (const auto range = run.range()) {
      ranges += fmt::format("{}{}, which has {}..{}", ranges.empty() ? "" : "; ",
                            run_label(runs, i), range->first, range->last);
    }
    about["runs"].push_back({{"scenario", printable(analysed.run.info.scenario_name)},
                             {"status", analysed.summary["status"]},
                             {"steps", run.steps()},
                             {"chosen", options.steps ? "by number" : "the worst"},
                             {"gpu_clocks_aligned", run.aligned()},
                             {"gpu_clock_bound_ns", run.bound_ns()},
                             {"problems", analysed.run.problems.size()}});
    pid += kPidsPerRun;
  }
  if (options.steps) check_range(*options.steps, drawn, ranges);
  tracks.write(std::move(about), out);
}

}  // namespace tpjitter
