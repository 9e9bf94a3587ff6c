// Damage that looks like time: each kind is named, counted, and never cut to fit.
#include <gtest/gtest.h>

#include <algorithm>

#include "reports/record_checks.h"
#include "reports/summary_view.h"
#include "tests/run_directory.h"

namespace tpjitter {
namespace {

GeneratedRun gpu_run(int world_size = 2) {
  GeneratorConfig config;
  config.backend = "cuda";
  config.world_size = world_size;
  return generate_run(config);
}

const RunWarning* find(const std::vector<RunWarning>& problems, const std::string& code) {
  const auto found = std::find_if(problems.begin(), problems.end(),
                                  [&](const RunWarning& p) { return p.code == code; });
  return found == problems.end() ? nullptr : &*found;
}

// The problem of that name, on that rank, that counts so many rows.
void expect_named(const GeneratedRun& run, const std::string& code, int rank,
                  const std::string& count) {
  const auto read = RunDirectory(run).read();
  const RunWarning* problem = find(read.problems, code);
  ASSERT_NE(problem, nullptr) << code;
  EXPECT_EQ(problem->rank, rank) << code;
  EXPECT_NE(problem->text.find(": " + count + " rows"), std::string::npos) << problem->text;
  EXPECT_EQ(summarize(read).exit_code, 3) << code;
}

TEST(RecordChecks, AWholeRunOfGpusHasNothingToName) {
  for (const int world_size : {1, 2, 4}) {
    EXPECT_TRUE(RunDirectory(gpu_run(world_size)).read().problems.empty()) << world_size;
  }
}

TEST(RecordChecks, AStampThatWrappedWithinARowIsNamedAndTheRowLeftOut) {
  const auto wrap = [](std::int64_t* stamp) { *stamp -= std::int64_t{1} << 32; };
  GeneratedRun host = gpu_run();
  wrap(&host.rows[1][7].dispatch_end_ns);
  wrap(&host.rows[1][7].launch_begin_ns);
  wrap(&host.rows[1][7].launch_end_ns);
  expect_named(host, "wrapped_stamps", 1, "1");
  GeneratedRun device = gpu_run();
  wrap(&device.rows[0][7].first_all_reduce_last_seen_ns);
  wrap(&device.rows[0][9].gpu_end_ns);
  expect_named(device, "wrapped_stamps", 0, "2");
  const Json metric =
      RunDirectory(device).summary().document["cases"][0]["metrics"]["first_all_reduce_wait_ns"];
  EXPECT_EQ(metric["negative"], 0);  // 4.3 s less than nothing would be the p99 of a small run
}

TEST(RecordChecks, AHostClockThatGoesBackIsNamed) {
  GeneratedRun run = gpu_run();
  for (std::size_t i = 20; i < run.rows[0].size(); ++i) {  // as where a counter wraps between rows
    PhaseRow& row = run.rows[0][i];
    for (std::int64_t* stamp :
         {&row.coupling_begin_ns, &row.accept_seen_ns, &row.inputs_begin_ns, &row.inputs_end_ns,
          &row.dispatch_begin_ns, &row.dispatch_end_ns, &row.launch_begin_ns, &row.launch_end_ns}) {
      *stamp -= std::int64_t{1} << 32;
    }
  }
  expect_named(run, "clock_went_back", 0, "1");
}

TEST(RecordChecks, CountersBelowZeroAreNamed) {
  GeneratedRun run = gpu_run();
  run.rows[1][3].context_switches_voluntary = -1;
  run.rows[1][4].faults_minor = INT32_MIN;
  run.rows[1][5].all_reduce_count = -72;
  expect_named(run, "negative_counters", 1, "3");
}

TEST(RecordChecks, DeviceStampsThatAreZeroWithoutTheirFlagAreNamed) {
  GeneratedRun run = gpu_run();
  run.rows[0][3].gpu_begin_ns = 0;
  run.rows[0][4].gpu_end_ns = 0;
  run.rows[0][5].first_all_reduce_end_ns = 0;
  expect_named(run, "zero_device_stamps", 0, "3");

  GeneratedRun flagged = gpu_run();
  for (int i = 30; i < 40; ++i) {  // the block that a killed rank loses
    PhaseRow& row = flagged.rows[0][i];
    row.flags |= kFlagNoDeviceStamps;
    row.gpu_begin_ns = row.gpu_end_ns = row.first_all_reduce_own_ns = 0;
    row.first_all_reduce_last_seen_ns = row.first_all_reduce_end_ns = 0;
  }
  EXPECT_EQ(find(RunDirectory(flagged).read().problems, "zero_device_stamps"), nullptr);
}

TEST(RecordChecks, NegativeDifferencesAreKeptCountedAndShown) {
  GeneratedRun run = gpu_run();
  for (int i = 2; i < 12; ++i) {  // ends 30 us before it began: another clock than the begin's
    run.rows[0][i].dispatch_end_ns = run.rows[0][i].dispatch_begin_ns - 30'000;
    run.rows[1][i].dispatch_end_ns = run.rows[1][i].dispatch_begin_ns - 30'000;
  }
  const Json metric = RunDirectory(run).summary().document["cases"][0]["metrics"]["dispatch_ns"];
  EXPECT_EQ(metric["negative"], 10);
  EXPECT_EQ(metric["min"], -30'000);
  EXPECT_EQ(metric["n"], 38);
}

TEST(RecordChecks, NegativeDifferencesOfOneRankAreShownThoughTheMaximumHidesThem) {
  GeneratedRun run = gpu_run();
  run.rows[1][7].dispatch_end_ns = run.rows[1][7].dispatch_begin_ns - 30'000;
  const Json summary = RunDirectory(run).summary().document;
  EXPECT_EQ(summary["cases"][0]["metrics"]["dispatch_ns"]["negative"], 0);
  EXPECT_EQ(summary["cases"][0]["ranks"][1]["metrics"]["dispatch_ns"]["negative"], 1);
  const std::vector<std::string> lines = reason_lines(summary, summary["cases"][0]);
  EXPECT_TRUE(std::any_of(lines.begin(), lines.end(), [](const std::string& line) {
    return line.find("rank 1: 1 of 38 values of dispatch_ns are negative") == 0;
  }));
}

TEST(RecordChecks, UnequalCountsAreNamedAndNeverCutToTheShortest) {
  GeneratedRun run = gpu_run();
  run.rows[1].erase(run.rows[1].begin() + 10);  // in the middle: no cut would hide it
  const auto read = RunDirectory(run).read();
  ASSERT_NE(find(read.problems, "unequal_rows"), nullptr);
  const Json summary = summarize(read).document;
  const Json& c = summary["cases"][0];
  EXPECT_EQ(c["rebuilds"], 40);
  EXPECT_EQ(c["ranks"][0]["rows"], 38);  // without the first of each block
  EXPECT_EQ(c["ranks"][1]["rows"], 37);
  EXPECT_EQ(c["metrics"]["launch_skew_ns"]["n"], 37);   // two left out, one without a partner
  EXPECT_EQ(c["metrics"]["launch_skew_ns"]["max"], 0);  // later steps are still matched
}

TEST(RecordChecks, ADuplicateAndAMissingRankAreNamed) {
  GeneratedRun twice = gpu_run();
  twice.info.ranks[1].rank = 0;
  EXPECT_NE(find(RunDirectory(twice).read().problems, "duplicate_rank"), nullptr);
  RunDirectory missing(gpu_run(3));
  std::filesystem::remove(missing.path() / "rank1.phases.npy");
  const auto read = missing.read();
  const RunWarning* problem = find(read.problems, "missing_rank");
  ASSERT_NE(problem, nullptr);
  EXPECT_EQ(problem->rank, 1);
}

// What stands first after a pause is kept in the file and left out of every figure.
TEST(LeftOut, TheFirstReplayOfAnyKindIsInNoFigureOnAnyRank) {
  for (const std::uint32_t flag : {kFlagFirstAfterWarmup, kFlagFirstOfBlock}) {
    for (const int rank : {0, 1}) {
      GeneratedRun run = gpu_run();
      for (auto& rows : run.rows) {
        for (PhaseRow& row : rows) row.flags &= ~(kFlagFirstAfterWarmup | kFlagFirstOfBlock);
      }
      // 3.5 ms late, as ranks are after they did other work; flagged on one rank only.
      PhaseRow& late = run.rows[1][17];
      late.flags &= ~kFlagWaited;
      for (std::int64_t* stamp :
           {&late.dispatch_end_ns, &late.launch_begin_ns, &late.launch_end_ns,
            &late.first_all_reduce_own_ns, &late.first_all_reduce_last_seen_ns,
            &late.first_all_reduce_end_ns, &late.gpu_end_ns}) {
        *stamp += 3'500'000;
      }
      run.rows[0][17].first_all_reduce_last_seen_ns += 3'500'000;
      run.rows[0][17].first_all_reduce_end_ns += 3'500'000;
      const Json before = RunDirectory(run).summary().document["cases"][0];
      EXPECT_EQ(before["metrics"]["launch_skew_ns"]["max"], 3'500'000);
      run.rows[static_cast<std::size_t>(rank)][17].flags |= flag;
      const RunDirectory directory(run);
      const Json after = directory.summary().document["cases"][0];
      EXPECT_EQ(after["left_out"], 1);
      EXPECT_EQ(after["rebuilds"], 40);  // still in the record
      EXPECT_EQ(directory.read().ranks[1].written, 40u);
      for (const auto& [key, metric] : after["metrics"].items()) {
        if (metric["max"].is_null()) continue;
        EXPECT_LT(metric["max"].get<std::int64_t>(), 3'000'000) << key;
      }
      for (const auto& [key, metric] : after["ranks"][1]["metrics"].items()) {
        if (metric["max"].is_null()) continue;
        EXPECT_LT(metric["max"].get<std::int64_t>(), 3'000'000) << key;
      }
      EXPECT_EQ(after["attribution"]["replays"], 39);
    }
  }
}

}  // namespace
}  // namespace tpjitter
