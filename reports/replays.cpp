#include "reports/replays.h"

#include <algorithm>
#include <compare>

#include "reports/quantiles.h"
#include "reports/stamps.h"

namespace tpjitter {
namespace {

constexpr std::uint32_t kExcludingFlags = kFlagFirstAfterWarmup | kFlagFirstOfBlock;

// Where a rebuild stands in its case. Rebuilds that share a graph come before the one that
// launches.
struct Ordinal {
  std::int64_t launch_repetition = 0;
  std::int64_t step_graph = 0;
  std::int32_t rebuild = 0;  // count of earlier rebuilds of the graph, kLaunchRow for the last
  auto operator<=>(const Ordinal&) const = default;

  std::int64_t step() const { return step_graph >> 32; }
  bool same_step(const Ordinal& other) const {
    return launch_repetition == other.launch_repetition && step() == other.step();
  }
};
constexpr std::int32_t kLaunchRow = INT32_MAX;

bool launches(const PhaseRow& row) { return (row.flags & kFlagNoLaunch) == 0; }

Ordinal ordinal_of(const PhaseRow& row) {
  return {static_cast<std::int64_t>(row.launch) << 32 | row.repetition,
          static_cast<std::int64_t>(row.step) << 32 | row.graph, launches(row) ? kLaunchRow : 0};
}

// Walks a rank's rows of one case in ordinal order and leaves out doubles.
class Cursor {
 public:
  Cursor(const RankRows& rank, std::size_t case_index)
      : rows_(rank.rows), order_(rank.rows_of_case[case_index]) {
    // The recorder writes in this order; only a damaged or hand-made record needs the sort.
    if (rank.case_in_order[case_index] == 0) {
      sorted_.assign(order_.begin(), order_.end());
      std::stable_sort(sorted_.begin(), sorted_.end(), [&](std::uint32_t a, std::uint32_t b) {
        const Ordinal left = ordinal_of(rows_[a]), right = ordinal_of(rows_[b]);
        if (left != right) return left < right;
        return rows_[a].sequence < rows_[b].sequence;
      });
      order_ = sorted_;
    }
    load();
  }
  bool done() const { return at_ == order_.size(); }
  const Ordinal& ordinal() const { return current_; }
  std::uint32_t row_number() const { return order_[at_]; }
  const PhaseRow& row() const { return rows_[order_[at_]]; }
  std::uint64_t duplicates() const { return duplicates_; }
  void advance() {
    ++at_;
    load();
  }

 private:
  void load() {
    for (; at_ < order_.size(); ++at_) {
      fetch_ahead(rows_, order_, at_);
      const PhaseRow& next = row();
      Ordinal ordinal = ordinal_of(next);
      if (at_ > 0) {
        const PhaseRow& last = rows_[order_[at_ - 1]];
        const bool same = ordinal == ordinal_of(last);
        if (same && (launches(next) || next.sequence == last.sequence)) {
          ++duplicates_;
          continue;
        }
        if (same) ordinal.rebuild = current_.rebuild + 1;
      }
      current_ = ordinal;
      return;
    }
  }

  std::span<const PhaseRow> rows_;
  std::span<const std::uint32_t> order_;
  std::vector<std::uint32_t> sorted_;  // what order_ sees where the rows had to be sorted
  std::size_t at_ = 0;
  Ordinal current_;
  std::uint64_t duplicates_ = 0;
};

// Of the last slot.
void add_unpolled_waits(const Run& run, ReplayTable* table) {
  for (std::size_t rank = 0; rank < run.ranks.size(); ++rank) {
    const std::uint32_t number = table->row_of_slot[rank].back();
    if (number == kNoRow) continue;
    const PhaseRow& row = run.ranks[rank].rows[number];
    if ((row.flags & kFlagWaited) != 0) continue;
    if (const auto wait = wait_ns(row)) table->unpolled_waits_ns[rank].add(*wait);
  }
}

}  // namespace

ReplayTable match_replays(const Run& run, int case_index) {
  ReplayTable table;
  table.row_of_slot.resize(run.ranks.size());
  table.unpolled_waits_ns.resize(run.ranks.size());
  std::vector<Cursor> cursors;
  cursors.reserve(run.ranks.size());
  std::size_t longest = 0;
  for (const RankRows& rank : run.ranks) {
    cursors.emplace_back(rank, static_cast<std::size_t>(case_index));
    longest = std::max(longest, rank.rows_of_case[static_cast<std::size_t>(case_index)].size());
  }
  for (auto& column : table.row_of_slot) column.reserve(longest);
  table.flags.reserve(longest);
  table.phase.reserve(longest);
  table.earliest_launch_ns.reserve(longest);
  table.latest_launch_ns.reserve(longest);

  Ordinal previous;
  bool follows = false;
  while (true) {
    const Cursor* first = nullptr;
    for (const Cursor& cursor : cursors) {
      if (!cursor.done() && (first == nullptr || cursor.ordinal() < first->ordinal())) {
        first = &cursor;
      }
    }
    if (first == nullptr) break;
    const Ordinal slot = first->ordinal();
    const std::int32_t phase = first->row().phase;
    int flags = ReplayTable::kAllRanks | (launches(first->row()) ? ReplayTable::kLaunches : 0);
    if (table.flags.empty() || slot.launch_repetition != previous.launch_repetition) {
      table.segments.push_back({static_cast<std::uint32_t>(table.slots()),
                                static_cast<std::int32_t>(slot.launch_repetition >> 32),
                                static_cast<std::int32_t>(slot.launch_repetition)});
      follows = false;
    } else if (!slot.same_step(previous)) {
      follows = slot.step() == previous.step() + 1;
    }
    if (follows) flags |= ReplayTable::kFollows;
    if (table.flags.empty() || !slot.same_step(previous)) flags |= ReplayTable::kFirstOfStep;
    bool mismatch = false, all_launched = cursors.size() > 1;
    std::int64_t earliest = INT64_MAX, latest = INT64_MIN;
    for (std::size_t rank = 0; rank < cursors.size(); ++rank) {
      Cursor& cursor = cursors[rank];
      if (cursor.done() || cursor.ordinal() != slot) {
        table.row_of_slot[rank].push_back(kNoRow);
        ++table.missing;
        flags &= ~ReplayTable::kAllRanks;
        all_launched = false;
        continue;
      }
      table.row_of_slot[rank].push_back(cursor.row_number());
      mismatch = mismatch || cursor.row().phase != phase;
      const std::int64_t launch_ns = cursor.row().launch_begin_ns;
      all_launched = all_launched && launched(cursor.row());
      earliest = std::min(earliest, launch_ns);
      latest = std::max(latest, launch_ns);
      if ((cursor.row().flags & kExcludingFlags) != 0) flags |= ReplayTable::kExcluded;
      cursor.advance();
    }
    table.phase_mismatch += mismatch ? 1 : 0;
    if ((flags & ReplayTable::kExcluded) != 0) {
      ++table.excluded;
    } else {
      add_unpolled_waits(run, &table);
    }
    table.flags.push_back(static_cast<std::uint8_t>(flags));
    table.phase.push_back(static_cast<std::uint8_t>(phase));
    table.earliest_launch_ns.push_back(all_launched ? earliest : kAbsent);
    table.latest_launch_ns.push_back(all_launched ? latest : kAbsent);
    previous = slot;
  }
  for (const Cursor& cursor : cursors) table.duplicates += cursor.duplicates();
  return table;
}

}  // namespace tpjitter
