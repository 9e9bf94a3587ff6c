#include "reports/floors.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "reports/quantiles.h"
#include "reports/stamps.h"
#include "reports/value_counts.h"

namespace tpjitter {
namespace {

constexpr int kMaxLaunches = 4096;  // taken from controls alone

const Json* find_value(const RunCase& c, const char* group, const char* key) {
  if (!c.values.is_object() || !c.values.contains(group)) return nullptr;
  const Json& table = c.values[group];
  return table.is_object() && table.contains(key) ? &table[key] : nullptr;
}

std::optional<std::int64_t> integer_value(const RunCase& c, const char* group, const char* key) {
  const Json* value = find_value(c, group, key);
  if (value == nullptr || !value->is_number_integer()) return std::nullopt;
  return value->get<std::int64_t>();
}

// Bytes of one all-reduce of a decode step: a bf16 hidden state for each request.
std::optional<std::int64_t> case_bytes(const RunCase& c) {
  const auto batch = integer_value(c, "shape", "batch_size");
  const auto hidden = integer_value(c, "shape", "hidden_size");
  if (!batch || !hidden) return std::nullopt;
  return *batch * *hidden * 2;
}

std::string case_all_reduce(const Run& run, const RunCase& c) {
  const Json* value = find_value(c, "body", "all_reduce");
  if (value != nullptr && value->is_string()) return value->get<std::string>();
  // A hand-made record without scenario values: its controls tell, if they agree.
  std::string only;
  for (const RunControl& control : run.info.controls) {
    if (!only.empty() && control.all_reduce != only) return "";
    only = control.all_reduce;
  }
  return only;
}

// The size among the controls of this kernel that is nearest to the case's own.
std::optional<std::int64_t> nearest_control_bytes(const Run& run, const Floors& floors,
                                                  std::optional<std::int64_t> wanted) {
  std::optional<std::int64_t> best;
  for (const RunControl& control : run.info.controls) {
    if (control.all_reduce != floors.all_reduce || control.zero_skew_wait_ns.empty()) continue;
    if (!best ||
        (wanted && std::llabs(control.all_reduce_bytes - *wanted) < std::llabs(*best - *wanted))) {
      best = control.all_reduce_bytes;
    }
  }
  return best;
}

// World of 2: the mean of both ranks' medians, which cancels their clock offset's error. Above: the
// median over ranks. A rank without samples leaves a world of 2 without a floor.
std::optional<std::int64_t> flight_floor(const Run& run, const Floors& floors, int launch) {
  std::vector<std::int64_t> medians;
  for (int rank = 0; rank < run.info.world_size; ++rank) {
    std::vector<std::int64_t> samples;
    for (const RunControl& control : run.info.controls) {
      if (control.launch == launch && control.rank == rank &&
          control.all_reduce == floors.all_reduce &&
          control.all_reduce_bytes == floors.control_bytes) {
        samples.insert(samples.end(), control.zero_skew_wait_ns.begin(),
                       control.zero_skew_wait_ns.end());
      }
    }
    if (const auto median = nearest_rank(samples, kP50)) medians.push_back(*median);
  }
  if (medians.empty() || medians.size() < std::min<std::size_t>(run.ranks.size(), 2)) {
    return std::nullopt;
  }
  if (medians.size() == 2) return std::midpoint(medians[0], medians[1]);
  return nearest_rank(medians, kP50);
}

}  // namespace

std::optional<std::int64_t> Floors::of(const PhaseRow& row, std::size_t rank) const {
  if ((row.flags & kFlagWaited) == 0 && local[rank]) return local[rank];
  const auto launch = static_cast<std::size_t>(row.launch);
  return launch < flight.size() ? flight[launch] : std::nullopt;
}

Floors compute_floors(const Run& run, int case_index, const ReplayTable& table) {
  const RunCase& c = run.info.cases[static_cast<std::size_t>(case_index)];
  Floors floors;
  floors.all_reduce = case_all_reduce(run, c);
  floors.control_bytes = nearest_control_bytes(run, floors, case_bytes(c));
  int launches = static_cast<int>(run.info.launches.size());
  if (launches == 0) {  // made by hand: as many as the controls name
    for (const RunControl& control : run.info.controls) {
      launches = std::max(launches, std::min(control.launch, kMaxLaunches - 1) + 1);
    }
  }
  for (int launch = 0; launch < launches; ++launch) {
    floors.flight.push_back(flight_floor(run, floors, launch));
  }
  for (std::size_t rank = 0; rank < run.ranks.size(); ++rank) {
    const ValueCounts& waits = table.unpolled_waits_ns[rank];
    floors.local_rows.push_back(waits.size());
    floors.local.push_back(waits.size() < kMinLocalFloorRows ? std::nullopt
                                                             : waits.nearest_rank(kP50));
  }
  return floors;
}

}  // namespace tpjitter
