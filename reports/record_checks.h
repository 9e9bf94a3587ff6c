// Checks of a record that go beyond one row's fields: does a file belong to its rank, are the
// stamps possible at all, does run.json agree with itself. Swapped files would blame the wrong
// rank without any other sign, so they are damage and never guessed around.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "harness/contract/victims.h"
#include "reports/run_reader.h"

namespace tpjitter {

// No step of a run lasts this long; a difference beyond it is a stamp of another clock or damage.
inline constexpr std::uint64_t kMaxDurationNs = 3'600'000'000'000;  // 1 h

// First host stamp of a row; nullopt if it has none.
std::optional<std::int64_t> first_host_stamp(const PhaseRow& row);

// Are all durations within the row at most kMaxDurationNs?
bool stamps_in_range(const PhaseRow& row);

// Does a stage of the row end 2.1 to 4.3 s before it begins? So it looks when a counter of 32 bits
// of nanoseconds wrapped in between; our own stamps have 64.
bool wrapped_within(const PhaseRow& row);

// Is a count below 0? Of events: it wrapped, or was read with another sign.
bool has_negative_counter(const PhaseRow& row);

// Launched, not flagged as without device stamps, and yet one that every replay has is 0.
bool lacks_device_stamp(const PhaseRow& row);

// Follows a rank's host clock from row to row, and against the ranks read before it.
class ClockCheck {
 public:
  // `starts`: [launch], the first stamp of the ranks before; new launches are appended.
  explicit ClockCheck(std::vector<std::optional<std::int64_t>>* starts) : starts_(starts) {}
  bool in_range(const PhaseRow& row);
  // Rows, in the order of their sequence, that begin before the row before them: no clock of a
  // host does that.
  std::uint64_t went_back() const { return went_back_; }

 private:
  std::vector<std::optional<std::int64_t>>* starts_;
  std::int32_t launch_ = -1;
  std::int64_t sequence_ = 0;
  std::uint64_t went_back_ = 0;
  std::optional<std::int64_t> last_;
};

bool within_an_hour(std::int64_t a, std::int64_t b);

// Who may carry an injected delay, as far as a case says. Victims of a step count from the first
// warm-up step.
struct PlannedVictims {
  Victims victims;
  std::int64_t warmup_steps = 0;
};

// Rows that can only be of another rank.
class OwnerCheck {
 public:
  OwnerCheck(const RunInfo& info, int rank);
  void see(const PhaseRow& row);  // its case is one of the run
  std::vector<RunWarning> problems(bool has_last_peer) const;

 private:
  int world_size_, rank_;
  std::vector<std::optional<PlannedVictims>> victims_;  // [case]
  std::uint64_t own_peer_ = 0, no_peer_ = 0, injected_ = 0;
};
// Two ranks with the same bytes.
void check_copies(Run* run);
// run.json against itself: launches, order, ranks.
void check_run_info(Run* run);

}  // namespace tpjitter
