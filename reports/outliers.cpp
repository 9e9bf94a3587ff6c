#include "reports/outliers.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "reports/stamps.h"

namespace tpjitter {
namespace {

// Keeps the kWorstOfEach largest, the earlier first where they are equal.
template <class Item, class Value>
void keep_worst(std::vector<Item>& worst, const Item& item, Value value) {
  const auto at = std::find_if(worst.begin(), worst.end(),
                               [&](const Item& other) { return value(item) > value(other); });
  if (at == worst.end() && worst.size() == kWorstOfEach) return;
  worst.insert(at, item);
  if (worst.size() > kWorstOfEach) worst.pop_back();
}

template <class T>
Json nullable(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

}  // namespace

void OutlierFinder::see(const ReplayLateness& replay) {
  if (!replay.exposed_ns) return;
  keep_worst(worst_, replay, [](const ReplayLateness& r) { return *r.exposed_ns; });
}

std::size_t OutlierFinder::first_of_step(std::size_t slot) const {
  while (slot > 0 && !table_.has(slot, ReplayTable::kFirstOfStep)) --slot;
  return slot;
}

const PhaseRow* OutlierFinder::row_of(std::size_t slot, std::size_t rank) const {
  const std::uint32_t number = table_.row_of_slot[rank][slot];
  return number == kNoRow ? nullptr : &run_.ranks[rank].rows[number];
}

// As the metric step_ns: to the accept of the step that follows in the same block.
std::optional<std::int64_t> OutlierFinder::step_ns(std::size_t first_slot, std::size_t rank) const {
  std::size_t next = first_slot + 1;
  while (next < table_.slots() && !table_.has(next, ReplayTable::kFirstOfStep)) ++next;
  if (next >= table_.slots() || !table_.has(next, ReplayTable::kFollows)) return std::nullopt;
  const PhaseRow *row = row_of(first_slot, rank), *after = row_of(next, rank);
  if (row == nullptr || after == nullptr || (after->flags & kFlagFirstOfBlock) != 0 ||
      row->accept_seen_ns == 0 || after->accept_seen_ns == 0) {
    return std::nullopt;
  }
  return difference_ns(after->accept_seen_ns, row->accept_seen_ns);
}

Outlier OutlierFinder::describe(const char* by, std::size_t slot,
                                std::optional<std::size_t> rank) const {
  Outlier outlier;
  outlier.by = by;
  outlier.slot = slot;
  if (!rank) return outlier;
  outlier.rank = static_cast<int>(*rank);
  const std::size_t first = first_of_step(slot);
  outlier.row = row_of(first, *rank);
  outlier.step_ns = step_ns(first, *rank);
  if (outlier.row == nullptr || first == 0 || !table_.has(first, ReplayTable::kFollows)) {
    return outlier;
  }
  if (const PhaseRow* before = row_of(first_of_step(first - 1), *rank)) {
    outlier.migrated = before->cpu != outlier.row->cpu;
  }
  return outlier;
}

void OutlierFinder::see_steps(std::size_t rank, std::size_t begin,
                              std::span<const std::int64_t> step_ns) {
  std::vector<Step> worst;  // of these; of the whole case they must be among such
  for (std::size_t i = 0; i < step_ns.size(); ++i) {
    const std::int64_t ns = step_ns[i];
    if (ns == kAbsent || (worst.size() == kWorstOfEach && ns <= worst.back().ns)) continue;
    keep_worst(worst, Step{begin + i, rank, ns}, [](const Step& s) { return s.ns; });
  }
  const std::lock_guard lock(mutex_);
  for (const Step& step : worst) {
    keep_worst(steps_[rank], step,
               [](const Step& s) { return std::pair(s.ns, -static_cast<std::int64_t>(s.slot)); });
  }
}

std::vector<Outlier> OutlierFinder::worst_steps(std::int64_t above) const {
  std::vector<Step> steps;
  for (const auto& of_rank : steps_) steps.insert(steps.end(), of_rank.begin(), of_rank.end());
  // The longest rank of a slot first, of equals the first.
  std::stable_sort(steps.begin(), steps.end(), [](const Step& a, const Step& b) {
    return std::tuple(-a.ns, a.slot) < std::tuple(-b.ns, b.slot);
  });
  std::vector<Outlier> outliers;
  for (const Step& step : steps) {
    if (outliers.size() == kWorstOfEach || step.ns <= above) break;
    const bool seen = std::any_of(outliers.begin(), outliers.end(),
                                  [&](const Outlier& o) { return o.slot == step.slot; });
    if (!seen) outliers.push_back(describe("step", step.slot, step.rank));
  }
  return outliers;
}

std::vector<Outlier> OutlierFinder::finish(const Attribution& attribution,
                                           std::optional<std::int64_t> step_p50) {
  std::vector<Outlier> outliers;
  const auto& exposed_p50 = attribution.exposed.p50;
  for (const ReplayLateness& replay : worst_) {
    const std::int64_t exposed_ns =
        difference_ns(*replay.exposed_ns, attribution.flight_shift_taken_ns);
    if (!exposed_p50 || exposed_ns <= *exposed_p50) continue;
    Outlier outlier = describe("excess_wait", replay.slot, replay.laggard);
    outlier.stage = replay.stage;
    outlier.excess_ns = exposed_ns;
    outliers.push_back(outlier);
  }
  if (!step_p50) return outliers;
  for (const Outlier& step : worst_steps(*step_p50)) {
    const bool listed = std::any_of(outliers.begin(), outliers.end(), [&](const Outlier& o) {
      return first_of_step(o.slot) == step.slot;
    });
    if (!listed) outliers.push_back(step);
  }
  return outliers;
}

Json outliers_json(const std::vector<Outlier>& outliers, const Run& run, const ReplayTable& table) {
  Json out = Json::array();
  for (const Outlier& o : outliers) {
    // Any rank that has the replay says where it stands.
    const PhaseRow* place = nullptr;
    for (std::size_t rank = 0; rank < run.ranks.size() && place == nullptr; ++rank) {
      const std::uint32_t number = table.row_of_slot[rank][o.slot];
      if (number != kNoRow) place = &run.ranks[rank].rows[number];
    }
    const auto counter = [&](std::int32_t PhaseRow::*field) {
      return o.row == nullptr ? Json(nullptr) : Json(o.row->*field);
    };
    out.push_back(
        {{"by", o.by},
         {"launch", place->launch},
         {"repetition", place->repetition},
         {"step", place->step},
         {"graph", place->graph},
         {"rank", nullable(o.rank)},
         {"stage", o.stage ? Json(stage_name(*o.stage)) : Json(nullptr)},
         {"excess_ns", nullable(o.excess_ns)},
         {"step_ns", nullable(o.step_ns)},
         {"context_switches_voluntary", counter(&PhaseRow::context_switches_voluntary)},
         {"context_switches_involuntary", counter(&PhaseRow::context_switches_involuntary)},
         {"faults_minor", counter(&PhaseRow::faults_minor)},
         {"faults_major", counter(&PhaseRow::faults_major)},
         {"cpu", counter(&PhaseRow::cpu)},
         {"migrated", nullable(o.migrated)}});
  }
  return out;
}

}  // namespace tpjitter
