#include "harness/supervisor.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <sstream>

#include "harness/clock.h"
#include "harness/contract/error.h"
#include "harness/spawn.h"

namespace tpjitter {
namespace {

constexpr int kPollMs = 2;  // between looks at the ranks

constexpr std::int64_t kGraceNs = 2'500'000'000;  // for the others to leave by themselves

// Process state letter of /proc/PID/stat; 'T' is stopped.
char process_state(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::stringstream text;
  text << file.rdbuf();
  const std::string s = text.str();
  const std::size_t paren = s.rfind(')');
  return paren != std::string::npos && paren + 2 < s.size() ? s[paren + 2] : '?';
}

// Stages in which a rank may be silent for long without being hung.
bool is_slow_stage(Stage stage) {
  return stage == Stage::kStarting || stage == Stage::kPreparing || stage == Stage::kVerifying ||
         stage == Stage::kControls || stage == Stage::kConnecting;
}

bool is_finished(const RankSlot& slot) {
  return static_cast<Stage>(slot.stage.load(std::memory_order_relaxed)) == Stage::kFinished;
}

}  // namespace

Supervisor::Supervisor(ControlSegment& control, Recorder& recorder,
                       std::vector<std::string> case_names,
                       std::function<void(std::int64_t)> on_tick, int signal_fd)
    : control_(control),
      recorder_(recorder),
      case_names_(std::move(case_names)),
      on_tick_(std::move(on_tick)),
      signal_fd_(signal_fd),
      deadlines_(control.deadlines()),
      children_(control.world_size()) {
  outcome_.ranks.resize(control.world_size());
}

Supervisor::~Supervisor() {
  for (Child& child : children_) {
    if (!child.running) continue;
    kill(child.pid, SIGKILL);
    waitpid(child.pid, nullptr, 0);
  }
}

void Supervisor::start(int rank) {
  Child& child = children_[rank];
  child.pid = spawn_self(
      {"rank", "--control-fd", std::to_string(control_.fd()), "--rank", std::to_string(rank)},
      control_.fd());
  child.running = true;
  child.progress_at_ns = now_ns();
}

void Supervisor::drain(int rank) {
  RankSlot& slot = control_.rank(rank);
  Child& child = children_[rank];
  if (slot.blocks_published.load(std::memory_order_acquire) == child.drained) return;
  const auto count = static_cast<std::size_t>(slot.block_rows.load(std::memory_order_relaxed));
  const std::span<PhaseRow> rows = control_.rows(rank).first(count);
  recorder_.append(rank, rows);
  std::memset(rows.data(), 0, rows.size_bytes());  // a sequence of 0 means: never written
  slot.blocks_drained.store(++child.drained, std::memory_order_release);
  futex_wake_all(slot.blocks_drained);
}

// The host rows of a block that its rank never published.
void Supervisor::drain_partial(int rank) {
  drain(rank);
  std::vector<PhaseRow> rows;
  for (PhaseRow& row : control_.rows(rank)) {
    if (std::atomic_ref(row.sequence).load(std::memory_order_acquire) == 0) break;
    if (row.gpu_end_ns == 0) row.flags |= kFlagNoDeviceStamps;
    rows.push_back(row);
  }
  recorder_.append(rank, rows);
}

std::string Supervisor::where(int rank) {
  RankSlot& slot = control_.rank(rank);
  const auto stage = static_cast<Stage>(slot.stage.load(std::memory_order_relaxed));
  const int index = slot.case_index.load(std::memory_order_relaxed);
  const std::int64_t step = slot.step.load(std::memory_order_relaxed);
  const std::string name = index >= 0 && index < static_cast<int>(case_names_.size())
                               ? case_names_[index]
                               : std::to_string(index);
  const std::string at = step < 0 ? std::string("before step 0") : fmt::format("step {}", step);
  return fmt::format("launch {}, case {}, {}, stage {}", control_.header().launch, name, at,
                     stage_name(stage));
}

std::string Supervisor::describe_end(int rank) {
  Child& child = children_[rank];
  child.named = true;
  RankSlot& slot = control_.rank(rank);
  if (slot.failed.load(std::memory_order_acquire) != 0) {
    return fmt::format("rank {} failed at {}: {}", rank, where(rank), slot.error);
  }
  if (WIFSIGNALED(child.wait_status)) {
    const int number = WTERMSIG(child.wait_status);
    return fmt::format("rank {} was killed by signal {} ({}) at {}{}", rank, number,
                       sigabbrev_np(number), where(rank),
                       number == SIGKILL ? "; out of memory? dmesg tells" : "");
  }
  return fmt::format("rank {} ended with exit code {} at {}", rank, WEXITSTATUS(child.wait_status),
                     where(rank));
}

bool Supervisor::reap() {
  bool any = false;
  for (Child& child : children_) {
    if (!child.running) continue;
    if (waitpid(child.pid, &child.wait_status, WNOHANG) == child.pid) {
      child.running = false;
    } else {
      any = true;
    }
  }
  return any;
}

void Supervisor::fail(const std::string& reason) {
  if (!failure_) failure_ = reason;
  control_.abort();
}

bool Supervisor::only_noticed(int rank) {
  const RankSlot& slot = control_.rank(rank);
  if (slot.failed.load(std::memory_order_acquire) == 0) return false;
  return slot.waited_for >= 0 || std::string_view(slot.error).starts_with(kStoppedPrefix);
}

// A rank's wait for another one passed its deadline, and nobody has failed by himself.
std::string Supervisor::reason_of_late_rank(int noticed_by) {
  int late = control_.rank(noticed_by).waited_for;
  // Who is waited for may have waited in vain too.
  for (int hops = 0; hops < control_.world_size() && late >= 0 && late < control_.world_size();
       ++hops) {
    const RankSlot& slot = control_.rank(late);
    const bool waited = slot.failed.load(std::memory_order_acquire) != 0 && slot.waited_for >= 0 &&
                        slot.waited_for != late && slot.waited_for != noticed_by;
    if (!waited) break;
    late = slot.waited_for;
  }
  const std::string noticed = describe_end(noticed_by);
  if (late < 0 || late >= control_.world_size() || !children_[late].running) return noticed;
  outcome_.ranks[late].status = "hung";
  return fmt::format("rank {} was waited for in vain at {}; {}", late, where(late), noticed);
}

void Supervisor::check_ended() {
  // In this order: a rank that was killed, one that failed by itself, one that another waited for;
  // a rank that was told to stop comes last, and only when all have ended and none has said more.
  int culprit = -1, late_by = -1, stopped_by = -1;
  bool any_runs = false;
  for (int k = 0; k < static_cast<int>(children_.size()); ++k) {
    const Child& child = children_[k];
    const RankSlot& slot = control_.rank(k);
    const bool failed = slot.failed.load(std::memory_order_acquire) != 0;
    any_runs = any_runs || child.running;
    if (child.running && !failed) continue;
    if (!child.running && WIFEXITED(child.wait_status) && WEXITSTATUS(child.wait_status) == 0 &&
        is_finished(slot)) {
      continue;
    }
    if (!child.running && WIFSIGNALED(child.wait_status)) {
      culprit = k;
      break;
    }
    int& first = !only_noticed(k) ? culprit : slot.waited_for >= 0 ? late_by : stopped_by;
    if (first < 0) first = k;
  }
  std::string reason;
  if (culprit >= 0) {
    reason = describe_end(culprit);
  } else if (late_by >= 0) {
    reason = reason_of_late_rank(late_by);
  } else if (stopped_by >= 0 && !any_runs) {
    reason = describe_end(stopped_by);
    outcome_.ranks[stopped_by].status = "failed";
  } else {
    return;
  }
  if (const std::string stopped = stopped_ranks(); !stopped.empty()) {
    reason = stopped + "; " + reason;
  }
  fail(reason);
}

// Marks and names every rank that somebody has stopped; empty when there is none.
std::string Supervisor::stopped_ranks() {
  std::string text;
  for (int k = 0; k < static_cast<int>(children_.size()); ++k) {
    if (!children_[k].running || process_state(children_[k].pid) != 'T') continue;
    outcome_.ranks[k].status = "hung";
    text += fmt::format("{}rank {} is stopped (signal STOP) at {}", text.empty() ? "" : "; ", k,
                        where(k));
  }
  return text;
}

void Supervisor::check_hung() {
  const std::int64_t now = now_ns();
  int hung = -1;
  for (int k = 0; k < static_cast<int>(children_.size()); ++k) {
    Child& child = children_[k];
    if (!child.running) continue;
    RankSlot& slot = control_.rank(k);
    const std::uint64_t progress = slot.progress.load(std::memory_order_relaxed);
    if (progress != child.progress) {
      child.progress = progress;
      child.progress_at_ns = now;
      continue;
    }
    const auto stage = static_cast<Stage>(slot.stage.load(std::memory_order_relaxed));
    const bool stopped = process_state(child.pid) == 'T';
    const bool slow = is_slow_stage(stage) && !stopped;
    if (now - child.progress_at_ns < (slow ? deadlines_.prepare_ns : deadlines_.launcher_ns)) {
      continue;
    }
    // Ranks that wait for others are late because of them.
    if (hung < 0 || stopped || stage != Stage::kConnecting) hung = k;
    if (stopped) break;
  }
  if (hung < 0) return;
  outcome_.ranks[hung].status = "hung";
  if (const std::string stopped = stopped_ranks(); !stopped.empty()) {
    fail(stopped);
    return;
  }
  fail(fmt::format("rank {} made no progress for {} s at {}", hung,
                   (now - children_[hung].progress_at_ns) / 1'000'000'000, where(hung)));
}

void Supervisor::check_signals() {
  pollfd p{signal_fd_, POLLIN, 0};
  poll(&p, 1, kPollMs);  // also the pause between looks
  if ((p.revents & POLLIN) == 0) return;
  signalfd_siginfo info{};
  if (read(signal_fd_, &info, sizeof info) != sizeof info) return;
  fail(fmt::format("interrupted by the user (signal {}) at {}",
                   sigabbrev_np(static_cast<int>(info.ssi_signo)), where(0)));
}

void Supervisor::end_others() {
  const std::int64_t give_up = now_ns() + kGraceNs;
  for (Child& child : children_) {
    if (child.running) kill(child.pid, SIGCONT);  // a stopped one could not leave
  }
  while (reap() && now_ns() < give_up) {
    for (int k = 0; k < static_cast<int>(children_.size()); ++k) drain(k);
    usleep(kPollMs * 1000);
  }
  kill_others();
}

void Supervisor::kill_others() {
  for (Child& child : children_) {
    child.killed = child.running;
    if (child.running) kill(child.pid, SIGKILL);
  }
  while (reap()) usleep(kPollMs * 1000);
}

// What came to light while the ranks left, or stood behind the first reason: a rank's own error may
// be why another one waited for it.
void Supervisor::add_other_failures() {
  constexpr int kMostNamed = 3;  // a reason is one line, and all may have failed alike
  int others = 0;
  for (int k = 0; k < static_cast<int>(children_.size()); ++k) {
    const Child& child = children_[k];
    const bool failed = control_.rank(k).failed.load(std::memory_order_acquire) != 0;
    const bool died = !failed && !child.killed && WIFSIGNALED(child.wait_status);
    if (child.named || (failed ? only_noticed(k) : !died)) continue;
    outcome_.ranks[k].status = died ? "died" : "failed";
    if (++others <= kMostNamed) *failure_ += "; also " + describe_end(k);
  }
  if (others > kMostNamed) *failure_ += fmt::format("; {} more failed", others - kMostNamed);
}

// How each rank of a failed launch ended, and the rows that it never handed over. `ran`: alive when
// the failure was seen, so that we ended it.
void Supervisor::note_ends(const std::vector<bool>& ran) {
  for (int k = 0; k < static_cast<int>(children_.size()); ++k) {
    RankEnd& end = outcome_.ranks[k];
    const RankSlot& slot = control_.rank(k);
    if (end.status == "complete") {
      if (slot.failed.load() != 0 && !only_noticed(k)) {
        end.status = "failed";
      } else if (!ran[k] && WIFSIGNALED(children_[k].wait_status)) {
        end.status = "died";
      } else if (!is_finished(slot)) {
        end.status = "stopped";
      }
    }
    if (end.status != "complete") end.ended_at = where(k);
    try {
      drain_partial(k);
    } catch (const Error&) {  // the reason is known already; what is written is kept
    }
  }
}

LaunchOutcome Supervisor::run() {
  for (int k = 0; k < static_cast<int>(children_.size()); ++k) start(k);
  try {
    while (reap() && !failure_) {
      for (int k = 0; k < static_cast<int>(children_.size()); ++k) drain(k);
      check_signals();
      check_ended();
      if (!failure_) check_hung();
      std::int64_t rows = INT64_MAX;
      for (int k = 0; k < static_cast<int>(children_.size()); ++k) {
        rows = std::min(rows, recorder_.rows(k));
      }
      on_tick_(rows);
    }
    for (int k = 0; k < static_cast<int>(children_.size()); ++k) drain(k);
    if (!failure_) check_ended();
  } catch (const Error& error) {  // the disk is full, the noise ended: end the ranks
    fail(error.what());
  }
  if (failure_) {
    std::vector<bool> ran;  // ranks that the failure found alive were stopped by us
    for (const Child& child : children_) ran.push_back(child.running);
    try {
      end_others();
    } catch (const Error&) {  // rows of the last blocks have no place either
      kill_others();
    }
    add_other_failures();
    note_ends(ran);
  }
  outcome_.failure = failure_;
  return outcome_;
}

}  // namespace tpjitter
