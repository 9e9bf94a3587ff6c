#include "reports/selftest_samples.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

#include "harness/contract/victims.h"
#include "reports/attribution.h"
#include "reports/floors.h"
#include "reports/pair_clock.h"
#include "reports/quantiles.h"
#include "reports/replays.h"
#include "reports/run_clocks.h"
#include "reports/stamps.h"

namespace tpjitter {
namespace {

// Stages of the host in a step of one rebuild, which are contiguous but for the delays.
enum Part : std::size_t { kAccept, kInputs, kRebuild, kLaunch, kBeforeInputs, kBeforeLaunch };
using Parts = std::array<std::int64_t, 6>;

Parts parts_of(const PhaseRow& row) {
  Parts parts{};
  parts[kAccept] = row.accept_seen_ns;
  parts[kInputs] = difference_ns(row.inputs_end_ns, row.inputs_begin_ns);
  parts[kRebuild] = difference_ns(row.dispatch_end_ns, row.dispatch_begin_ns);
  parts[kLaunch] = difference_ns(row.launch_end_ns, row.launch_begin_ns);
  parts[kBeforeInputs] = difference_ns(row.inputs_begin_ns, row.accept_seen_ns);
  parts[kBeforeLaunch] = difference_ns(row.launch_begin_ns, row.dispatch_end_ns);
  return parts;
}

std::int64_t magnitude(std::int64_t value) { return value < 0 ? difference_ns(0, value) : value; }

void keep_larger(std::int64_t value, std::optional<std::int64_t>* kept) {
  if (!*kept || magnitude(value) > magnitude(**kept)) *kept = value;
}

// Without overflow, whatever a damaged record holds.
std::int64_t capped_sum(std::int64_t a, std::int64_t b) {
  return a > INT64_MAX - b ? INT64_MAX : a + b;
}

std::int64_t median(std::vector<std::int64_t>& values) {
  return nearest_rank(values, kP50).value_or(0);
}

class CaseReader {
 public:
  CaseReader(const Run& run, std::size_t index, const RunClocks& run_clocks)
      : run_(run), table_(match_replays(run, static_cast<int>(index))) {
    calibrated_ = case_clocks(run_clocks, own_exchanges(run, table_, run_clocks));
    result_.case_index = index;
    result_.config = case_from_json(run.info.cases[index].values);
    result_.asked_ns = std::llround(result_.config.inject_delay_us * 1000.0);
    result_.samples.resize(run.ranks.size());
    victims_.pattern =
        inject_pattern(result_.config.inject_pattern).value_or(InjectPattern::kFixed);
    victims_.first = static_cast<int>(result_.config.inject_victim);
    victims_.world_size = run.info.world_size;
    victims_.every_steps = result_.config.inject_every_steps;
    victims_.seed = static_cast<std::uint64_t>(result_.config.inject_seed);
    on_gpu_ = result_.config.inject_where == "gpu";
    floors_ = compute_floors(run, static_cast<int>(index), table_);
  }

  DelayCase read() {
    attribute_replays();
    read_clocks();
    for (std::size_t slot = 0; slot < table_.slots(); ++slot) read_slot(slot);
    return std::move(result_);
  }

 private:
  const PhaseRow& row(std::size_t rank, std::size_t slot) const {
    return run_.ranks[rank].rows[table_.row_of_slot[rank][slot]];
  }
  bool compared(std::size_t slot) const {
    constexpr int kWanted =
        ReplayTable::kAllRanks | ReplayTable::kLaunches | ReplayTable::kFirstOfStep;
    return table_.has(slot, kWanted) && !table_.has(slot, ReplayTable::kExcluded);
  }

  void attribute_replays() {
    lateness_.resize(table_.slots());
    attribute(run_, run_.info.cases[result_.case_index], table_, floors_,
              [this](const ReplayLateness& seen) { lateness_[seen.slot] = seen; });
  }

  // Not needed where the device is modelled: one clock.
  void read_clocks() {
    const std::size_t ranks = run_.ranks.size();
    clocks_.resize(ranks * ranks);
    for (std::size_t slot = 0; slot < table_.slots(); ++slot) {
      if (!compared(slot)) continue;
      for (std::size_t a = 0; a < ranks; ++a) {
        const PhaseRow& waiting = row(a, slot);
        const std::int32_t peer = waiting.first_all_reduce_last_peer;
        if ((waiting.flags & kFlagWaited) == 0 || !wait_ns(waiting) || peer < 0 ||
            static_cast<std::size_t>(peer) >= ranks) {
          continue;
        }
        const auto b = static_cast<std::size_t>(peer);
        const PhaseRow& late = row(b, slot);
        const std::int64_t forth =
            difference_ns(waiting.first_all_reduce_last_seen_ns, late.first_all_reduce_own_ns);
        // Times of a pair are on the clock of its lower rank.
        clock(a, b).a_waited(pair_time(a, b, slot), forth);
        clock(b, a).b_waited(pair_time(a, b, slot), difference_ns(0, forth));
      }
    }
    for (PairClock& c : clocks_) c.sort();
  }
  PairClock& clock(std::size_t a, std::size_t b) { return clocks_[a * run_.ranks.size() + b]; }
  std::int64_t pair_time(std::size_t a, std::size_t b, std::size_t slot) const {
    return row(std::min(a, b), slot).first_all_reduce_own_ns;
  }

  void read_slot(std::size_t slot) {
    if (!compared(slot)) return;
    ++result_.steps;
    const std::int64_t step = row(0, slot).step + result_.config.warmup_steps;
    const int victim = victims_.of_step(step);
    check_plan(slot, victim);
    if (victim < 0) return;
    result_.samples[static_cast<std::size_t>(victim)].push_back(
        sample(slot, static_cast<std::size_t>(victim)));
  }

  // The record's own word on who was delayed, against the scenario's.
  void check_plan(std::size_t slot, int victim) {
    for (std::size_t rank = 0; rank < run_.ranks.size(); ++rank) {
      const std::int64_t asked = static_cast<int>(rank) == victim ? result_.asked_ns : 0;
      const PhaseRow& r = row(rank, slot);
      if (r.injected_ns == asked) continue;
      if (++result_.mismatches > 1) continue;
      result_.first_mismatch =
          fmt::format("rank {}, step {}: the row says {} ns, the scenario {} ns", rank, r.step,
                      r.injected_ns, asked);
    }
  }

  DelaySample sample(std::size_t slot, std::size_t victim) {
    DelaySample s;
    const Parts late = parts_of(row(victim, slot));
    s.actual_ns = on_gpu_ ? delay_on_gpu(slot, victim)
                          : late[result_.config.inject_where == "before_dispatch" ? kBeforeInputs
                                                                                  : kBeforeLaunch];
    std::vector<std::int64_t> skews;
    for (std::size_t other = 0; other < run_.ranks.size(); ++other) {
      if (other == victim) continue;
      const Parts early = parts_of(row(other, slot));
      const auto apart = [&](Part part) { return difference_ns(late[part], early[part]); };
      const std::int64_t skew =
          difference_ns(row(victim, slot).launch_begin_ns, row(other, slot).launch_begin_ns);
      skews.push_back(
          difference_ns(skew, sum_ns(sum_ns(apart(kAccept), apart(kInputs)), apart(kRebuild))));
      s.natural_ns = std::max(s.natural_ns, natural(slot, victim, other, s.actual_ns));
    }
    s.skew_ns = median(skews);
    read_waits(slot, victim, &s);
    if (!modelled(slot)) read_arrivals(slot, victim, &s);
    const ReplayLateness& seen = lateness_[slot];
    s.laggard_right = seen.laggard == victim;
    s.stage_right = seen.stage && right_stage(*seen.stage);
    return s;
  }

  // What the stages of two ranks differ by besides the delay, summed without sign: a delay above it
  // makes its rank the last and its stage the largest.
  std::int64_t natural(std::size_t slot, std::size_t victim, std::size_t other,
                       std::int64_t actual_ns) const {
    const PhaseRow& v = row(victim, slot);
    const PhaseRow& o = row(other, slot);
    const Parts late = parts_of(v), early = parts_of(o);
    std::int64_t sum = 0;
    for (std::size_t part = 0; part < late.size(); ++part) {
      std::int64_t apart = difference_ns(late[part], early[part]);
      const bool delayed =
          !on_gpu_ && part == (result_.config.inject_where == "before_dispatch" ? kBeforeInputs
                                                                                : kBeforeLaunch);
      if (delayed) apart = difference_ns(0, early[part]);
      sum = capped_sum(sum, magnitude(apart));
    }
    if (modelled(slot)) {
      const std::int64_t arrival =
          difference_ns(difference_ns(v.first_all_reduce_own_ns, v.launch_end_ns),
                        difference_ns(o.first_all_reduce_own_ns, o.launch_end_ns));
      sum = capped_sum(sum, magnitude(on_gpu_ ? difference_ns(arrival, actual_ns) : arrival));
    } else if (on_gpu_) {
      // The gate takes up what the launches were apart.
      sum = capped_sum(sum, magnitude(difference_ns(v.launch_end_ns, o.launch_end_ns)));
    }
    return sum;
  }

  bool modelled(std::size_t slot) const { return (row(0, slot).flags & kFlagModelledDevice) != 0; }

  bool right_stage(std::size_t stage) const {
    if (on_gpu_) return stage == kStageLaunchToArrival || stage == kStageUnexplained;
    return stage ==
           (result_.config.inject_where == "before_dispatch" ? kStageDispatch : kStageGraphLaunch);
  }

  // From the gate to the all-reduce, each on its own clock: what the victim took longer.
  std::int64_t delay_on_gpu(std::size_t slot, std::size_t victim) const {
    const auto behind_gate = [&](std::size_t rank) {
      const PhaseRow& r = row(rank, slot);
      return difference_ns(r.first_all_reduce_own_ns, r.gpu_begin_ns);
    };
    std::vector<std::int64_t> longer;
    for (std::size_t other = 0; other < run_.ranks.size(); ++other) {
      if (other != victim) {
        longer.push_back(difference_ns(behind_gate(victim), behind_gate(other)));
      }
    }
    return median(longer);
  }

  std::optional<std::int64_t> excess(std::size_t rank, std::size_t slot) const {
    const auto wait = wait_ns(row(rank, slot));
    const auto floor = floors_.of(row(rank, slot), rank);
    if (!wait || !floor) return std::nullopt;
    return difference_ns(*wait, *floor);
  }

  // What tells when a rank arrived, by what it waited less. Two that waited for each other are the
  // last two: each flag's flight is in the other's wait, and the mean of both is what the last
  // would have waited for itself. With any other rank a difference of waits is one of arrivals.
  std::optional<std::int64_t> arrival_excess(std::size_t rank, std::size_t slot) const {
    const auto own = excess(rank, slot);
    const PhaseRow& r = row(rank, slot);
    const std::int32_t peer = r.first_all_reduce_last_peer;
    if (!own || modelled(slot) || peer < 0 || static_cast<std::size_t>(peer) >= run_.ranks.size()) {
      return own;
    }
    const PhaseRow& p = row(static_cast<std::size_t>(peer), slot);
    const auto theirs = excess(static_cast<std::size_t>(peer), slot);
    const bool each_other = (r.flags & p.flags & kFlagWaited) != 0 &&
                            p.first_all_reduce_last_peer == static_cast<std::int32_t>(rank);
    if (!each_other || !theirs || *theirs <= *own) return own;
    return sum_ns(*own, difference_ns(*theirs, *own) / 2);
  }

  // From the victim's clock to the other's: of the all-reduces around, which know it best; of the
  // calibration where they cannot tell, as with a victim that never waits.
  std::optional<std::int64_t> offset_to(std::size_t other, std::size_t victim, std::size_t slot) {
    const auto around = clock(other, victim).at(pair_time(other, victim, slot));
    if (around || calibrated_.clocks == nullptr) return around;
    const PhaseRow& v = row(victim, slot);
    const auto aligned = calibrated_.clocks->between(
        v.launch, static_cast<int>(victim), static_cast<int>(other), v.first_all_reduce_own_ns);
    return aligned ? std::optional(aligned->offset_ns) : std::nullopt;
  }

  void read_waits(std::size_t slot, std::size_t victim, DelaySample* s) {
    if (modelled(slot)) s->gap_error_ns = modelled_gap_error(slot);
    const auto late = arrival_excess(victim, slot);
    std::vector<std::int64_t> waits;
    for (std::size_t other = 0; other < run_.ranks.size(); ++other) {
      const auto early = excess(other, slot);
      if (other == victim || !late || !early) continue;
      const PhaseRow& v = row(victim, slot);
      const PhaseRow& o = row(other, slot);
      if (modelled(slot) || !on_gpu_) {
        std::int64_t apart = difference_ns(*arrival_excess(other, slot), *late);
        if (!on_gpu_) {
          const Parts a = parts_of(v), b = parts_of(o);
          for (const Part part : {kAccept, kInputs, kRebuild, kLaunch}) {
            apart = difference_ns(apart, difference_ns(a[part], b[part]));
          }
        }
        waits.push_back(apart);
      }
      if (modelled(slot) || (o.flags & kFlagWaited) == 0 ||
          o.first_all_reduce_last_peer != static_cast<std::int32_t>(victim)) {
        continue;
      }
      const auto offset = offset_to(other, victim, slot);
      if (!offset) continue;
      const auto apart = [&](std::int64_t at_victim, std::int64_t at_other) {
        return difference_ns(sum_ns(at_victim, *offset), at_other);
      };
      const std::int64_t gap = apart(v.first_all_reduce_own_ns, o.first_all_reduce_own_ns);
      keep_larger(difference_ns(*early, gap), &s->gap_error_ns);
      // Without what the victim came late out of the gate.
      if (on_gpu_) waits.push_back(difference_ns(*early, apart(v.gpu_begin_ns, o.gpu_begin_ns)));
    }
    if (!waits.empty()) s->excess_wait_ns = median(waits);
  }

  void read_arrivals(std::size_t slot, std::size_t victim, DelaySample* s) const {
    if (calibrated_.clocks == nullptr) return;
    std::optional<RunClocks::Time> late, last_other;
    for (std::size_t rank = 0; rank < run_.ranks.size(); ++rank) {
      const PhaseRow& r = row(rank, slot);
      if (r.first_all_reduce_own_ns == 0) return;
      const auto time =
          calibrated_.clocks->on_rank0(r.launch, static_cast<int>(rank), r.first_all_reduce_own_ns);
      if (!time) return;
      if (rank == victim) {
        late = time;
      } else if (!last_other || time->time_ns > last_other->time_ns) {
        last_other = time;
      }
    }
    if (!late || !last_other) return;
    s->behind_ns = difference_ns(late->time_ns, last_other->time_ns);
    s->behind_bound_ns = late->bound_ns + last_other->bound_ns;
  }

  // One clock: every rank must have waited for the last one exactly.
  std::optional<std::int64_t> modelled_gap_error(std::size_t slot) const {
    std::int64_t last = INT64_MIN;
    std::optional<std::int64_t> largest;
    for (std::size_t rank = 0; rank < run_.ranks.size(); ++rank) {
      last = std::max(last, row(rank, slot).first_all_reduce_own_ns);
    }
    for (std::size_t rank = 0; rank < run_.ranks.size(); ++rank) {
      const auto waited = excess(rank, slot);
      if (!waited) return std::nullopt;
      const std::int64_t gap = difference_ns(last, row(rank, slot).first_all_reduce_own_ns);
      keep_larger(difference_ns(*waited, gap), &largest);
    }
    return largest;
  }

  const Run& run_;
  ReplayTable table_;
  Floors floors_;
  Victims victims_;
  bool on_gpu_ = false;
  std::vector<ReplayLateness> lateness_;  // [slot]
  std::vector<PairClock> clocks_;         // [a, b]
  CaseClocks calibrated_;
  DelayCase result_;
};

}  // namespace

std::vector<DelayCase> delay_cases(const Run& run) {
  std::vector<DelayCase> cases;
  const RunClocks clocks(run.info);
  for (std::size_t c = 0; c < run.info.cases.size(); ++c) {
    if (run.info.cases[c].skip_reason) continue;
    const CaseConfig config = case_from_json(run.info.cases[c].values);
    if (config.inject_where == "none" || config.mode != "decode") continue;
    cases.push_back(CaseReader(run, c, clocks).read());
  }
  return cases;
}

}  // namespace tpjitter
