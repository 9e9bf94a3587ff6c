// Clock alignment on synthetic clocks: the true offset is known at every moment, so that both the
// estimate and the honesty of its bound can be checked.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "reports/clock_alignment.h"
#include "tests/synthetic_clocks.h"

namespace tpjitter {
namespace {

TEST(ClockOffsets, OneExchangeAllowsTheOffsetWithinHalfItsRoundTrip) {
  const ClockExchange e = {1'000, 10'400, 10'500, 2'100};  // 400 there if equal, 600 back
  EXPECT_EQ(round_trip_ns(e), 1'000);
  EXPECT_EQ(middle_offset_ns(e), 8'900);
}

TEST(ClockOffsets, SymmetricMessagesGiveTheOffsetWithinTheClocksResolution) {
  Pair pair = two_gpus(1);
  const ClockOffset offset = estimate_offset(pair.exchanges(kSecond));
  ASSERT_EQ(offset.reason, "");
  EXPECT_NEAR(static_cast<double>(offset.offset_ns), static_cast<double>(pair.true_offset(kSecond)),
              100);
  EXPECT_LE(offset.bound_ns, 1'300);
  EXPECT_GE(offset.bound_ns, 1'100);
}

TEST(ClockOffsets, AsymmetryCannotBeSeenAndStaysWithinTheBound) {
  Link link;
  link.there_ns = 2'200;
  link.back_ns = 0;
  link.jitter_ns = 0;
  Pair pair = two_gpus(2, link);
  const ClockOffset offset = estimate_offset(pair.exchanges(kSecond));
  const std::int64_t error = std::llabs(offset.offset_ns - pair.true_offset(kSecond));
  EXPECT_GT(error, 1'000);  // half of what the ways differ by
  EXPECT_LE(error, offset.bound_ns);
}

TEST(ClockOffsets, LateMessagesDoNotWidenTheBound) {
  Link link;
  link.late_percent = 60;
  Pair pair = two_gpus(3, link);
  const ClockOffset offset = estimate_offset(pair.exchanges(kSecond));
  ASSERT_EQ(offset.reason, "");
  EXPECT_LE(offset.bound_ns, 1'400);
}

TEST(ClockOffsets, ImpossibleExchangesAreRejectedAndCounted) {
  Pair pair = two_gpus(4);
  Exchanges exchanges = pair.exchanges(kSecond, 20);
  exchanges[0].receive_b_ns = 0;                           // not taken
  exchanges[1].receive_a_ns = exchanges[1].send_a_ns - 1;  // back before it was sent
  exchanges[2].send_b_ns += 50'000;                        // held for longer than it was away
  exchanges[3].receive_a_ns += 3 * kSecond;
  exchanges[4].send_a_ns = INT64_MIN;
  const ClockOffset offset = estimate_offset(exchanges);
  EXPECT_EQ(offset.reason, "");
  EXPECT_EQ(offset.rejected, 5u);
  EXPECT_LE(std::llabs(offset.offset_ns - pair.true_offset(kSecond)), offset.bound_ns);
}

TEST(ClockOffsets, TooFewExchangesGiveNoOffset) {
  Pair pair = two_gpus(5);
  EXPECT_EQ(estimate_offset({}).reason, "0 usable exchanges, 5 are needed");
  EXPECT_EQ(estimate_offset(pair.exchanges(kSecond, 4)).reason, "4 usable exchanges, 5 are needed");
}

TEST(ClockOffsets, AClockThatIsSetWithinAPointIsRefused) {
  Pair pair = two_gpus(6);
  pair.b.step_at_ns = kSecond + 32 * 4'000;
  pair.b.step_ns = 20'000;
  const ClockOffset offset = estimate_offset(pair.exchanges(kSecond));
  EXPECT_NE(offset.reason.find("contradict each other"), std::string::npos) << offset.reason;
}

TEST(ClockOffsets, TheStampsShowTheClocksStep) {
  Pair pair = two_gpus(7);
  EXPECT_EQ(stamp_resolution_ns(pair.exchanges(kSecond)), 32);
  pair.b.resolution_ns = 1'000;  // as globaltimer before Hopper
  const Exchanges coarse = pair.exchanges(kSecond);
  EXPECT_EQ(stamp_resolution_ns(coarse), 1'000);
  const ClockOffset offset = estimate_offset(coarse, 1'000);
  ASSERT_EQ(offset.reason, "");
  EXPECT_LE(std::llabs(offset.offset_ns - pair.true_offset(kSecond)), offset.bound_ns);
  EXPECT_GT(offset.bound_ns, 1'000);
  EXPECT_EQ(stamp_resolution_ns({}), kClockResolutionNs);
}

TEST(ClockLines, FollowsADriftBetweenThePoints) {
  Pair pair = two_gpus(10);
  const auto times = every(kSecond, 10);
  const ClockLine line = align_points(pair.points(times));
  ASSERT_EQ(line.reason, "");
  EXPECT_NEAR(line.drift, 0.8e-6, 0.02e-6);
  const Errors errors = errors_of(line, pair, kSecond, 10 * kSecond);
  EXPECT_GT(errors.values, 190);
  EXPECT_TRUE(errors.bounded);
  EXPECT_LE(errors.largest_ns, 150);  // though the clocks drifted 7.2 us apart
  EXPECT_LE(line.bound_ns, 1'900);    // of the points 1'250; a step may hide between them
}

TEST(ClockLines, GivesNothingBeyondThePoints) {
  Pair pair = two_gpus(11);
  const ClockLine line = align_points(pair.points(every(kSecond, 5)));
  EXPECT_TRUE(line.at(pair.a.exact(3 * kSecond)).has_value());
  EXPECT_FALSE(line.at(pair.a.exact(kSecond - 1'000'000)).has_value());
  EXPECT_FALSE(line.at(pair.a.exact(5 * kSecond + 2'000'000)).has_value());
}

TEST(ClockLines, TwoPointsCannotTellDriftFromAStep) {
  Pair pair = two_gpus(12);
  const ClockLine line = align_points(pair.points(every(kSecond, 2)));
  EXPECT_EQ(line.reason, "2 points of calibration, 3 are needed");
  EXPECT_FALSE(line.at(pair.a.exact(kSecond * 3 / 2)).has_value());
  EXPECT_EQ(align_points({}).reason, "0 points of calibration, 3 are needed");
}

TEST(ClockLines, AStepBetweenPointsIsNamedAndRefused) {
  for (const std::int64_t step_ns : {50'000, -50'000, 1'000'000'000}) {
    Pair pair = two_gpus(13);
    pair.b.step_at_ns = 3 * kSecond + kSecond / 2;
    pair.b.step_ns = step_ns;
    const ClockLine line = align_points(pair.points(every(kSecond, 8)));
    EXPECT_FALSE(line.aligned());
    EXPECT_FALSE(line.at(pair.a.exact(2 * kSecond)).has_value());
    if (step_ns < kSecond) {
      EXPECT_NE(line.reason.find("was set"), std::string::npos) << line.reason;
      EXPECT_GE(line.steps, 1u);
    }
  }
}

TEST(ClockLines, AStepTooSmallToTellIsInTheBound) {
  Pair pair = two_gpus(14);
  pair.b.step_at_ns = 3 * kSecond + kSecond / 2;
  pair.b.step_ns = 1'000;
  const ClockLine line = align_points(pair.points(every(kSecond, 8)));
  ASSERT_EQ(line.reason, "");
  EXPECT_GE(line.residual_ns, 800);
  EXPECT_TRUE(errors_of(line, pair, kSecond, 8 * kSecond).bounded);
}

TEST(ClockLines, OneWrongPointAmongManyIsRejected) {
  Pair pair = two_gpus(15);
  std::vector<ClockOffset> points = pair.points(every(kSecond, 9));
  points[4].offset_ns += 30'000;
  const ClockLine line = align_points(points);
  ASSERT_EQ(line.reason, "");
  EXPECT_EQ(line.rejected_points, 1u);
  EXPECT_TRUE(errors_of(line, pair, kSecond, 9 * kSecond).bounded);
}

TEST(ClockLines, AWrongPointAtAnEndCannotBeToldFromAStep) {
  Pair pair = two_gpus(16);
  std::vector<ClockOffset> points = pair.points(every(kSecond, 9));
  points[8].offset_ns += 30'000;
  EXPECT_FALSE(align_points(points).aligned());
}

TEST(ClockLines, PointsWithoutAnOffsetAreLeftOutWithTheirReason) {
  Pair pair = two_gpus(17);
  std::vector<ClockOffset> points = pair.points(every(kSecond, 4));
  points.push_back(estimate_offset({}));
  EXPECT_EQ(align_points(points).rejected_points, 1u);
  const ClockLine few = align_points({points[0], points[4], points[1]});
  EXPECT_EQ(few.reason,
            "2 points of calibration, 3 are needed; others: 0 usable exchanges, 5 are needed");
}

TEST(ClockLines, TheOrderOfThePointsDoesNotMatter) {
  Pair pair = two_gpus(18);
  std::vector<ClockOffset> points = pair.points(every(kSecond, 6));
  const ClockLine ordered = align_points(points);
  std::reverse(points.begin(), points.end());
  const ClockLine reversed = align_points(points);
  const std::int64_t time = pair.a.exact(kSecond * 7 / 2);
  EXPECT_EQ(ordered.at(time)->offset_ns, reversed.at(time)->offset_ns);
  points.push_back(points[0]);
  EXPECT_EQ(align_points(points).reason, "two points of calibration at the same time");
}

TEST(ClockLines, ClocksThatDriftLikeNoOscillatorAreRefused) {
  Pair pair(19, {kSecond}, {kSecond, 300'000});
  const ClockLine line = align_points(pair.points(every(kSecond, 6)));
  EXPECT_NE(line.reason.find("drift apart by 300 us a second"), std::string::npos) << line.reason;
}

// Whatever the link and the clocks do, within what one launch assumes (rates hold, at most one
// step): a value that is given lies within its bound of the truth.
TEST(ClockLines, TheTrueOffsetIsInsideTheBoundInEveryAcceptedCase) {
  int accepted = 0, refused = 0, with_step = 0;
  for (std::uint64_t seed = 1; seed <= 1'500; ++seed) {
    std::mt19937_64 random(seed);
    const auto draw = [&](std::int64_t limit) {
      return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(limit));
    };
    Link link;
    link.there_ns = draw(3'000);
    link.back_ns = draw(3'000);
    link.jitter_ns = draw(2'000);
    link.late_percent = static_cast<int>(draw(70));
    link.damaged_percent = static_cast<int>(draw(3));
    Pair pair(seed, {draw(100 * kSecond) + kSecond, draw(20'000) - 10'000},
              {draw(100 * kSecond) + kSecond, draw(20'000) - 10'000}, link);
    std::vector<std::int64_t> times = {kSecond};
    const auto count = static_cast<std::size_t>(3 + draw(8));
    while (times.size() < count) times.push_back(times.back() + 10'000'000 + draw(2 * kSecond));
    const bool stepped = draw(3) == 0;
    if (stepped) {
      pair.b.step_at_ns = times[0] + draw(times.back() - times[0]);
      pair.b.step_ns = draw(40'000) - 20'000;
    }
    const ClockLine line = align_points(pair.points(times));
    if (!line.aligned()) {
      ++refused;
      continue;
    }
    ++accepted;
    with_step += stepped ? 1 : 0;
    const Errors errors = errors_of(line, pair, times.front(), times.back());
    ASSERT_TRUE(errors.bounded) << "seed " << seed << ": " << errors.largest_ns << " ns off, bound "
                                << line.bound_ns;
  }
  EXPECT_GT(accepted, 900);
  EXPECT_GT(refused, 100);
  EXPECT_GT(with_step, 20);  // small ones, that the bound must hold
}

TEST(ClockWraps, A32BitCounterGivesTheSameOffset) {
  // 4.29 s after the start of b's counter, within the exchanges.
  Pair pair(20, {100 * kSecond}, {kSecond, 800});
  const std::int64_t at = (std::int64_t{1} << 32) - kSecond - 100'000;
  const Exchanges wide = pair.exchanges(at);
  Exchanges wrapped = wide;
  for (ClockExchange& e : wrapped) {
    for (std::int64_t* stamp : {&e.send_a_ns, &e.receive_b_ns, &e.send_b_ns, &e.receive_a_ns}) {
      *stamp &= 0xffffffff;
    }
  }
  ASSERT_NE(wrapped.front().receive_b_ns >> 31, wrapped.back().receive_b_ns >> 31);
  const ClockOffset expected = estimate_offset(wide);
  ASSERT_EQ(expected.reason, "");
  EXPECT_NE(estimate_offset(wrapped).reason, "");  // as they are: b jumps back by 4.29 s
  unwrap_32_bit(&wrapped);
  const ClockOffset got = estimate_offset(wrapped);
  ASSERT_EQ(got.reason, "");
  EXPECT_EQ(static_cast<std::uint32_t>(got.offset_ns),
            static_cast<std::uint32_t>(expected.offset_ns));
  EXPECT_EQ(got.bound_ns, expected.bound_ns);
}

struct Triangle {
  ClockLine ab, bc, ac;
};
Triangle triangle(std::int64_t wrong_ns) {
  const SyntheticClock a = {kSecond}, b = {3 * kSecond, 500}, c = {9 * kSecond, -700};
  Pair ab(21, a, b), bc(22, b, c), ac(23, a, c);
  // A pair that is wrong all along is consistent in itself.
  Pair wrong(23, a, {c.start_ns + wrong_ns, c.rate_ppb});
  // Closing pairs are measured within the star's points.
  const auto star = every(kSecond, 6);
  const std::vector<std::int64_t> closing = {3 * kSecond / 2, 3 * kSecond, 5 * kSecond};
  return {align_points(ab.points(star)), align_points(bc.points(closing)),
          align_points((wrong_ns == 0 ? ac : wrong).points(star))};
}

TEST(ClockClosures, ThreeRightClocksCloseWithinTheirBounds) {
  const Triangle t = triangle(0);
  const ClockClosure closure = close_triangle(t.ab, t.bc, t.ac);
  EXPECT_TRUE(closure.within);
  EXPECT_EQ(closure.points, 3u);
  EXPECT_LE(std::llabs(closure.error_ns), 300);
  EXPECT_GT(closure.bound_ns, 3'000);
}

TEST(ClockClosures, APairThatIsWrongAllAlongShowsInTheTriangle) {
  const Triangle t = triangle(20'000);
  EXPECT_TRUE(t.ac.aligned());
  const ClockClosure closure = close_triangle(t.ab, t.bc, t.ac);
  EXPECT_FALSE(closure.within);
  EXPECT_NEAR(static_cast<double>(closure.error_ns), -20'000, 300);
}

TEST(ClockClosures, WithoutACommonPointNothingCloses) {
  const Triangle t = triangle(0);
  const ClockClosure closure = close_triangle(t.ab, ClockLine{}, t.ac);
  EXPECT_EQ(closure.points, 0u);
  EXPECT_FALSE(closure.within);
}

ExchangeCheck check_exchanges(const ClockLine& line, const Exchanges& exchanges) {
  ExchangeCheck check;
  for (const ClockExchange& e : exchanges) {
    check.add(e, line.at(e.send_a_ns), stamp_resolution_ns(exchanges));
  }
  return check;
}

// An all-reduce of two ranks as an exchange: own release and the peer's flag seen, on each.
ClockExchange all_reduce(const Pair& pair, std::int64_t release_a, std::int64_t release_b,
                         std::int64_t flight_ns) {
  const std::int64_t seen_on_b = std::max(release_b + 400, release_a + flight_ns);
  const std::int64_t seen_on_a = std::max(release_a + 400, release_b + flight_ns);
  return {pair.a.read(release_a), pair.b.read(seen_on_b), pair.b.read(release_b),
          pair.a.read(seen_on_a)};
}

TEST(OwnAllReduces, WhereBothWaitedTheSkewDoesNotEnterTheFloorOrTheOffset) {
  const Pair pair = two_gpus(30);
  for (const std::int64_t skew : {-900, -300, 0, 500, 1'000}) {
    const ClockExchange e = all_reduce(pair, kSecond, kSecond + skew, 1'400);
    EXPECT_NEAR(static_cast<double>(round_trip_ns(e)) / 2, 1'400, 64) << skew;
    EXPECT_NEAR(static_cast<double>(middle_offset_ns(e)),
                static_cast<double>(pair.true_offset(kSecond)), 64)
        << skew;
  }
}

TEST(OwnAllReduces, AFlagThatWasLateStillAllowsTheTrueOffset) {
  const Pair pair = two_gpus(31);
  const ClockExchange e = all_reduce(pair, kSecond, kSecond + 30'000, 1'400);
  EXPECT_LE(std::llabs(middle_offset_ns(e) - pair.true_offset(kSecond)),
            round_trip_ns(e) / 2 + kClockResolutionNs);
}

TEST(OwnAllReduces, AgreeWithTheCalibrationOrNameIt) {
  Pair pair = two_gpus(32);
  const ClockLine line = align_points(pair.points(every(kSecond, 5)));
  ASSERT_TRUE(line.aligned());
  Exchanges own;
  for (std::int64_t i = 0; i < 400; ++i) {
    const std::int64_t at = kSecond + 1'000'000 + i * 9'000'000;
    own.push_back(all_reduce(pair, at, at + pair.below(1'000), 1'400));
  }
  own.push_back(all_reduce(pair, 8 * kSecond, 8 * kSecond, 1'400));
  const ExchangeCheck good = check_exchanges(line, own);
  EXPECT_EQ(good.exchanges, 400u);
  EXPECT_EQ(good.outside, 1u);
  EXPECT_EQ(good.contradictions, 0u);
  for (const std::int64_t residual : good.residuals_ns) EXPECT_LE(std::llabs(residual), 200);

  // A clock that is set and set back between two points: only the run's own exchanges show it.
  for (int i = 120; i < 160; ++i) own[i].receive_b_ns += 100'000, own[i].send_b_ns += 100'000;
  const ExchangeCheck bad = check_exchanges(line, own);
  EXPECT_EQ(bad.contradictions, 40u);
  EXPECT_FALSE(bad.consistent());
}

// A block that is long against its launch: a step could hide in it only as far as the offsets may
// have changed unseen, and not as far as each of them may be off.
TEST(ClockLine, DoubtsALongIntervalByWhatTheOffsetsMayHaveChanged) {
  std::vector<ClockOffset> points;
  for (const std::int64_t ms : {0, 210, 900, 1'230, 1'430, 2'120, 2'470}) {
    ClockOffset& point = points.emplace_back();
    point.at_a_ns = ms * 1'000'000;
    point.offset_ns = 5'000 + ms * 3;  // 3 us a second
    point.bound_ns = 720;
    point.round_trip_ns = 1'250;
  }
  const ClockLine line = align_points(points);
  ASSERT_TRUE(line.aligned()) << line.reason;
  EXPECT_GE(line.bound_ns, 720);  // what the two ways may differ by stays in it
  EXPECT_LE(line.bound_ns, 720 + 2 * 95 * 690 / 1'220 + 1);
  for (ClockOffset& point : points) point.round_trip_ns = 0;  // nothing known of the fastest
  EXPECT_GT(align_points(points).bound_ns, 1'200);
  for (std::size_t i = 3; i < points.size(); ++i) points[i].offset_ns += 3'000;
  EXPECT_FALSE(align_points(points).aligned());  // the step is found as before
}

}  // namespace
}  // namespace tpjitter
