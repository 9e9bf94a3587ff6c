// The judge of the selftest against records whose truth is known: the honest ones pass, and each
// way to lie is found out.
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <string>

#include "reports/pair_clock.h"
#include "reports/selftest.h"
#include "reports/selftest_samples.h"
#include "tests/run_directory.h"
#include "tests/selftest_record.h"

namespace tpjitter {
namespace {

Json judged(const GeneratedRun& run) { return selftest(RunDirectory(run).read()); }

Json judged(const SelftestRecord& truth) { return judged(generate_selftest(truth)); }

// All that failed, a line each.
std::string failures(const Json& document) {
  std::string text;
  for (const Json& problem : document["problems"]) text += problem.get<std::string>() + '\n';
  for (const Json& row : document["rows"]) {
    for (const Json& reason : row["reasons"]) {
      text += row["inject"].get<std::string>() + ' ' + row["injected_ns"].dump() + ": " +
              reason.get<std::string>() + '\n';
    }
  }
  return text;
}

std::vector<Json> rows_of(const Json& document, const std::string& place, std::int64_t delay_ns) {
  std::vector<Json> rows;
  for (const Json& row : document["rows"]) {
    if (row["inject"] == place && row["injected_ns"] == delay_ns) rows.push_back(row);
  }
  return rows;
}

TEST(SelftestOfAnHonestRecord, PassesOnTheModelledDeviceAndGivesEveryDelayBack) {
  const Json document = judged(SelftestRecord{});
  EXPECT_TRUE(document["pass"].get<bool>()) << failures(document);
  // Rotating victims at 3 places and 7 delays, each of 2 ranks; fixed and random ones at one delay.
  EXPECT_EQ(document["rows"].size(), 3 * (7 * 2 + 1 + 2));
  for (const Json& row : document["rows"]) {
    const std::int64_t delay = row["injected_ns"];
    EXPECT_EQ(row["actual_ns"], delay);
    EXPECT_EQ(row["recovered_ns"], delay) << row.dump();
    EXPECT_EQ(row["recovered_excess_wait_ns"], delay) << row.dump();
    EXPECT_EQ(row["recovered_skew_ns"], row["inject"] == "gpu" ? 0 : delay);
    EXPECT_EQ(row["error_ns"]["max"], 0);
    EXPECT_EQ(row["arrival_gap_error_ns"]["max"], 0);
    if (delay < 20'000) continue;  // above the 4 stages of up to 3 us
    EXPECT_EQ(row["laggard_right"], 1.0);
    EXPECT_EQ(row["stage_right"], 1.0);
  }
}

TEST(SelftestOfAnHonestRecord, PassesOnGpusWhoseClocksDiffer) {
  for (const int world_size : {2, 4}) {
    SelftestRecord truth;
    truth.backend = "cuda";
    truth.world_size = world_size;
    const Json document = judged(truth);
    EXPECT_TRUE(document["pass"].get<bool>()) << failures(document);
    for (const Json& row : rows_of(document, "gpu", 50'000)) {
      EXPECT_NEAR(row["recovered_ns"].get<double>(), 50'000, 200);
      EXPECT_LE(row["arrival_gap_error_ns"]["p95"].get<std::int64_t>(), 250);
      EXPECT_NEAR(row["flight_shift_ns"].get<double>(), 400, 100) << "over the controls' floor";
      EXPECT_EQ(row["laggard_right"], 1.0);
    }
  }
}

TEST(SelftestOfAnHonestRecord, PassesWithMoreRanksThanCpusByOrderAndLaggard) {
  SelftestRecord truth;
  truth.world_size = 4;
  truth.natural_ns = 20'000;
  const Json document = judged(truth);
  EXPECT_FALSE(document["ranks_fit_cpus"].get<bool>());
  EXPECT_TRUE(document["pass"].get<bool>()) << failures(document);
  for (const Json& row : rows_of(document, "before_launch", 250'000)) {
    EXPECT_TRUE(row["targets"]["error_p50_ns"].is_null());
    EXPECT_EQ(row["targets"]["arrival_gap_error_max_ns"], 0);
    EXPECT_EQ(row["laggard_right"], 1.0);
  }
}

TEST(SelftestOfAnHonestRecord, DoesNotJudgeTheLaggardBelowTheStepsOwnSkew) {
  SelftestRecord truth;
  truth.natural_ns = 30'000;
  const Json document = judged(truth);
  EXPECT_TRUE(document["pass"].get<bool>()) << failures(document);
  for (const Json& row : rows_of(document, "before_dispatch", 1'000)) {
    EXPECT_TRUE(row["laggard_right"].is_null());
    EXPECT_FALSE(row["notes"].empty());
    EXPECT_EQ(row["recovered_ns"], 1'000) << "the delay is found even so";
  }
}

// A GPU that now and then starts late makes another rank than the victim the last one. The host's
// stamps do not show it; the calibrated clocks do, and such a replay proves nothing about laggards.
TEST(SelftestOfAnHonestRecord, LeavesOutReplaysWhoseVictimTheClocksDoNotShowAsTheLast) {
  SelftestRecord truth;
  truth.backend = "cuda";
  truth.natural_ns = 100;
  truth.slow_start_ns = 9'000;
  const Json without = judged(truth);
  EXPECT_FALSE(without["pass"].get<bool>());
  EXPECT_NE(failures(without).find("before_launch 5000: laggard right in 9"), std::string::npos)
      << failures(without);
  truth.clocks = true;
  const Json document = judged(truth);
  EXPECT_TRUE(document["pass"].get<bool>()) << failures(document);
  for (const Json& row : rows_of(document, "before_launch", 5'000)) {
    EXPECT_NEAR(row["not_last"].get<double>(), 19, 2) << row.dump();  // of 210
    EXPECT_GT(row["judged"], 150);
    EXPECT_EQ(row["laggard_right"], 1.0);
  }
  for (const Json& row : rows_of(document, "before_launch", 50'000)) EXPECT_EQ(row["not_last"], 0);
  // A fixed victim never waits for the others: only calibrated clocks tell its delay on the GPU.
  for (const Json& row : rows_of(document, "gpu", 250'000)) {
    EXPECT_LE(row["error_ns"]["p50"], 250) << row.dump();
    EXPECT_LE(row["arrival_gap_error_ns"]["p95"], 250) << row.dump();
  }
  for (const Json& row : rows_of(without, "gpu", 250'000)) {
    EXPECT_EQ(row["error_ns"]["p50"].is_null(), row["pattern"] == "fixed");
  }
}

// Two that wait for a third are as far apart as their waits say, two that wait for each other half.
TEST(SelftestOfAnHonestRecord, ComparesArrivalsOfRanksThatWaitedForAnother) {
  SelftestRecord truth;
  truth.backend = "cuda";
  truth.world_size = 4;
  truth.natural_ns = 300;  // all four within a flight of 1.8 us
  const RunDirectory directory(generate_selftest(truth));
  int compared = 0;
  for (const DelayCase& c : delay_cases(directory.read())) {
    if (c.config.inject_where == "gpu" || c.asked_ns != 0) continue;
    for (const auto& samples : c.samples) {
      for (const DelaySample& s : samples) {
        ASSERT_TRUE(s.excess_wait_ns);
        EXPECT_NEAR(static_cast<double>(*s.excess_wait_ns), 0, 132);  // of the GPUs: twice 64
        ++compared;
      }
    }
  }
  EXPECT_GT(compared, 1'000);
}

struct Lie {
  RecordLie lie;
  const char* name;
  const char* found;  // in what failed
};

class SelftestOfALyingRecord : public testing::TestWithParam<Lie> {};

TEST_P(SelftestOfALyingRecord, Fails) {
  for (const char* backend : {"host", "cuda"}) {
    SelftestRecord truth;
    truth.backend = backend;
    truth.lie = GetParam().lie;
    const Json document = judged(truth);
    EXPECT_FALSE(document["pass"].get<bool>()) << backend;
    EXPECT_NE(failures(document).find(GetParam().found), std::string::npos) << backend << ":\n"
                                                                            << failures(document);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Every, SelftestOfALyingRecord,
    testing::Values(
        Lie{RecordLie::kDeviceStampsSwapped, "DeviceStampsSwapped", "1000000: laggard"},
        Lie{RecordLie::kRowsSwapped, "RowsSwapped", "another delay than the scenario's"},
        Lie{RecordLie::kWaitsLonger, "WaitsLonger", "1000000: excess wait against the arrival gap"},
        Lie{RecordLie::kDelayLost, "DelayLost", "delays are shorter than asked"},
        Lie{RecordLie::kDelayNotRecorded, "DelayNotRecorded", "the row says 0 ns"},
        Lie{RecordLie::kDelayElsewhere, "DelayElsewhere", "gpu 1000000: actual against injected"},
        Lie{RecordLie::kDelayShared, "DelayShared", "before_launch 250000: error p"},
        Lie{RecordLie::kOwnShifted, "OwnShifted", "1000000: excess wait against the arrival gap"}),
    [](const testing::TestParamInfo<Lie>& lie) { return lie.param.name; });

TEST(SelftestOfALyingRecord, FailsWithMoreRanksThanCpusToo) {
  for (const RecordLie lie :
       {RecordLie::kDeviceStampsSwapped, RecordLie::kRowsSwapped, RecordLie::kWaitsLonger,
        RecordLie::kDelayLost, RecordLie::kDelayNotRecorded, RecordLie::kDelayElsewhere,
        RecordLie::kDelayShared, RecordLie::kOwnShifted}) {
    SelftestRecord truth;
    truth.cpus = 1;
    truth.lie = lie;
    EXPECT_FALSE(judged(truth)["pass"].get<bool>()) << static_cast<int>(lie);
  }
}

// What the clocks do not show as last is not judged, so it must not be much of a long delay's.
TEST(SelftestOfALyingRecord, FailsWhereAShiftedStampLeavesTooManyReplaysOut) {
  SelftestRecord truth;
  truth.backend = "cuda";
  truth.clocks = true;
  truth.lie = RecordLie::kOwnShifted;
  EXPECT_NE(failures(judged(truth))
                .find("before_launch 1000000: the calibrated clocks do not show the victim as the "
                      "last in "),
            std::string::npos)
      << failures(judged(truth));
  truth.delays = 20;  // too few are left to judge, and the reason says why
  const std::string few = failures(judged(truth));
  EXPECT_NE(few.find("of these the calibrated clocks do not show the victim as the last; 20 are "),
            std::string::npos)
      << few;
}

TEST(SelftestOfALyingRecord, NamesTheFileWhoseRowsCarryAnothersDelay) {
  GeneratedRun run = generate_selftest({.delays = 20});
  std::swap(run.rows[0][30].injected_ns, run.rows[1][30].injected_ns);
  std::swap(run.rows[0][70].injected_ns, run.rows[1][70].injected_ns);
  EXPECT_NE(failures(judged(run)).find("rows carry an injected delay, but this rank is not"),
            std::string::npos);
}

TEST(SelftestOfAnIncompleteRecord, NamesTheMissingRung) {
  GeneratedRun run = generate_selftest({.delays = 20});
  run.info.cases[4].skip_reason = "not on this machine";  // before_dispatch/rotating/50us
  const Json document = judged(run);
  EXPECT_FALSE(document["pass"].get<bool>());
  EXPECT_NE(failures(document).find("no case injects 50 us before_dispatch"), std::string::npos);
}

TEST(SelftestOfAnIncompleteRecord, FailsWithoutInjectedDelaysAtAll) {
  const Json document = judged(generate_run({}));
  EXPECT_FALSE(document["pass"].get<bool>());
  EXPECT_TRUE(document["rows"].empty());
}

TEST(SelftestOfAnIncompleteRecord, FailsWhereDeviceStampsWereLost) {
  for (const char* backend : {"host", "cuda"}) {
    GeneratedRun run = generate_selftest({.backend = backend});
    for (auto& rows : run.rows) {
      for (PhaseRow& row : rows) row.flags |= kFlagNoDeviceStamps;
    }
    const Json document = judged(run);
    EXPECT_FALSE(document["pass"].get<bool>());
    EXPECT_NE(failures(document).find("before_launch 250000: excess wait against the arrival gap"),
              std::string::npos)
        << failures(document);
  }
}

TEST(SelftestOfAnIncompleteRecord, FailsWhereTheRunDidNotEndWell) {
  GeneratedRun run = generate_selftest({.delays = 20});
  run.info.status = "incomplete";
  run.info.status_reason = "rank 1 died";
  EXPECT_NE(failures(judged(run)).find("rank 1 died"), std::string::npos);
}

TEST(SelftestText, EndsInAVerdictAndNamesWhatFailed) {
  for (const RecordLie lie : {RecordLie::kNone, RecordLie::kWaitsLonger}) {
    std::ostringstream text;
    write_selftest_text(judged(SelftestRecord{.lie = lie}), text);
    const std::string shown = text.str();
    const bool honest = lie == RecordLie::kNone;
    EXPECT_NE(shown.find(honest ? "selftest passed: 51 of 51 rows" : "selftest FAILED: "),
              std::string::npos)
        << shown;
    EXPECT_EQ(shown.find("FAIL ") == std::string::npos, honest) << shown;
    EXPECT_EQ(shown.back(), '\n');
  }
}

TEST(PairClock, FindsAnOffsetThatDriftsWhateverTheFlight) {
  PairClock clock;
  const auto offset = [](std::int64_t t) { return 7'000'000 + t / 100'000; };
  for (std::int64_t i = 0; i < 50; ++i) {
    const std::int64_t t = i * 1'000'000;
    i % 2 == 0 ? clock.a_waited(t, offset(t) + 2'000) : clock.b_waited(t, offset(t) - 2'000);
  }
  clock.sort();
  for (std::int64_t i = 10; i < 40; ++i) {
    const auto found = clock.at(i * 1'000'000);
    ASSERT_TRUE(found);
    EXPECT_NEAR(static_cast<double>(*found), static_cast<double>(offset(i * 1'000'000)), 15);
  }
}

TEST(PairClock, NeverJudgesAnAllReduceByItself) {
  PairClock clock;
  for (std::int64_t i = 0; i < 20; ++i) {
    clock.a_waited(i * 2'000, i == 10 ? 900'000 : 2'000);
    clock.b_waited(i * 2'000 + 1'000, -2'000);
  }
  clock.sort();
  EXPECT_EQ(clock.at(20'000), 0) << "its own wrong stamp must not move the offset that judges it";
}

TEST(PairClock, GivesNothingFromOneDirectionOrFromFarAway) {
  PairClock one_way, far;
  for (std::int64_t i = 0; i < 20; ++i) {
    one_way.a_waited(i, 0);
    far.a_waited(i, 0);
    far.b_waited(i, 0);
  }
  one_way.sort();
  far.sort();
  EXPECT_FALSE(one_way.at(10));
  EXPECT_TRUE(far.at(10));
  EXPECT_FALSE(far.at(1'000'000'000));
}

}  // namespace
}  // namespace tpjitter
