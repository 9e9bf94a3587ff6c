#include "reports/gate_order.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/math/distributions/students_t.hpp>
#include <cmath>

namespace tpjitter {
namespace {

struct Timed {
  double time_s = 0;
  bool contender = false;
  double value = 0;
};

std::vector<Timed> in_turn(const Series& base, const Series& contender) {
  std::vector<Timed> all;
  for (std::size_t i = 0; i < base.times_s.size(); ++i) {
    all.push_back({base.times_s[i], false, base.values[i]});
  }
  for (std::size_t i = 0; i < contender.times_s.size(); ++i) {
    all.push_back({contender.times_s[i], true, contender.values[i]});
  }
  std::sort(all.begin(), all.end(),
            [](const Timed& a, const Timed& b) { return a.time_s < b.time_s; });
  return all;
}

// Calls see(first, second) for each pair of neighbours that has one of each side.
template <class See>
void each_pair(const std::vector<Timed>& all, See see) {
  for (std::size_t i = 0; i + 1 < all.size(); ++i) {
    if (all[i].contender == all[i + 1].contender) continue;
    see(all[i], all[i + 1]);
    ++i;
  }
}

OrderEffect from_estimate(double estimate, double error, double degrees) {
  OrderEffect effect;
  effect.ns = estimate;
  effect.error = error;
  effect.degrees = degrees;
  if (!(error > 0)) {
    effect.low = effect.high = estimate;
    effect.p_value = estimate == 0 ? 1 : 0;
    return effect;
  }
  const boost::math::students_t t(degrees);
  const double half = quantile(t, 0.5 + kGateConfidence / 2) * error;
  effect.low = estimate - half;
  effect.high = estimate + half;
  effect.p_value = 2 * cdf(complement(t, std::abs(estimate) / error));
  return effect;
}

// The period effect of a crossover: with the contender second a pair differs by change + slot, with
// the contender first by slot - change.
std::optional<OrderEffect> slot_effect(const std::vector<Timed>& all) {
  std::vector<double> contender_second, contender_first;
  each_pair(all, [&](const Timed& first, const Timed& second) {
    const double difference = second.value - first.value;
    (second.contender ? contender_second : contender_first).push_back(difference);
  });
  if (contender_second.size() < 2 || contender_first.size() < 2) return std::nullopt;
  for (double& difference : contender_first) difference = -difference;
  const auto twice = welch(contender_first, contender_second);
  if (!twice) return std::nullopt;
  return from_estimate(twice->effect / 2, twice->standard_error / 2, twice->degrees_of_freedom);
}

struct Slope {
  double slope = 0, error = 0, degrees = 0;
};

// Common slope of values over places (or times) within the sides: both centred on their side's means.
std::optional<Slope> common_slope(const Series& base, const Series& contender,
                                  std::vector<double> Series::*places) {
  double xx = 0, xy = 0, yy = 0;
  for (const Series* side : {&base, &contender}) {
    if ((side->*places).size() != side->values.size()) return std::nullopt;
    const double x_mean = mean_and_variance(side->*places).mean;
    const double y_mean = mean_and_variance(side->values).mean;
    for (std::size_t i = 0; i < side->values.size(); ++i) {
      const double x = (side->*places)[i] - x_mean, y = side->values[i] - y_mean;
      xx += x * x;
      xy += x * y;
      yy += y * y;
    }
  }
  const double degrees = static_cast<double>(base.values.size() + contender.values.size()) - 3;
  if (degrees < 3 || !(xx > 0) || !std::isfinite(yy)) return std::nullopt;
  const double slope = xy / xx;
  return Slope{slope, std::sqrt(std::max(0.0, yy - slope * xy) / degrees / xx), degrees};
}

std::optional<OrderEffect> position_effect(const Series& base, const Series& contender,
                                           double* between_sides) {
  const auto slope = common_slope(base, contender, &Series::positions);
  if (!slope) return std::nullopt;
  std::vector<double> places = base.positions;
  places.insert(places.end(), contender.positions.begin(), contender.positions.end());
  const auto [least, most] = std::minmax_element(places.begin(), places.end());
  *between_sides = slope->slope * (mean_and_variance(contender.positions).mean -
                                   mean_and_variance(base.positions).mean);
  const double range = *most - *least;
  return from_estimate(slope->slope * range, slope->error * range, slope->degrees);
}

// Contender's time minus the baseline's, times the common slope in time. Not past the time that a side
// itself spans, its launches' own time included: nobody knows how it went on.
std::optional<OrderEffect> drift_between(const Series& base, const Series& contender) {
  const auto slope = common_slope(base, contender, &Series::times_s);
  if (!slope) return std::nullopt;
  double span = 0;
  for (const Series* side : {&base, &contender}) {
    const auto [first, last] = std::minmax_element(side->times_s.begin(), side->times_s.end());
    const double n = static_cast<double>(side->times_s.size());
    if (n > 1) span = std::max(span, (*last - *first) * n / (n - 1));
  }
  const double distance =
      mean_and_variance(contender.times_s).mean - mean_and_variance(base.times_s).mean;
  const double seconds = std::clamp(distance, -span, span);
  return from_estimate(slope->slope * seconds, slope->error * std::abs(seconds), slope->degrees);
}

std::optional<OrderEffect> launch_drift(const Series& base, const Series& contender) {
  std::optional<OrderEffect> larger;
  for (const Series* side : {&base, &contender}) {
    if (side->times_s.size() < 4) continue;
    const auto [first, last] = std::minmax_element(side->times_s.begin(), side->times_s.end());
    OrderEffect effect;
    effect.ns = theil_sen_slope(side->times_s, side->values) * (*last - *first);
    effect.p_value = trend_p_value(in_time_order(*side));
    const bool more = !larger || std::pair(effect.proven(), std::abs(effect.ns)) >
                                     std::pair(larger->proven(), std::abs(larger->ns));
    if (more) larger = effect;
  }
  return larger;
}

std::optional<OrderEffect> block_drift(const Series& base, const Series& contender) {
  std::vector<double> changes = base.block_changes;
  changes.insert(changes.end(), contender.block_changes.begin(), contender.block_changes.end());
  const MeanAndVariance m = mean_and_variance(changes);
  if (m.n < 4 || !std::isfinite(m.variance)) return std::nullopt;
  return from_estimate(m.mean, std::sqrt(m.variance / static_cast<double>(m.n)),
                       static_cast<double>(m.n - 1));
}

// `made`: of the contender minus the baseline, with its sign.
void widen(double made, const char* source, OrderEffects* effects) {
  const double bias = std::abs(made);
  OrderBias& way = made < 0 ? effects->lowers : effects->raises;
  if (bias > way.ns) way = {bias, source};
  if (bias <= effects->bias) return;
  effects->bias = bias;
  effects->bias_source = source;
}

std::optional<std::vector<double>> begins(const LaunchSet& set) {
  std::vector<double> times;
  for (const LaunchResult& launch : set.launches) {
    if (!launch.began_ns) return std::nullopt;
    times.push_back(static_cast<double>(*launch.began_ns) * 1e-9);
  }
  if (times.empty()) return std::nullopt;
  return times;
}

}  // namespace

Order order_of_sides(const LaunchSet* baseline, const LaunchSet& contender,
                     std::vector<std::string>* notes) {
  Order order;
  if (baseline == nullptr) return order;
  const auto base = begins(*baseline), other = begins(contender);
  if (!base || !other) {
    notes->push_back("the order of the launches is not known: their begin is not in every record");
    return order;
  }
  order.known = true;
  const auto [base_first, base_last] = std::minmax_element(base->begin(), base->end());
  const auto [other_first, other_last] = std::minmax_element(other->begin(), other->end());
  order.midpoint_distance_s =
      std::abs(mean_and_variance(*other).mean - mean_and_variance(*base).mean);
  // An overlap of the two ends is no turn-taking.
  const double span = std::max(*base_last, *other_last) - std::min(*base_first, *other_first);
  order.interleaved = *base_first < *other_last && *other_first < *base_last &&
                      order.midpoint_distance_s <= span / 4;
  Series base_times, other_times;
  base_times.values = base_times.times_s = *base;
  other_times.values = other_times.times_s = *other;
  each_pair(in_turn(base_times, other_times), [&](const Timed&, const Timed& second) {
    ++order.pairs;
    order.contender_second += second.contender;
  });
  if (!order.interleaved) {
    notes->push_back(
        fmt::format("launches of the two sides do not interleave in time ({:.0f} s apart): what "
                    "changed meanwhile is in the change; better run them in turn",
                    order.midpoint_distance_s));
  } else if (order.pairs >= 3 &&
             (order.contender_second == 0 || order.contender_second == order.pairs)) {
    notes->push_back(
        fmt::format("the contender's launch is the {} one in all {} pairs of neighbours: what "
                    "being {} does cannot be told from the change; let the sides begin in turn",
                    order.contender_second > 0 ? "second" : "first", order.pairs,
                    order.contender_second > 0 ? "second" : "first"));
  }
  return order;
}

OrderEffects order_effects(const Series& base, const Series& contender, const Order& order) {
  OrderEffects effects;
  double between_sides = 0;
  effects.position = position_effect(base, contender, &between_sides);
  effects.blocks = block_drift(base, contender);
  if (effects.position && effects.position->proven()) {
    widen(between_sides, "other places in the launches' order", &effects);
  }
  if (!order.known) return effects;
  effects.slot = slot_effect(in_turn(base, contender));
  effects.launches = launch_drift(base, contender);
  if (effects.slot && effects.slot->proven()) {
    // Of turns that are balanced nothing is left.
    const double unbalanced =
        (2.0 * order.contender_second - order.pairs) / static_cast<double>(order.pairs);
    widen(effects.slot->ns * unbalanced, "more second slots on one side", &effects);
  }
  if (!order.interleaved) {
    effects.sides = drift_between(base, contender);
    if (effects.sides) widen(effects.sides->ns, "drift between launches", &effects);
    const bool later =
        mean_and_variance(contender.times_s).mean >= mean_and_variance(base.times_s).mean;
    for (const Series* side : {&base, &contender}) {
      const double drift = drift_over(*side, order.midpoint_distance_s);
      widen(later ? drift : -drift, "drift between launches", &effects);
    }
  }
  return effects;
}

WelchResult with_drift(WelchResult change, const OrderEffects& effects) {
  if (!effects.sides) return change;
  change.standard_error = std::hypot(change.standard_error, effects.sides->error);
  change.degrees_of_freedom = effects.sides->degrees;
  return change;
}

double p_of_worse(const WelchResult& change, const OrderEffects& effects, bool lower_is_better) {
  const double p = lower_is_better ? change.p_greater : change.p_less;
  if (!effects.sides) return p;
  const double worse = (lower_is_better ? 1 : -1) * (change.effect - effects.sides->ns);
  const double error = with_drift(change, effects).standard_error;
  if (!(error > 0)) return worse > 0 ? p : 1;
  const boost::math::students_t t(effects.sides->degrees);
  return std::max(p, cdf(complement(t, worse / error)));
}

std::string proven_text(const OrderEffects& effects) {
  std::vector<std::string> parts;
  for (const auto& [effect, name] :
       {std::pair{&effects.slot, "second of two neighbours"},
        std::pair{&effects.position, "last place in a launch"},
        std::pair{&effects.launches, "drift over the launches"},
        std::pair{&effects.blocks, "drift over the blocks of a launch"}}) {
    if (*effect && (*effect)->proven()) {
      parts.push_back(fmt::format("{} {:+.1f} us", name, (*effect)->ns / 1000));
    }
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace tpjitter
