// The clocks of a run: the calibration that run.json holds, aligned launch by launch against rank
// 0, closed where triangles were measured, and checked by the run's own all-reduces. Without a
// calibration that holds, stamps of two GPUs are not comparable: no value, and the reason.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "harness/contract/run_info.h"
#include "reports/clock_alignment.h"
#include "reports/replays.h"

namespace tpjitter {

inline constexpr int kHostClock = -1;  // in place of a rank

// The calibration of one pair of clocks in one launch.
struct ClockPair {
  int launch = 0;
  int a = 0, b = 0;                 // ranks; kHostClock
  std::uint64_t made = 0;           // exchanges, of which the record keeps the fastest
  std::uint64_t rejected = 0;       // of the kept ones
  std::int64_t resolution_ns = 0;   // of the coarser clock
  std::int64_t round_trip_ns = 0;   // the smallest
  std::int64_t point_bound_ns = 0;  // the largest of the points; line.bound_ns: between them
  ClockLine line;
};

class RunClocks {
 public:
  explicit RunClocks(const RunInfo& info);
  RunClocks(const RunClocks&) = delete;  // launches_ points into pairs_
  RunClocks& operator=(const RunClocks&) = delete;

  // Why stamps of different ranks cannot be compared in any launch; empty: in some they can.
  const std::string& reason() const { return reason_; }
  std::vector<std::string> refused_launches() const;  // each with its reason
  bool host_clock() const { return host_clock_; }     // a modelled device: nothing to align
  const std::vector<ClockPair>& pairs() const { return pairs_; }
  struct Closure {
    int launch = 0;
    ClockClosure closure;
  };
  const std::vector<Closure>& closures() const { return closures_; }
  std::uint64_t unreadable() const { return unreadable_; }  // points

  // A rank's stamp on rank 0's clock.
  struct Time {
    std::int64_t time_ns = 0;
    std::int64_t bound_ns = 0;  // against rank 0
  };
  std::optional<Time> on_rank0(int launch, int rank, std::int64_t stamp_ns) const;
  // b's clock minus a's, both ranks, at a time of a's.
  std::optional<AlignedOffset> between(int launch, int a, int b, std::int64_t a_ns) const;

  std::int64_t resolution_ns() const;  // of the coarsest clock

  // The largest over aligned launches and pairs; none: no such pair is aligned.
  std::optional<std::int64_t> gpu_gpu_bound_ns() const;
  std::optional<std::int64_t> host_gpu_bound_ns() const;

 private:
  void read_pairs(const RunInfo& info);
  void check_launch(int launch, int world_size);
  const ClockPair* find(int launch, int a, int b) const;
  std::optional<std::int64_t> largest_bound(bool host) const;

  std::vector<ClockPair> pairs_;  // by launch, a, b
  struct Launch {
    std::vector<const ClockLine*> star;  // [rank], against rank 0; its own is null
    std::string reason;                  // why its ranks cannot be compared
  };
  std::vector<Launch> launches_;
  std::vector<Closure> closures_;
  std::string reason_;
  std::uint64_t unreadable_ = 0;
  bool host_clock_ = false;
};

// The first all-reduces of a case as exchanges between its ranks. With two ranks each gives one;
// with more a row knows only its last peer, so that only pairs that name each other do.
struct OwnExchanges {
  std::uint64_t replays = 0;      // examined, in which every rank has a wait
  std::uint64_t both_waited = 0;  // exchanges; half their round trip is the flight
  std::uint64_t one_there = 0;    // pairs of which one found the flag already there
  std::uint64_t no_pair = 0;      // replays in which no two ranks name each other
  std::vector<std::int64_t> flights_ns;
  ExchangeCheck check;  // against the calibration
};
OwnExchanges own_exchanges(const Run& run, const ReplayTable& table, const RunClocks& clocks);

// What a case may be compared with: the run's clocks, unless its own all-reduces contradict them.
struct CaseClocks {
  const RunClocks* clocks = nullptr;  // null: not aligned
  std::string reason = "no calibration in run.json";
};
CaseClocks case_clocks(const RunClocks& clocks, const OwnExchanges& own);

// `clock` of the summary, and of one of its cases.
Json clock_json(const RunInfo& info, const RunClocks& clocks);
Json own_exchanges_json(OwnExchanges own);

}  // namespace tpjitter
