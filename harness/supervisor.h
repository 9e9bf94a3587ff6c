// One process launch: starts a process per rank by exec, takes the rows of each block, watches for
// ranks that die, fail or hang, and ends the others within the deadline. Measures nothing.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "harness/control.h"
#include "harness/recorder.h"

namespace tpjitter {

struct RankEnd {
  std::string status = "complete";      // RunRank::status
  std::optional<std::string> ended_at;  // where, when it was not complete
};

struct LaunchOutcome {
  std::optional<std::string> failure;  // one line naming rank, step and stage; empty: complete
  std::vector<RankEnd> ranks;
};

class Supervisor {
 public:
  // `case_names` for messages; `on_tick` is called at each look with the rows taken so far
  // of the slowest rank; `signal_fd` delivers SIGINT and SIGTERM.
  Supervisor(ControlSegment& control, Recorder& recorder, std::vector<std::string> case_names,
             std::function<void(std::int64_t)> on_tick, int signal_fd);
  ~Supervisor();  // no rank outlives it
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  LaunchOutcome run();

 private:
  struct Child {
    pid_t pid = -1;
    bool running = false;
    bool named = false;   // its end stands in the reason
    bool killed = false;  // by us, when its time to leave was over
    int wait_status = 0;
    std::uint32_t drained = 0;
    std::uint64_t progress = 0;
    std::int64_t progress_at_ns = 0;
  };

  void start(int rank);
  void drain(int rank);
  void drain_partial(int rank);
  bool reap();  // true while any rank runs
  void check_ended();
  void check_hung();
  std::string stopped_ranks();
  void check_signals();
  // The failed rank only reports that another one ended or was late.
  bool only_noticed(int rank);
  std::string reason_of_late_rank(int noticed_by);
  void add_other_failures();
  void note_ends(const std::vector<bool>& ran);
  void fail(const std::string& reason);
  void end_others();
  void kill_others();
  std::string where(int rank);
  std::string describe_end(int rank);

  ControlSegment& control_;
  Recorder& recorder_;
  std::vector<std::string> case_names_;
  std::function<void(std::int64_t)> on_tick_;
  int signal_fd_;
  Deadlines deadlines_;
  std::vector<Child> children_;
  std::optional<std::string> failure_;
  LaunchOutcome outcome_;
};

}  // namespace tpjitter
