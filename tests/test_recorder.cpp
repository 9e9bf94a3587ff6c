#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "harness/contract/error.h"
#include "harness/contract/npy.h"
#include "harness/recorder.h"

namespace tpjitter {
namespace fs = std::filesystem;
namespace {

class RecorderTest : public testing::Test {
 protected:
  void SetUp() override {
    fs::remove_all(directory_);
    fs::create_directories(directory_);
  }
  void TearDown() override { fs::remove_all(directory_); }

  static std::vector<PhaseRow> rows(int first, int count) {
    std::vector<PhaseRow> out(count);
    for (int i = 0; i < count; ++i) {
      out[i].sequence = 1 + first + i;
      out[i].step = first + i;
      out[i].launch_begin_ns = 1'000'000'000'000LL * (first + i);
    }
    return out;
  }

  fs::path directory_ = fs::path(testing::TempDir()) / "recorder_test";
};

TEST_F(RecorderTest, WhatWasAppendedIsReadableBeforeTheEnd) {
  Recorder recorder(directory_, 2, 1000);
  recorder.append(1, rows(0, 3));
  recorder.append(1, rows(3, 4));
  const NpyFile file(directory_ / "rank1.phases.npy");
  EXPECT_EQ(file.declared_rows(), 7u);
  ASSERT_EQ(file.row_size(), sizeof(PhaseRow));
  for (int i = 0; i < 7; ++i) {
    EXPECT_EQ(reinterpret_cast<const PhaseRow*>(file.row(i))->step, i);
  }
  EXPECT_EQ(NpyFile(directory_ / "rank0.phases.npy").declared_rows(), 0u);
}

TEST_F(RecorderTest, FinishGivesBackWhatWasReserved) {
  Recorder recorder(directory_, 1, 100'000);
  recorder.append(0, rows(0, 10));
  const auto reserved = fs::file_size(directory_ / "rank0.phases.npy");
  recorder.finish();
  EXPECT_GT(reserved, 100'000 * sizeof(PhaseRow));
  EXPECT_LT(fs::file_size(directory_ / "rank0.phases.npy"), 11 * sizeof(PhaseRow) + 8192);
  EXPECT_EQ(NpyFile(directory_ / "rank0.phases.npy").rows(), 10u);
}

TEST_F(RecorderTest, NamesTheFileWhenThereIsNoRoom) {
  try {
    Recorder recorder(directory_, 1, std::int64_t{1} << 50);
    FAIL() << "no disk has room for that";
  } catch (const RunError& error) {
    EXPECT_NE(std::string(error.what()).find("rank0.phases.npy"), std::string::npos);
  }
}

TEST_F(RecorderTest, ADirectoryThatIsNoRunIsNeverTouched) {
  std::ofstream(directory_ / "thesis.tex") << "years of work";
  EXPECT_THROW(RunDirectoryLock(directory_, false), ConfigError);
  EXPECT_THROW(RunDirectoryLock(directory_, true), ConfigError);
  EXPECT_TRUE(fs::exists(directory_ / "thesis.tex"));
}

TEST_F(RecorderTest, ARunIsReplacedOnlyWhenAskedAndOnlyItsOwnFiles) {
  std::ofstream(directory_ / "run.json") << R"({"schema": "tpjitter.run/1"})";
  std::ofstream(directory_ / "rank0.phases.npy") << "old";
  std::ofstream(directory_ / "report.html") << "of the old run";
  std::ofstream(directory_ / "notes.md") << "mine";
  EXPECT_THROW(RunDirectoryLock(directory_, false), ConfigError);
  EXPECT_TRUE(fs::exists(directory_ / "run.json"));
  const RunDirectoryLock lock(directory_, true);
  EXPECT_FALSE(fs::exists(directory_ / "run.json"));
  EXPECT_FALSE(fs::exists(directory_ / "rank0.phases.npy"));
  EXPECT_FALSE(fs::exists(directory_ / "report.html"));
  EXPECT_TRUE(fs::exists(directory_ / "notes.md"));
}

TEST_F(RecorderTest, ADirectoryWithAForeignRunJsonIsLeftAlone) {
  std::ofstream(directory_ / "run.json") << "{}";
  EXPECT_THROW(RunDirectoryLock(directory_, true), ConfigError);
  EXPECT_TRUE(fs::exists(directory_ / "run.json"));
}

TEST_F(RecorderTest, ADirectoryThatARunWritesToIsRefusedToAnother) {
  {
    const RunDirectoryLock first(directory_, false);
    EXPECT_THROW(RunDirectoryLock(directory_, true), ConfigError);
  }
  EXPECT_NO_THROW(RunDirectoryLock(directory_, true));
}

TEST_F(RecorderTest, AFileInPlaceOfTheDirectoryIsRefused) {
  std::ofstream(directory_ / "file") << "x";
  EXPECT_THROW(RunDirectoryLock(directory_ / "file", true), ConfigError);
  EXPECT_THROW(RunDirectoryLock(directory_ / "file" / "below", false), ConfigError);
}

}  // namespace
}  // namespace tpjitter
