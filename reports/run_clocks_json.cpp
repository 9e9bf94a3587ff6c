// The clocks' part of the summary.
#include <fmt/format.h>

#include <cmath>

#include "reports/quantiles.h"
#include "reports/run_clocks.h"

namespace tpjitter {
namespace {

Json name_json(int clock) { return clock == kHostClock ? Json(nullptr) : Json(clock); }

template <class T>
Json nullable(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json pair_json(const ClockPair& pair) {
  const ClockLine& line = pair.line;
  const bool aligned = line.aligned();
  const auto if_aligned = [&](auto value) { return aligned ? Json(value) : Json(nullptr); };
  return Json{
      {"launch", pair.launch},
      {"a", name_json(pair.a)},
      {"b", name_json(pair.b)},
      {"points", line.points.size()},
      {"points_rejected", line.rejected_points},
      {"exchanges", pair.made},
      {"exchanges_rejected", pair.rejected},
      {"round_trip_ns", pair.round_trip_ns > 0 ? Json(pair.round_trip_ns) : Json(nullptr)},
      {"resolution_ns", pair.resolution_ns},
      {"offset_ns", if_aligned(line.points.empty() ? 0 : line.points.front().offset_ns)},
      {"drift_ns_per_s", if_aligned(std::llround(line.drift * 1e9))},
      {"point_bound_ns", pair.point_bound_ns > 0 ? Json(pair.point_bound_ns) : Json(nullptr)},
      {"bound_ns", if_aligned(line.bound_ns)},
      {"residual_ns", if_aligned(line.residual_ns)},
      {"steps", line.steps},
      {"reason", aligned ? Json(nullptr) : Json(line.reason)}};
}

}  // namespace

Json clock_json(const RunInfo& info, const RunClocks& clocks) {
  const auto said = [&](const char* key) {
    return info.clock.is_object() && info.clock.contains(key) ? info.clock[key] : Json(nullptr);
  };
  Json pairs = Json::array(), closures = Json::array();
  for (const ClockPair& pair : clocks.pairs()) pairs.push_back(pair_json(pair));
  for (const auto& [launch, closure] : clocks.closures()) {
    closures.push_back({{"launch", launch},
                        {"ranks", {closure.a, closure.b, closure.c}},
                        {"points", closure.points},
                        {"error_ns", closure.points > 0 ? Json(closure.error_ns) : Json(nullptr)},
                        {"bound_ns", closure.points > 0 ? Json(closure.bound_ns) : Json(nullptr)},
                        {"within", closure.within}});
  }
  Json clock = {{"host_gpu_bound_ns", said("host_gpu_bound_ns")},
                {"gpu_gpu_bound_ns", said("gpu_gpu_bound_ns")},
                {"reason", said("reason")}};
  if (clocks.host_clock()) {
    if (clock["reason"].is_null()) {
      clock["reason"] = "modelled device: it runs on the host clock";
    }
  } else if (!clocks.pairs().empty()) {
    clock["host_gpu_bound_ns"] = nullable(clocks.host_gpu_bound_ns());
    clock["gpu_gpu_bound_ns"] = nullable(clocks.gpu_gpu_bound_ns());
    clock["reason"] = nullptr;
    if (!clocks.reason().empty()) {
      clock["reason"] = clocks.reason();
    } else if (info.world_size == 1) {
      clock["reason"] = "one rank: no other GPU's clock to compare";
    }
  } else if (clock["reason"].is_null() && clock["gpu_gpu_bound_ns"].is_null()) {
    clock["reason"] = clocks.reason();
  }
  clock["pairs"] = std::move(pairs);
  clock["closures"] = std::move(closures);
  clock["refused_launches"] = clocks.refused_launches();
  clock["unreadable_points"] = clocks.unreadable();
  return clock;
}

Json own_exchanges_json(OwnExchanges own) {
  const Distribution flight = describe(own.flights_ns);
  const Distribution residual = describe(own.check.residuals_ns);
  for (std::int64_t& value : own.check.residuals_ns) value = std::llabs(value);
  const Distribution size = describe(own.check.residuals_ns);
  return Json{{"replays", own.replays},
              {"both_waited", own.both_waited},
              {"one_flag_there", own.one_there},
              {"no_pair", own.no_pair},
              {"flight_ns", nullable(flight.p50)},
              {"compared", own.check.exchanges},
              {"outside_calibration", own.check.outside},
              {"contradictions", own.check.contradictions},
              {"residual_ns", nullable(residual.p50)},
              {"residual_largest_ns", nullable(size.max)}};
}

}  // namespace tpjitter
