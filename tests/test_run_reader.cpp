#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>

#include "harness/contract/error.h"
#include "reports/run_reader.h"
#include "tests/run_directory.h"

namespace tpjitter {
namespace {

namespace fs = std::filesystem;

bool names(const Run& run, const std::string& code, std::optional<int> rank = std::nullopt) {
  return std::any_of(run.problems.begin(), run.problems.end(), [&](const RunWarning& problem) {
    return problem.code == code && (!rank || problem.rank == rank);
  });
}

void resize(const fs::path& file, std::int64_t change) {
  fs::resize_file(
      file, static_cast<std::uintmax_t>(static_cast<std::int64_t>(fs::file_size(file)) + change));
}

constexpr auto kRowSize = static_cast<std::int64_t>(sizeof(PhaseRow));

TEST(RunReader, AWholeRunHasAllRowsAndNoProblem) {
  const RunDirectory directory{GeneratorConfig{}};
  const auto run = directory.read();
  EXPECT_EQ(run.rows, 80u);
  EXPECT_TRUE(run.problems.empty());
  EXPECT_EQ(run.ranks[1].rows_of_case[0].size(), 40u);
  EXPECT_EQ(directory.summary().exit_code, kExitPass);
}

TEST(RunReader, RowsThatWereNeverWrittenAreIgnored) {
  GeneratedRun generated = generate_run({});
  for (auto& rows : generated.rows) rows.resize(rows.size() + 100, PhaseRow{});
  const RunDirectory directory;
  write_run(directory.path(), generated);
  RunInfo info = read_run_json(directory.path());
  for (RunRank& rank : info.ranks) rank.rows = 40;
  write_run_json(directory.path(), info);
  const auto run = directory.read();
  EXPECT_EQ(run.rows, 80u);
  EXPECT_TRUE(run.problems.empty());
}

TEST(RunReader, AMissingRankFileIsNamedAndTheOtherRankStillReported) {
  const RunDirectory directory{GeneratorConfig{}};
  fs::remove(directory.path() / "rank1.phases.npy");
  const auto run = directory.read();
  EXPECT_TRUE(names(run, "missing_rank", 1));
  EXPECT_EQ(run.ranks[0].written, 40u);
  const Summary summary = directory.summary();
  EXPECT_EQ(summary.exit_code, kExitRunFailed);
  EXPECT_EQ(summary.document["status"], "incomplete");
  const Json& c = summary.document["cases"][0];
  EXPECT_EQ(c["metrics"]["dispatch_ns"]["n"], 0);
  EXPECT_EQ(c["metrics"]["dispatch_ns"]["reasons"]["p50"], "no replay was recorded by every rank");
  EXPECT_EQ(c["ranks"][0]["metrics"]["dispatch_ns"]["p50"], 20000);
  EXPECT_EQ(summary.document["ranks"][1]["status"], "missing");
}

TEST(RunReader, ATruncatedFileGivesItsWholeRows) {
  const RunDirectory directory{GeneratorConfig{}};
  resize(directory.path() / "rank1.phases.npy", -5 * kRowSize / 2);
  const auto run = directory.read();
  EXPECT_EQ(run.ranks[1].written, 37u);
  EXPECT_TRUE(names(run, "truncated_file", 1));
  EXPECT_TRUE(names(run, "fewer_rows", 1));
  EXPECT_TRUE(names(run, "unequal_rows"));
  EXPECT_EQ(directory.summary().document["cases"][0]["metrics"]["dispatch_ns"]["n"], 35);
}

TEST(RunReader, EveryTruncationIsReportedAndNeverACrash) {
  const RunDirectory directory{GeneratorConfig{}};
  const fs::path file = directory.path() / "rank0.phases.npy";
  for (auto size = fs::file_size(file); size > 311; size -= 311) {
    fs::resize_file(file, size - 311);
    EXPECT_EQ(directory.summary().exit_code, kExitRunFailed) << size;
  }
}

TEST(RunReader, RowsPastTheDeclaredEndAreRecovered) {
  const GeneratedRun generated = generate_run({});
  const RunDirectory directory(generated);
  const fs::path file = directory.path() / "rank0.phases.npy";
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream << npy_header(phase_row_fields(), sizeof(PhaseRow), 30);
  stream.close();
  resize(file, 50 * kRowSize);
  const auto run = directory.read();
  EXPECT_EQ(run.ranks[0].written, 40u);
  EXPECT_TRUE(names(run, "undeclared_rows", 0));
}

TEST(RunReader, DuplicateRowsAreNamedAndCountedOnce) {
  GeneratedRun generated = generate_run({});
  generated.rows[0].push_back(generated.rows[0][7]);
  const RunDirectory directory(generated);
  const Summary summary = directory.summary();
  EXPECT_EQ(summary.exit_code, kExitRunFailed);
  const Json& warnings = summary.document["warnings"];
  EXPECT_TRUE(std::any_of(warnings.begin(), warnings.end(),
                          [](const Json& w) { return w["code"] == "duplicate_rows"; }));
  EXPECT_EQ(summary.document["cases"][0]["metrics"]["dispatch_ns"]["n"], 38);
}

TEST(RunReader, RowsInAnyOrderGiveTheSameMetrics) {
  GeneratorConfig config;
  config.noise_ns = 900;
  config.cases[0].speculative = true;
  GeneratedRun generated = generate_run(config);
  const Json expected = RunDirectory(generated).summary().document;
  std::reverse(generated.rows[1].begin(), generated.rows[1].end());
  const RunDirectory reversed(generated);
  EXPECT_EQ(reversed.summary().document["cases"], expected["cases"]);
  EXPECT_TRUE(names(reversed.read(), "unordered_rows", 1));
}

TEST(RunReader, AStepThatOneRankLacksIsLeftOutOfFiguresOverAllRanks) {
  GeneratedRun generated = generate_run({});
  generated.rows[1].erase(generated.rows[1].begin() + 10);
  generated.rows[0].erase(generated.rows[0].begin() + 30);
  const RunDirectory directory(generated);
  const Summary summary = directory.summary();
  EXPECT_EQ(summary.exit_code, kExitRunFailed);
  EXPECT_EQ(summary.document["cases"][0]["metrics"]["launch_skew_ns"]["n"], 36);
  EXPECT_EQ(summary.document["cases"][0]["ranks"][0]["metrics"]["dispatch_ns"]["n"], 37);
}

TEST(RunReader, ZeroStampsForeignRowsAndChecksumsAreNamed) {
  GeneratedRun generated = generate_run({});
  generated.rows[0][5].dispatch_end_ns = 0;
  generated.rows[0][6].case_index = 9;
  generated.rows[1][8].flags |= kFlagChecksumFailed;
  generated.rows[1][9].step = -4;
  const auto run = RunDirectory(generated).read();
  EXPECT_TRUE(names(run, "zero_stamps", 0));
  EXPECT_TRUE(names(run, "foreign_rows", 0));
  EXPECT_TRUE(names(run, "checksum_failed", 1));
  EXPECT_TRUE(names(run, "foreign_rows", 1));
}

TEST(RunReader, ARowFileOfARankThatTheRunDoesNotHaveIsNamed) {
  const RunDirectory directory{GeneratorConfig{}};
  fs::copy_file(directory.path() / "rank0.phases.npy", directory.path() / "rank2.phases.npy");
  EXPECT_TRUE(names(directory.read(), "foreign_file"));
}

TEST(RunReader, SwappedRankFilesAreNamedInsteadOfBlamingTheWrongRank) {
  for (const int world_size : {2, 3}) {
    GeneratorConfig config;
    config.world_size = world_size;
    config.noise_ns = 900;
    const RunDirectory directory(config);
    const fs::path zero = directory.path() / "rank0.phases.npy";
    const fs::path one = directory.path() / "rank1.phases.npy";
    fs::rename(zero, directory.path() / "other");
    fs::rename(one, zero);
    fs::rename(directory.path() / "other", one);
    const auto run = directory.read();
    EXPECT_TRUE(names(run, "foreign_rank", 0)) << world_size;
    EXPECT_TRUE(names(run, "foreign_rank", 1)) << world_size;
    EXPECT_EQ(run.problems[0].text.find("rank0.phases.npy: "), 0u);
    EXPECT_NE(run.problems[0].text.find(
                  "rows name this rank as its own peer: the file belongs to another rank"),
              std::string::npos);
    const Summary summary = directory.summary();
    EXPECT_EQ(summary.exit_code, kExitRunFailed);
    const Json& c = summary.document["cases"][0];
    EXPECT_TRUE(c["ranks"][0]["laggard_share"].is_null());
    EXPECT_EQ(c["attribution"]["next_experiment"].get<std::string>().find("put each rank's own"),
              0u);
  }
}

TEST(RunReader, APeerThatTheRunDoesNotHaveIsNamed) {
  for (const std::int32_t peer : {2, -2}) {
    GeneratedRun generated = generate_run({});
    generated.rows[1][9].first_all_reduce_last_peer = peer;
    EXPECT_TRUE(names(RunDirectory(generated).read(), "foreign_rank", 1)) << peer;
  }
}

TEST(RunReader, AnInjectedDelayOnAnotherRankThanTheVictimIsNamed) {
  GeneratedRun generated = generate_run({});
  generated.info.cases[0].values["inject"] = Json{{"where", "before_dispatch"}, {"victim", 1}};
  for (PhaseRow& row : generated.rows[1]) row.injected_ns = 1'000;
  EXPECT_TRUE(RunDirectory(generated).read().problems.empty());
  generated.rows[0][7].injected_ns = 1'000;
  EXPECT_TRUE(names(RunDirectory(generated).read(), "foreign_rank", 0));
}

TEST(RunReader, ACopyOfAnotherRanksFileIsNamed) {
  GeneratorConfig config;
  config.cases[0].all_reduce = "none";  // no peer gives it away
  const RunDirectory directory(config);
  fs::copy_file(directory.path() / "rank0.phases.npy", directory.path() / "rank1.phases.npy",
                fs::copy_options::overwrite_existing);
  EXPECT_TRUE(names(directory.read(), "copied_rank", 1));
}

TEST(RunReader, ARunThatDoesNotAgreeWithItselfIsNamed) {
  const auto problem_of = [](const char* code, void (*change)(GeneratedRun&)) {
    GeneratedRun generated = generate_run({});
    change(generated);
    const RunDirectory directory(generated);
    EXPECT_TRUE(names(directory.read(), code)) << code;
    EXPECT_EQ(directory.summary().exit_code, kExitRunFailed) << code;
  };
  problem_of("incomplete_launch",
             [](GeneratedRun& g) { g.info.launches[0].status = "incomplete"; });
  problem_of("duplicate_rank", [](GeneratedRun& g) { g.info.ranks.push_back(g.info.ranks[1]); });
  problem_of("foreign_order", [](GeneratedRun& g) { g.info.launches[0].order.push_back({1, 0}); });
  problem_of("foreign_rows", [](GeneratedRun& g) { g.rows[0].back().launch = 1; });
  problem_of("unordered_rows",
             [](GeneratedRun& g) { g.rows[0][5].sequence = g.rows[0][4].sequence; });
  problem_of("unordered_rows", [](GeneratedRun& g) { std::swap(g.rows[1][5], g.rows[1][6]); });
}

TEST(RunReader, ACountOfRowsThatDiffersFromRunJsonIsNamed) {
  for (const std::int64_t rows : {39, 41}) {
    const RunDirectory directory{GeneratorConfig{}};
    RunInfo info = read_run_json(directory.path());
    info.ranks[0].rows = rows;
    write_run_json(directory.path(), info);
    EXPECT_TRUE(names(directory.read(), rows < 40 ? "more_rows" : "fewer_rows", 0));
  }
}

TEST(RunReader, WhatIsNoRegularFileIsRefusedAndNeverWaitedFor) {
  const RunDirectory directory{GeneratorConfig{}};
  const fs::path file = directory.path() / "rank1.phases.npy";
  const auto refused = [&] {
    const auto run = directory.read();
    return names(run, "damaged_file", 1) &&
           run.problems[0].text == "rank1.phases.npy: is not a regular file";
  };
  fs::remove(file);
  ASSERT_EQ(mkfifo(file.c_str(), 0600), 0);
  EXPECT_TRUE(refused());
  fs::remove(file);
  fs::create_directory(file);
  EXPECT_TRUE(refused());
  fs::remove(directory.path() / "run.json");
  ASSERT_EQ(mkfifo((directory.path() / "run.json").c_str(), 0600), 0);
  EXPECT_THROW(directory.read(), RecordError);
}

TEST(RunReader, StampsThatNoRunCanHaveAreDamageAndLeftOut) {
  const auto dispatches = [](const GeneratedRun& generated) {
    const RunDirectory directory(generated);
    EXPECT_TRUE(names(directory.read(), "stamps_out_of_range"));
    const Summary summary = directory.summary();
    EXPECT_EQ(summary.exit_code, kExitRunFailed);
    return summary.document["cases"][0]["metrics"]["launch_skew_ns"]["n"].get<int>();
  };
  constexpr std::int64_t kHour = 3'600'000'000'000;
  GeneratedRun within = generate_run({});
  within.rows[0][5].dispatch_end_ns += kHour;
  EXPECT_EQ(dispatches(within), 37);
  GeneratedRun whole = generate_run({});  // a whole row elsewhere
  PhaseRow& row = whole.rows[0][5];
  for (std::int64_t* stamp :
       {&row.coupling_begin_ns, &row.accept_seen_ns, &row.inputs_begin_ns, &row.inputs_end_ns,
        &row.dispatch_begin_ns, &row.dispatch_end_ns, &row.launch_begin_ns, &row.launch_end_ns}) {
    *stamp += 2 * kHour;
  }
  row.flags &= ~std::uint32_t{kFlagModelledDevice};
  EXPECT_EQ(dispatches(whole), 37);
  GeneratorConfig later;  // a rank on another clock
  later.start_ns += 3 * kHour;
  GeneratedRun mixed = generate_run({});
  mixed.rows[1] = generate_run(later).rows[1];
  EXPECT_EQ(dispatches(mixed), 0);
  GeneratedRun extreme = generate_run({});
  extreme.rows[1][8].first_all_reduce_own_ns = INT64_MIN;
  extreme.rows[1][8].first_all_reduce_last_seen_ns = INT64_MAX;
  EXPECT_EQ(dispatches(extreme), 37);
}

TEST(RunReader, AnIncompleteRunSaysWhichRankEndedWhere) {
  GeneratedRun generated = generate_run({});
  generated.info.status = "incomplete";
  generated.info.status_reason = "rank 1 was killed by signal 9";
  generated.info.ranks[1].status = "died";
  generated.info.ranks[1].ended_at = "launch 0, case fused/bs8, step 12, stage dispatch";
  generated.rows[1].resize(12);
  const RunDirectory directory(generated);
  const auto run = directory.read();
  EXPECT_TRUE(names(run, "rank_died", 1));
  EXPECT_EQ(directory.summary().exit_code, kExitRunFailed);
  EXPECT_EQ(directory.summary().document["status_reason"], "rank 1 was killed by signal 9");
}

TEST(RunReader, ZeroRowsIsNothingMeasured) {
  GeneratedRun generated = generate_run({});
  for (auto& rows : generated.rows) rows.clear();
  EXPECT_EQ(RunDirectory(generated).summary().exit_code, kExitNothingMeasured);
}

TEST(RunReader, AFileOfOtherFieldsIsReadByName) {
  const GeneratedRun generated = generate_run({});
  const RunDirectory directory(generated);
  // As a hand-made record: fewer fields, another order, another width.
  struct Short {
    std::int32_t step;
    std::int32_t case_index;
    std::int64_t dispatch_begin_ns;
    std::int64_t sequence;
    std::int64_t dispatch_end_ns;
  };
  const NpyField fields[] = {{"step", "<i4", offsetof(Short, step)},
                             {"case_index", "<i4", offsetof(Short, case_index)},
                             {"dispatch_begin_ns", "<i8", offsetof(Short, dispatch_begin_ns)},
                             {"sequence", "<i8", offsetof(Short, sequence)},
                             {"dispatch_end_ns", "<i8", offsetof(Short, dispatch_end_ns)}};
  for (int rank = 0; rank < 2; ++rank) {
    const auto& rows = generated.rows[static_cast<std::size_t>(rank)];
    std::ofstream file(directory.path() / ("rank" + std::to_string(rank) + ".phases.npy"),
                       std::ios::binary);
    file << npy_header(fields, sizeof(Short), rows.size());
    for (const PhaseRow& row : rows) {
      const Short out{row.step, row.case_index, row.dispatch_begin_ns + rank, row.sequence,
                      row.dispatch_end_ns + rank};
      file.write(reinterpret_cast<const char*>(&out), sizeof out);
    }
  }
  const auto run = directory.read();
  EXPECT_EQ(run.rows, 80u);
  EXPECT_TRUE(run.problems.empty());
  ASSERT_EQ(run.notes.size(), 2u);
  EXPECT_EQ(run.notes[0].code, "missing_field");
  const Json metrics = directory.summary().document["cases"][0]["metrics"];
  EXPECT_EQ(metrics["dispatch_ns"]["p50"], 20000);
  EXPECT_EQ(metrics["launch_skew_ns"]["reasons"]["p50"], "no graph launches recorded");
}

TEST(RunReader, WrongMetadataIsAProblemOfTheRun) {
  GeneratedRun generated = generate_run({});
  generated.info.cases[0].bit_equal = false;
  EXPECT_EQ(RunDirectory(generated).summary().exit_code, kExitRunFailed);
  generated.info.cases[0].bit_equal = true;
  generated.info.cases[0].checksum_failures = 1;
  EXPECT_EQ(RunDirectory(generated).summary().exit_code, kExitRunFailed);
}

TEST(RunReader, AnyChangedByteOfAHeaderIsReportedOrHarmlessAndNeverACrash) {
  const RunDirectory directory{GeneratorConfig{}};
  const fs::path file = directory.path() / "rank0.phases.npy";
  const std::size_t size = npy_header(phase_row_fields(), sizeof(PhaseRow), 40).size();
  for (std::size_t at = 0; at < size; at += 5) {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(static_cast<std::streamoff>(at));
    const auto old = static_cast<char>(stream.get());
    for (const char changed : {'9', '\'', '\xff'}) {
      stream.seekp(static_cast<std::streamoff>(at)).put(changed).flush();
      directory.summary();
    }
    stream.seekp(static_cast<std::streamoff>(at)).put(old).flush();
  }
  EXPECT_TRUE(directory.read().problems.empty());
}

TEST(RunReader, ForeignAndDamagedDirectoriesAreErrorsWithTheirExitCode) {
  const RunDirectory empty;
  const auto exit_code = [&] {
    try {
      empty.read();
    } catch (const RecordError& error) {
      return error.exit_code();
    }
    return 0;
  };
  EXPECT_EQ(exit_code(), kExitUsage);
  std::ofstream(empty.path() / "run.json") << "{\"schema\": \"tpjitter.run/1\", ";
  EXPECT_EQ(exit_code(), kExitRunFailed);
  std::ofstream(empty.path() / "run.json") << "{\"schema\": \"tpjitter.run/99\"}";
  EXPECT_EQ(exit_code(), kExitRunFailed);
  std::ofstream(empty.path() / "run.json") << "{\"schema\": \"somebody.run/1\"}";
  EXPECT_EQ(exit_code(), kExitUsage);
}

}  // namespace
}  // namespace tpjitter
