// Does it matter when and where a launch or case ran? Four effects, from the order that the records
// hold: who came second of two neighbouring launches (slot), the case's place in its launch, the
// drift between launches, and the drift over the blocks of a launch. What an effect can make of a
// change between the sides widens the limit, and takes a pass away where
// it may hide a change for the worse; it never makes a verdict.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "reports/gate_series.h"
#include "reports/gate_statistics.h"

namespace tpjitter {

// How the launches of both sides lie in time.
struct Order {
  bool known = false;
  bool interleaved = false;
  double midpoint_distance_s = 0;  // between the sides' mean times
  // Neighbours in time of which each side has one; a launch is in one pair at most.
  int pairs = 0, contender_second = 0;
};
Order order_of_sides(const LaunchSet* baseline, const LaunchSet& contender,
                     std::vector<std::string>* notes);

struct OrderEffect {
  double ns = 0;
  double error = 0, degrees = 0;    // standard error and its degrees of freedom
  std::optional<double> low, high;  // 95 % interval
  double p_value = 1;               // two-sided
  bool proven() const { return p_value < kTrendAlpha; }
};

struct OrderBias {
  double ns = 0;
  std::string source;  // "drift between launches", ...
};

struct OrderEffects {
  std::optional<OrderEffect> slot;      // second of two neighbours against first
  std::optional<OrderEffect> position;  // last place in the launch's order against first
  std::optional<OrderEffect> launches;  // drift over the launches of the side that has more of it
  std::optional<OrderEffect> blocks;    // last block of a launch against its first
  // Of sides that ran one after the other: what the drift inside them makes of their distance.
  std::optional<OrderEffect> sides;
  double bias = 0;  // ns: what they can make of the change, either way
  std::string bias_source;
  OrderBias raises, lowers;  // the same by its sign, contender minus baseline
};
OrderEffects order_effects(const Series& base, const Series& contender, const Order& order);

// The change with the uncertainty of a drift from side to side counted in; its interval and p as they
// were.
WelchResult with_drift(WelchResult change, const OrderEffects& effects);

// One-sided p of a change for the worse, with what a drift from side to side may have made of it taken
// off and its uncertainty counted in.
double p_of_worse(const WelchResult& change, const OrderEffects& effects, bool lower_is_better);

// "slot +1.2 us, drift over blocks -3.0 us": the proven ones; empty: none.
std::string proven_text(const OrderEffects& effects);

}  // namespace tpjitter
