// The rows of one case, matched across ranks by ordinal, never by time: one slot per rebuild, in
// the order (launch, repetition, step, graph, rebuild within the graph). A rank whose row is
// missing or doubled is named; nothing is cut to the shortest rank.
#pragma once

#include <cstdint>
#include <vector>

#include "reports/column.h"
#include "reports/run_reader.h"
#include "reports/value_counts.h"

namespace tpjitter {

inline constexpr std::uint32_t kNoRow = UINT32_MAX;

struct ReplayTable {
  enum SlotFlag : std::uint8_t {
    kAllRanks = 1,     // every rank of the run has this row
    kLaunches = 2,     // ends in a graph launch of its own
    kExcluded = 4,     // first after warm-up or of a block, on any rank: out of every statistic
    kFirstOfStep = 8,  // first rebuild of its step
    kFollows = 16,     // its step is the next one of the same repetition after the step before it
  };
  // Consecutive slots of one repetition in one launch.
  struct Segment {
    std::uint32_t begin;  // its first slot
    std::int32_t launch, repetition;
  };
  std::vector<std::vector<std::uint32_t>> row_of_slot;  // [rank][slot], kNoRow if missing
  std::vector<std::uint8_t> flags;                      // [slot], SlotFlag bits
  std::vector<std::uint8_t> phase;                      // [slot], enum Phase
  std::vector<Segment> segments;                        // in slot order
  // [slot] the first and last entry into the graph launch; kAbsent unless every rank launched, and
  // with one rank
  Column earliest_launch_ns, latest_launch_ns;
  // [rank] waits of the rows that found the last flag already there, without those left out
  std::vector<ValueCounts> unpolled_waits_ns;
  std::uint64_t duplicates = 0;      // rows left out: their ordinals had been seen
  std::uint64_t missing = 0;         // (rank, slot) pairs without a row
  std::uint64_t phase_mismatch = 0;  // slots in which ranks disagree on the phase
  std::uint64_t excluded = 0;        // slots with kExcluded

  std::size_t slots() const { return flags.size(); }
  bool has(std::size_t slot, int bits) const { return (flags[slot] & bits) == bits; }
};

ReplayTable match_replays(const Run& run, int case_index);

}  // namespace tpjitter
