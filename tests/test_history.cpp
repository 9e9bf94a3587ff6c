#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "harness/contract/error.h"
#include "harness/contract/thresholds.h"
#include "reports/gate.h"
#include "reports/history.h"

namespace tpjitter {
namespace {

class HistoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        std::filesystem::path(::testing::TempDir()) /
        ("history_" + std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()));
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    file_ = folder_ / "h.sqlite";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // A run of one launch, begun `minute` minutes after the epoch.
  static LaunchSet run(int minute, std::int64_t dispatch_ns) {
    LaunchSet set;
    set.scenario = "s";
    set.backend = "cuda";
    set.world_size = 2;
    set.case_values["fused"] = Json::object();
    LaunchResult& launch = set.launches.emplace_back();
    launch.source = "runs/" + std::to_string(minute);
    launch.began_ns = std::int64_t{60'000'000'000} * minute;
    for (std::size_t m = 0; m < kNumMetrics; ++m) {
      if (std::string(metrics()[m].key) != "dispatch_ns") continue;
      launch.cases["fused"].metrics[m].n = 1000;
      launch.cases["fused"].metrics[m].p50 = dispatch_ns;
    }
    return set;
  }

  std::filesystem::path folder_, file_;
};

TEST_F(HistoryTest, WhatIsAddedComesBackInTimeOrder) {
  History history(file_, true);
  EXPECT_EQ(history.add(run(2, 200)), 1);
  EXPECT_EQ(history.add(run(1, 100)), 2);
  EXPECT_EQ(history.add(run(2, 200)), std::nullopt);  // the same run again
  const auto series = history.series();
  ASSERT_EQ(series.size(), 1u);
  EXPECT_EQ(series[0].metric, "dispatch_ns");
  EXPECT_EQ(series[0].values, (std::vector<double>{100, 200}));
  EXPECT_EQ(history.entries().front().source, "runs/1");
  EXPECT_EQ(history.to_json().at("schema"), kHistorySchema);
}

TEST_F(HistoryTest, ALastingRiseIsWorseAndARecoveredOneIsNot) {
  History history(file_, true);
  for (int i = 0; i < 12; ++i) history.add(run(i, 100'000 + 100 * (i % 3)));
  for (int i = 12; i < 24; ++i) history.add(run(i, 130'000 + 100 * (i % 3)));
  auto changes = history_changes(history.series(), 0.1, 2'000);
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_TRUE(changes[0].worse && changes[0].latest);
  EXPECT_EQ(changes[0].change.index, 12u);
  EXPECT_FALSE(history_changes(history.series(), 0.5, 2'000)[0].worse);
  for (int i = 24; i < 36; ++i) history.add(run(i, 100'000 + 100 * (i % 3)));
  changes = history_changes(history.series(), 0.1, 2'000);
  ASSERT_EQ(changes.size(), 2u);
  EXPECT_FALSE(changes[0].latest);
  EXPECT_FALSE(changes[1].worse);
}

TEST_F(HistoryTest, ACreepOfSmallStepsIsWorseInTheEnd) {
  History history(file_, true);
  for (int i = 0; i < 48; ++i) history.add(run(i, 100'000 + 8'000 * (i / 12) + 100 * (i % 3)));
  const auto changes = history_changes(history.series(), 0.1, 2'000);
  ASSERT_EQ(changes.size(), 3u);
  EXPECT_FALSE(changes[0].worse);
  EXPECT_TRUE(changes[2].worse && changes[2].latest);
}

TEST_F(HistoryTest, AnotherMachineIsAnotherSeries) {
  History history(file_, true);
  history.add(run(1, 100));
  LaunchSet other = run(2, 100);
  other.environment["cpu_model"] = "another";
  history.add(other);
  EXPECT_EQ(history.series().size(), 2u);
}

TEST_F(HistoryTest, ConcurrentWritersLoseNothing) {
  { History made(file_, true); }
  std::vector<std::thread> writers;
  for (int w = 0; w < 4; ++w) {
    writers.emplace_back([this, w] {
      History history(file_, true);
      for (int i = 0; i < 10; ++i) history.add(run(100 * w + i, 1'000));
    });
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(History(file_, false).entries().size(), 40u);
}

TEST_F(HistoryTest, AKillAtAnyMomentLeavesAWholeFile) {
  for (int round = 0; round < 10; ++round) {
    int told[2];
    ASSERT_EQ(pipe(told), 0);
    const pid_t child = fork();
    if (child == 0) {
      History history(file_, true);
      for (int i = 0; i < 1000; ++i) {
        history.add(run(1000 * round + i, 1'000));
        if (write(told[1], "x", 1) != 1) _exit(1);
      }
      _exit(0);
    }
    char byte;
    for (int i = 0; i <= round; ++i) ASSERT_EQ(read(told[0], &byte, 1), 1);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    close(told[0]);
    close(told[1]);
    const History history(file_, false);
    const auto entries = history.entries();
    EXPECT_GE(entries.size(), static_cast<std::size_t>(round + 1));
    // Every entry has its values.
    EXPECT_EQ(history.series().at(0).values.size(), entries.size());
  }
}

TEST_F(HistoryTest, OtherFilesAreRefused) {
  EXPECT_THROW(History(folder_ / "none.sqlite", false), ConfigError);
  std::ofstream(folder_ / "text") << "this is no database, whatever it is called, at all ......";
  EXPECT_THROW(History(folder_ / "text", true), RecordError);
  EXPECT_THROW(History(folder_, true), Error);
}

}  // namespace
}  // namespace tpjitter
