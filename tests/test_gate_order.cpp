// Effects of order: known ones put in and found again, none found where there is none, and how often
// the intervals are right.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "reports/gate_order.h"
#include "tests/gate_fixture.h"

namespace tpjitter {
namespace {

using ::testing::HasSubstr;

using GateOrder = GateTest;

// Twelve launches, one a minute, in turns that begin with another side each time: ABBA ABBA ABBA.
struct Turns {
  std::vector<double> base{0, 3, 4, 7, 8, 11}, contender{1, 2, 5, 6, 9, 10};
  static double second(double minute) { return static_cast<int>(minute) % 2; }
};

TEST_F(GateOrder, TheSlotEffectIsFoundAndCancelsInBalancedTurns) {
  const Turns turns;
  std::vector<double> a, b;
  for (const double minute : turns.base) a.push_back(200e3 + 25e3 * Turns::second(minute));
  for (const double minute : turns.contender) b.push_back(200.5e3 + 25e3 * Turns::second(minute));
  a[0] += 300, b[3] -= 400, b[5] += 200;  // no two launches are the same
  LaunchSet base = side(config(1)), contender = base;
  set_dispatch_at(&base, turns.base, a);
  set_dispatch_at(&contender, turns.contender, b);
  const GateResult result = gate(base, contender);
  EXPECT_TRUE(result.order.interleaved);
  EXPECT_EQ(result.order.pairs, 6);
  EXPECT_EQ(result.order.contender_second, 3);
  const OrderEffects order = row_of(result, "dispatch_ns").order;
  ASSERT_TRUE(order.slot && order.slot->proven());
  EXPECT_NEAR(order.slot->ns, 25e3, 500);
  EXPECT_LE(*order.slot->low, 25e3);
  EXPECT_GE(*order.slot->high, 25e3);
  EXPECT_EQ(order.bias, 0);
  EXPECT_THAT(gate_text(result), HasSubstr("second of two neighbours +25.0 us"));
  EXPECT_THAT(gate_text(result), HasSubstr("second in 3 of 6 pairs"));
}

TEST_F(GateOrder, AContenderThatIsAlwaysSecondIsSaidSo) {
  LaunchSet base = side(config(1)), contender = base;
  set_dispatch_at(&base, {0, 2, 4, 6}, {200e3, 201e3, 200e3, 201e3});
  set_dispatch_at(&contender, {1, 3, 5, 7}, {200e3, 201e3, 200e3, 201e3});
  const GateResult result = gate(base, contender);
  EXPECT_THAT(result.notes, ::testing::Contains(HasSubstr("second one in all 4 pairs")));
  EXPECT_FALSE(row_of(result, "dispatch_ns").order.slot);
}

TEST_F(GateOrder, OtherPlacesInTheLaunchesOrderWidenTheLimit) {
  LaunchSet base = side(config(1)), contender = base;
  std::vector<double> a, b;
  for (int i = 0; i < 6; ++i) {  // 12 us a place; the contender's case runs three places later
    a.push_back(200e3 + 12e3 * (i % 3) + 100 * i);
    b.push_back(a.back() + 36e3);
  }
  set_dispatch(&base, a);
  set_dispatch(&contender, b, 30);
  for (int i = 0; i < 6; ++i) {
    base.launches[i].cases.begin()->second.positions = {i % 3};
    contender.launches[i].cases.begin()->second.positions = {i % 3 + 3};
  }
  const GateRow row = row_of(gate(base, contender), "dispatch_ns");
  ASSERT_TRUE(row.order.position && row.order.position->proven());
  EXPECT_NEAR(row.order.position->ns, 60e3, 1e3);
  EXPECT_NEAR(row.order.bias, 36e3, 1e3);
  EXPECT_EQ(row.verdict, Verdict::kInconclusive);
  EXPECT_THAT(row.reason, HasSubstr("other places in the launches' order"));
}

TEST_F(GateOrder, ADriftInsideTheLaunchesIsShown) {
  LaunchSet base = side(config(1)), contender = base;
  set_dispatch(&base, {200e3, 201e3, 200e3, 201e3});
  set_dispatch(&contender, {200e3, 201e3, 200e3, 201e3}, 30);
  for (LaunchSet* set : {&base, &contender}) {
    for (LaunchResult& launch : set->launches) {
      const std::int64_t start = 195'000 + 100 * launch.launch;
      launch.cases.begin()->second.block_p50[1] = {start, start + 4'000, start + 8'200,
                                                   start + 12'000 + 50 * launch.launch};
    }
  }
  const GateResult result = gate(base, contender);
  const OrderEffects order = row_of(result, "dispatch_ns").order;
  ASSERT_TRUE(order.blocks && order.blocks->proven());
  EXPECT_NEAR(order.blocks->ns, 12'000, 500);
  EXPECT_THAT(gate_text(result), HasSubstr("drift over the blocks of a launch +12.1 us"));
}

TEST_F(GateOrder, OrderThatDoesNothingIsSaidToo) {
  LaunchSet base = side(config(1)), contender = base;
  const Turns turns;
  set_dispatch_at(&base, turns.base, {200e3, 201e3, 203e3, 202e3, 200e3, 201e3});
  set_dispatch_at(&contender, turns.contender, {202e3, 200e3, 201e3, 203e3, 201e3, 200e3});
  for (LaunchSet* set : {&base, &contender}) {
    for (LaunchResult& launch : set->launches) {
      for (auto& blocks : launch.cases.begin()->second.block_p50) blocks.clear();
    }
  }
  EXPECT_THAT(order_lines(gate(base, contender)).at(0),
              HasSubstr("no effect of slot, place or drift is proven"));
}

// Random turns of ten launches a side, normal noise of 1 us, a slot effect and 0.2 us a place.
struct Drawn {
  Series base, contender;
  Order order;
};

Drawn draw(std::mt19937_64* random, double slot_ns, double place_ns) {
  std::normal_distribution<double> noise(0, 1'000);
  Drawn drawn;
  drawn.order.known = drawn.order.interleaved = true;
  for (int pair = 0; pair < 10; ++pair) {
    const bool contender_first = (*random)() % 2 == 0;
    for (int slot = 0; slot < 2; ++slot) {
      Series* side = (slot == 0) == contender_first ? &drawn.contender : &drawn.base;
      const double place = static_cast<double>((*random)() % 6);
      side->times_s.push_back(60.0 * (2 * pair + slot));
      side->positions.push_back(place);
      side->values.push_back(100e3 + slot * slot_ns + place * place_ns + noise(*random));
      side->block_changes.push_back(noise(*random));
    }
  }
  return drawn;
}

TEST(OrderEffects, IntervalsHoldTheTruthAndNothingIsProvenOneInAHundredTimes) {
  std::mt19937_64 random(7);
  constexpr int kRuns = 400;
  int slot_inside = 0, place_inside = 0, slots = 0, false_slot = 0, false_place = 0,
      false_blocks = 0;
  int false_drift = 0;
  const auto holds = [](const OrderEffect& effect, double truth) {
    return *effect.low <= truth && truth <= *effect.high;
  };
  for (int i = 0; i < kRuns; ++i) {
    const Drawn some = draw(&random, 3'000, 0);
    const OrderEffects found = order_effects(some.base, some.contender, some.order);
    if (found.slot) {
      ++slots;
      slot_inside += holds(*found.slot, 3'000);
    }
    const Drawn placed = draw(&random, 0, 400);
    place_inside +=
        holds(*order_effects(placed.base, placed.contender, placed.order).position, 5 * 400);
    const Drawn none = draw(&random, 0, 0);
    const OrderEffects nothing = order_effects(none.base, none.contender, none.order);
    false_slot += nothing.slot && nothing.slot->proven();
    false_place += nothing.position->proven();
    false_blocks += nothing.blocks->proven();
    false_drift += nothing.launches->proven();
  }
  EXPECT_GT(slots, kRuns * 9 / 10);
  EXPECT_NEAR(static_cast<double>(slot_inside) / slots, 0.95, 0.035);
  EXPECT_NEAR(static_cast<double>(place_inside) / kRuns, 0.95, 0.035);
  for (const int count : {false_slot, false_place, false_blocks}) EXPECT_LT(count, kRuns / 40);
  EXPECT_LT(false_drift, kRuns / 25);  // the larger of two sides
}

// Ten launches of one side, then ten of the other, while everything drifts by a standard deviation
// over a side's ten: nothing changed, and Welch's test alone calls that a change.
TEST(OrderEffects, ADriftFromSideToSideIsNotTakenForAChange) {
  std::mt19937_64 random(11);
  std::normal_distribution<double> noise(0, 1'000);
  constexpr int kRuns = 400;
  int alone = 0, with_drift = 0, found = 0;
  Order order;
  order.known = true;
  for (int i = 0; i < kRuns; ++i) {
    Series base, contender, slower;
    for (int launch = 0; launch < 20; ++launch) {
      Series* side = launch < 10 ? &base : &contender;
      side->times_s.push_back(60.0 * launch);
      side->values.push_back(100e3 + 100.0 * launch + noise(random));
    }
    slower = contender;
    for (double& value : slower.values) value += 6'000;
    const auto p = [&](const Series& other) {
      return p_of_worse(*welch(base.values, other.values), order_effects(base, other, order), true);
    };
    alone += welch(base.values, contender.values)->p_greater < kGateAlpha;
    with_drift += p(contender) < kGateAlpha;
    found += p(slower) < kGateAlpha;
  }
  EXPECT_GT(alone, kRuns / 4);
  EXPECT_LT(with_drift, kRuns / 50);
  EXPECT_GT(found, kRuns * 95 / 100);  // six standard deviations are one all the same
}

TEST_F(GateOrder, SidesOneAfterTheOtherAreToldToTakeTurns) {
  LaunchSet base = side(config(1)), contender = base;
  set_dispatch(&base, {200e3, 212e3, 205e3, 220e3, 214e3, 224e3});
  set_dispatch(&contender, {230e3, 228e3, 241e3, 236e3, 249e3, 244e3}, 360);
  const GateRow row = row_of(gate(base, contender), "dispatch_ns");
  EXPECT_EQ(row.verdict, Verdict::kInconclusive);
  ASSERT_TRUE(row.order.sides);
  EXPECT_GT(row.order.bias, 10e3);
  EXPECT_THAT(row.reason, HasSubstr("drift between launches can make"));
}

TEST_F(GateOrder, WhatSidesOneAfterTheOtherShowCountsTheDriftsUncertainty) {
  LaunchSet base = side(config(1)), contender = base;
  const std::vector<double> a{200e3, 212e3, 205e3, 220e3, 201e3, 214e3},
      b{230e3, 218e3, 221e3, 236e3, 219e3, 224e3};
  set_dispatch_at(&base, {0, 2, 4, 6, 8, 10}, a);
  set_dispatch_at(&contender, {1, 3, 5, 7, 9, 11}, b);
  const GateRow turns = row_of(gate(base, contender), "dispatch_ns");
  EXPECT_DOUBLE_EQ(*turns.detectable, detectable_effect(*welch(a, b)));
  EXPECT_TRUE(turns.launches_needed);
  EXPECT_THAT(turns.reason, HasSubstr("launches a side would do"));
  set_dispatch(&base, a);
  set_dispatch(&contender, b, 360);
  const GateResult result = gate(base, contender);
  const GateRow after = row_of(result, "dispatch_ns");
  ASSERT_TRUE(after.order.sides);
  // What is p < 1 % with a power of 95 % by the test that p_of_worse makes, and not less.
  WelchResult just = *welch(a, b);
  just.effect = after.order.sides->ns + *after.detectable;
  const double p = p_of_worse(just, after.order, true);
  EXPECT_LT(p, kGateAlpha);
  EXPECT_GT(*after.detectable, 1.2 * *turns.detectable);
  EXPECT_DOUBLE_EQ(*after.detectable, detectable_effect(with_drift(*welch(a, b), after.order)));
  EXPECT_FALSE(after.launches_needed);
  EXPECT_EQ(after.reason.find("launches a side would do"), std::string::npos) << after.reason;
  // Too few launches for a verdict: no number either, but what to do.
  set_dispatch(&contender, {230e3, 218e3}, 360);
  EXPECT_THAT(row_of(gate(base, contender), "dispatch_ns").reason,
              HasSubstr("at least 3 a side are needed; run the sides in turn"));
}

TEST_F(GateOrder, ABiasWithoutProofHasALineToo) {
  LaunchSet base = side(config(1)), contender = base;
  set_dispatch(&base, {200e3, 212e3, 205e3, 220e3, 201e3, 214e3});
  set_dispatch(&contender, {230e3, 218e3, 221e3, 236e3, 219e3, 224e3}, 360);
  for (LaunchSet* set : {&base, &contender}) {
    for (LaunchResult& launch : set->launches) {
      for (auto& blocks : launch.cases.begin()->second.block_p50) blocks.clear();
    }
  }
  GateResult result = gate(base, contender);
  std::erase_if(result.rows, [](const GateRow& row) { return row.metric != "dispatch_ns"; });
  ASSERT_EQ(proven_text(result.rows.at(0).order), "");
  ASSERT_GT(result.rows.at(0).order.bias, 0);
  const std::vector<std::string> lines = order_lines(result);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_THAT(lines[0], HasSubstr("no effect of slot, place or drift is proven in 1 rows"));
  EXPECT_THAT(lines[1], HasSubstr("nothing proven; limit wider by "));
  EXPECT_THAT(lines[1], HasSubstr("us for drift between launches"));
}

// Twenty pairs of neighbours; being second costs 30 us, noise is 5 us either way, and the contender
// is second in `second` of them. `sign` -1 turns everything round, for metrics where more is better.
void skewed_turns(double truth, int second, double sign, LaunchSet* base, LaunchSet* contender) {
  std::vector<double> times[2], values[2];
  for (int pair = 0; pair < 20; ++pair) {
    const int second_side = (pair % 6 == 3) == (second < 10) ? 1 : 0;
    for (int slot = 0; slot < 2; ++slot) {
      const int side = slot == 1 ? second_side : 1 - second_side;
      const double noise = 5e3 * ((pair * 7 + side * 3) % 5 - 2) / 2;
      times[side].push_back(2 * pair + slot);
      values[side].push_back(200e3 + sign * (30e3 * slot + (side == 1 ? truth : 0)) + noise);
    }
  }
  set_dispatch_at(base, times[0], values[0]);
  set_dispatch_at(contender, times[1], values[1]);
}

TEST_F(GateOrder, AnEffectThatFavoursTheContenderHidesNoRegression) {
  for (const double sign : {1.0, -1.0}) {
    const std::string rule =
        std::string("[[rule]]\nmetric = \"dispatch_ns\"\nabsolute_floor_ns = 24000\n") +
        (sign < 0 ? "direction = \"higher_is_better\"\n" : "");
    LaunchSet base = side(config(1)), contender = base;
    skewed_turns(25e3, 3, sign, &base, &contender);  // first nearly always: looks like +4 us
    GateRow row = gate_with(rule, &base, contender).rows.at(0);
    ASSERT_TRUE(row.order.slot && row.order.slot->proven());
    EXPECT_NEAR(row.order.slot->ns, sign * 30e3, 3e3);
    EXPECT_NEAR(row.order.bias, 21e3, 3e3);
    EXPECT_LT(std::max(std::abs(*row.low), std::abs(*row.high)), *row.limit);
    EXPECT_EQ(row.verdict, Verdict::kInconclusive) << row.reason;
    EXPECT_THAT(row.reason, HasSubstr("more second slots on one side can hide"));
    // The same effect against the contender hides nothing: -17 us look like +4 us, and pass.
    skewed_turns(-17e3, 17, sign, &base, &contender);
    row = gate_with(rule, &base, contender).rows.at(0);
    ASSERT_TRUE(row.order.slot && row.order.slot->proven());
    EXPECT_NEAR(row.order.bias, 21e3, 3e3);
    EXPECT_EQ(row.verdict, Verdict::kPass) << row.reason;
  }
}

TEST(OrderEffects, ADriftKeepsItsSignWhicheverSideCameFirst) {
  Order order;
  order.known = true;
  order.midpoint_distance_s = 360;
  Series early, late;
  for (int i = 0; i < 6; ++i) {  // 1 us a minute downhill
    early.times_s.push_back(60.0 * i);
    early.values.push_back(100e3 - 1e3 * i);
    late.times_s.push_back(360 + 60.0 * i);
    late.values.push_back(94e3 - 1e3 * i);
  }
  const OrderEffects after = order_effects(early, late, order);
  EXPECT_NEAR(after.lowers.ns, 6e3, 1);
  EXPECT_EQ(after.raises.ns, 0);
  const OrderEffects before = order_effects(late, early, order);
  EXPECT_NEAR(before.raises.ns, 6e3, 1);
  EXPECT_EQ(before.lowers.ns, 0);
  EXPECT_EQ(before.raises.source, "drift between launches");
}

}  // namespace
}  // namespace tpjitter
