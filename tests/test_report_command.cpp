// `tpjitter report` as a function: formats, options, several runs; and the document of the record.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>

#include "harness/contract/error.h"
#include "reports/report.h"
#include "tests/run_directory.h"

namespace tpjitter {
namespace {

const std::filesystem::path kSource = TPJITTER_SOURCE_DIR;

std::string read_file(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

bool has_python_module(const std::string& module) {
  return std::system(("/usr/bin/python3 -c 'import " + module + "' 2>/dev/null").c_str()) == 0;
}

TEST(ReportCommand, UnknownFormatsAndMissingRunsAreUsageErrors) {
  const RunDirectory directory{GeneratorConfig{}};
  std::ostringstream out;
  EXPECT_THROW(report({directory.path()}, "pdf", out), ConfigError);
  EXPECT_THROW(report({}, "text", out), ConfigError);
  EXPECT_THROW(report({directory.path(), directory.path() / "none"}, "text", out), RecordError);
  EXPECT_EQ(out.str(), "");
}

TEST(ReportCommand, OptionsThatAFormatDoesNotLookAtAreRefused) {
  const RunDirectory directory{GeneratorConfig{}};
  std::ostringstream out;
  ReportOptions steps, replays, glob, nothing;
  steps.steps = StepRange{1, 2};
  replays.replays = true;
  glob.case_glob = "fused*";
  nothing.case_glob = "none*";
  EXPECT_THROW(report({directory.path()}, "html", out, steps), ConfigError);
  EXPECT_THROW(report({directory.path()}, "text", out, replays), ConfigError);
  EXPECT_THROW(report({directory.path()}, "csv", out, glob), ConfigError);
  EXPECT_THROW(report({directory.path()}, "perfetto", out, nothing), ConfigError);
  EXPECT_EQ(out.str(), "");
  EXPECT_EQ(report({directory.path()}, "perfetto", out, glob), kExitPass);
}

TEST(ReportCommand, SeveralRunsGiveTheWorstExitCodeAndOneDocument) {
  GeneratedRun incomplete = generate_run({});
  incomplete.info.status = "incomplete";
  const RunDirectory good{GeneratorConfig{}}, bad(incomplete);
  std::ostringstream out;
  EXPECT_EQ(report({good.path()}, "json", out), kExitPass);
  out.str("");
  EXPECT_EQ(report({good.path(), bad.path()}, "json", out), kExitRunFailed);
  EXPECT_EQ(parse_strict_json(out.str(), "summaries").size(), 2u);
}

TEST(ReportCommand, ADirectoryOfRunsStandsForAllOfThem) {
  const RunDirectory parent;
  for (const char* name : {"b", "a"}) {
    std::filesystem::create_directory(parent.path() / name);
    GeneratedRun run = generate_run({});
    run.info.scenario_name = name;
    write_run(parent.path() / name, run);
  }
  std::ostringstream out;
  EXPECT_EQ(report({parent.path()}, "json", out), kExitPass);
  const Json documents = parse_strict_json(out.str(), "summaries");
  ASSERT_EQ(documents.size(), 2u);
  EXPECT_EQ(documents[0]["scenario"]["name"], "a");
}

// Formats that are rendered without a summary judge the record as those that need one.
TEST(ReportCommand, EveryFormatEndsWithTheSameCode) {
  const auto codes_of = [](GeneratedRun run) {
    const RunDirectory directory(std::move(run));
    std::set<int> codes;
    ReportOptions replays;
    replays.replays = true;
    std::ostringstream out;
    for (const Exporter& exporter : exporters()) {
      codes.insert(report({directory.path()}, exporter.format, out));
    }
    codes.insert(report({directory.path()}, "csv", out, replays));
    return codes;
  };
  const GeneratedRun whole = generate_run({});
  EXPECT_EQ(codes_of(whole), std::set<int>{kExitPass});
  GeneratedRun gap = whole;
  gap.rows[1].erase(gap.rows[1].begin() + 5);
  EXPECT_EQ(codes_of(gap), std::set<int>{kExitRunFailed});
  GeneratedRun doubled = whole;
  for (auto& rows : doubled.rows) rows.push_back(rows.back());
  EXPECT_EQ(codes_of(doubled), std::set<int>{kExitRunFailed});
  GeneratedRun wrong = whole;
  wrong.info.cases[0].checksum_failures = 1;
  EXPECT_EQ(codes_of(wrong), std::set<int>{kExitRunFailed});
  GeneratedRun no_rows_of_a_case = whole;
  no_rows_of_a_case.info.cases.push_back(whole.info.cases[0]);
  no_rows_of_a_case.info.cases[1].index = 1;
  no_rows_of_a_case.info.cases[1].name = "never run";
  EXPECT_EQ(codes_of(no_rows_of_a_case), std::set<int>{kExitRunFailed});
  GeneratedRun empty = whole;
  for (auto& rows : empty.rows) rows.clear();
  EXPECT_EQ(codes_of(empty), std::set<int>{kExitNothingMeasured});
}

TEST(RecordDocument, NamesEveryFieldAndKey) {
  const std::string text = read_file(kSource / "reports/RECORD.md");
  for (const NpyField& field : phase_row_fields()) {
    EXPECT_NE(text.find("| `" + std::string(field.name) + "` |"), std::string::npos) << field.name;
  }
  const Json keys = run_info_to_json({});
  for (const auto& [key, value] : keys.items()) {
    EXPECT_NE(text.find("`" + key), std::string::npos) << key;
  }
}

TEST(RecordDocument, TheRecordMadeByHandCanBeReported) {
  if (!has_python_module("numpy")) GTEST_SKIP() << "python3-numpy is not installed";
  const std::string text = read_file(kSource / "reports/RECORD.md");
  const std::size_t begin = text.rfind("```python\n") + 10;
  const RunDirectory directory;
  std::ofstream(directory.path() / "make.py")
      << text.substr(begin, text.find("```", begin) - begin);
  ASSERT_EQ(
      std::system(("cd " + directory.path().string() + " && /usr/bin/python3 make.py").c_str()), 0);
  const Summary summary = directory.summary();
  EXPECT_EQ(summary.exit_code, kExitPass) << summary.document["status_reason"];
  const Json& c = summary.document["cases"][0];
  EXPECT_EQ(c["metrics"]["dispatch_ns"]["p50"], 25'000);
  EXPECT_EQ(c["metrics"]["launch_skew_ns"]["p50"], 5'000);
  EXPECT_EQ(c["metrics"]["step_ns"]["p50"], 1'000'000);
  EXPECT_EQ(c["ranks"][1]["laggard_share"], 1.0);
  EXPECT_EQ(c["attribution"]["class"], "inconclusive");
}

}  // namespace
}  // namespace tpjitter
