#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <limits>

#include "harness/contract/error.h"
#include "harness/contract/run_info.h"

namespace tpjitter {
namespace {

std::string parse_error(const std::string& text) {
  try {
    parse_strict_json(text, "run.json");
  } catch (const RecordError& error) {
    return error.what();
  }
  return "";
}

std::string read_error(const std::string& text, int exit_code = kExitUsage) {
  try {
    run_info_from_json(parse_strict_json(text, "run.json"));
  } catch (const RecordError& error) {
    EXPECT_EQ(error.exit_code(), exit_code);
    return error.what();
  }
  return "";
}

RunInfo full_info() {
  RunInfo info;
  info.status = "incomplete";
  info.status_reason = "rank 1 was killed";
  info.backend = "host";
  info.world_size = 2;
  info.scenario_name = "smoke";
  info.scenario_file = "scenarios/smoke.toml";
  info.summary = "a \"quoted\" <b> | name";
  info.source = "model card";
  info.overrides = {"sampling.steps=10"};
  info.command = {"tpjitter", "run", "smoke.toml"};
  info.seed = std::numeric_limits<std::uint64_t>::max();
  RunCase c;
  c.name = "fused/bs8";
  c.path = "fused";
  c.values = Json{{"shape", {{"batch_size", 8}}}};
  c.bit_equal = true;
  c.steps_checked = 9007199254740993;  // 2^53 + 1
  c.operations = Json{{"calls", 3}};
  info.cases = {c};
  info.launches = {RunLaunch{0, {{0, 0}, {0, 1}}, "incomplete"}};
  info.ranks.resize(2);
  info.ranks[1].rank = 1;
  info.ranks[1].cpu = 3;
  info.ranks[1].status = "died";
  info.ranks[1].ended_at = "launch 0, case fused/bs8, step 3, stage dispatch";
  RunControl control;
  control.when = "before";
  control.all_reduce = "one_shot_pull";
  control.all_reduce_bytes = 46080;
  control.empty_graph_launch_ns = {std::numeric_limits<std::int64_t>::max(),
                                   std::numeric_limits<std::int64_t>::min()};
  control.zero_skew_wait_ns = {2100, 2090};
  info.controls = {control};
  info.model = Json{{"transfer_ns", 1500}};
  info.environment = Json{{"cpu", "a CPU"}, {"load", 0.25}};
  info.warnings = {{"cgroup_quota", "2 CPUs for 2 ranks", std::nullopt}, {"x", "y", 1}};
  return info;
}

class RunInfoFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "tpjitter_run_info_XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    directory_ = name;
  }
  void TearDown() override {
    chmod(directory_.c_str(), 0755);
    std::filesystem::remove_all(directory_);
  }
  std::filesystem::path directory_;
};

TEST(StrictJson, RefusesWhatIsNoStrictJson) {
  for (const char* text : {"{\"a\": NaN}", "{\"a\": Infinity}", "{\"a\": -Infinity}",
                           "{\"a\": 1e999}", "{\"a\": 1} x", "{\"a\": 1}{", "{'a': 1}",
                           "{\"a\": 1,}", "// c\n{}", "", "{\"a\": 01}", "{\"a\": \"\xff\"}"}) {
    EXPECT_NE(parse_error(text).find("run.json"), std::string::npos) << text;
  }
}

TEST(StrictJson, NamesADuplicateKeyButAllowsItInSiblings) {
  EXPECT_NE(parse_error("{\"a\": {\"b\": 1, \"b\": 2}}").find("'b' appears twice"),
            std::string::npos);
  EXPECT_EQ(parse_error("{\"a\": {\"b\": 1}, \"c\": [{\"b\": 1}, {\"b\": 2}]}"), "");
}

TEST(StrictJson, IntegersOf64BitsSurviveAndLargerOnesAreRefused) {
  const Json document = parse_strict_json(
      "[9223372036854775807, -9223372036854775808, 18446744073709551615, 9007199254740993]", "f");
  EXPECT_EQ(document[0].get<std::int64_t>(), INT64_MAX);
  EXPECT_EQ(document[1].get<std::int64_t>(), INT64_MIN);
  EXPECT_EQ(document[2].get<std::uint64_t>(), UINT64_MAX);
  EXPECT_EQ(json_text(document),
            "[9223372036854775807, -9223372036854775808, 18446744073709551615, "
            "9007199254740993]\n");
  EXPECT_NE(parse_error("[18446744073709551616]").find("64 bits"), std::string::npos);
}

TEST(StrictJson, ErrorsNameLineAndColumn) {
  EXPECT_NE(parse_error("{\n  \"a\": nope\n}").find("run.json:2:"), std::string::npos);
  EXPECT_NE(parse_error("{\"a\": [1, 2").find("ends too early"), std::string::npos);
}

TEST(StrictJson, DeepNestingIsAnErrorAndNoCrash) {
  EXPECT_NE(parse_error(std::string(1000000, '[')).find("nested deeper"), std::string::npos);
}

TEST(StrictJson, EveryTruncationOfARunIsAnError) {
  const std::string whole = json_text(run_info_to_json(full_info()));
  for (std::size_t n = 0; n + 2 < whole.size(); n += 7)
    EXPECT_NE(parse_error(whole.substr(0, n)), "");
}

TEST(StrictJson, WriterRefusesNumbersThatAreNotFinite) {
  EXPECT_THROW(json_text(Json{{"a", std::numeric_limits<double>::infinity()}}), Error);
}

TEST(StrictJson, WriterKeepsInvalidUtf8OutOfTheDocument) {
  const std::string text = json_text(Json{{"host", "bad \xff name"}});
  EXPECT_EQ(parse_error(text), "");
}

TEST(RunInfoJson, RoundTripKeepsEveryKey) {
  const Json once = run_info_to_json(full_info());
  const std::string text = json_text(once);
  const Json again = run_info_to_json(run_info_from_json(parse_strict_json(text, "run.json")));
  EXPECT_EQ(json_text(again), text);
  EXPECT_EQ(once.begin().key(), "schema");
}

TEST(RunInfoJson, AHandMadeMinimalRunIsRead) {
  const RunInfo info = run_info_from_json(parse_strict_json(
      R"({"schema": "tpjitter.run/1", "status": "complete", "backend": "cuda", "world_size": 2,
          "cases": [{"name": "a"}, {"name": "b", "unknown": 1}]})",
      "run.json"));
  EXPECT_EQ(info.cases.size(), 2u);
  EXPECT_EQ(info.cases[1].index, 1);
  EXPECT_FALSE(info.cases[0].bit_equal.has_value());
}

TEST(RunInfoJson, ErrorsNameTheKey) {
  const std::string head =
      R"({"schema": "tpjitter.run/1", "status": "complete", "backend": "host", "world_size": 2)";
  EXPECT_NE(read_error(head + "}").find("'cases' is missing"), std::string::npos);
  EXPECT_NE(read_error(head + R"(, "cases": [{}]})").find("'cases[0].name' is missing"),
            std::string::npos);
  EXPECT_NE(read_error(head + R"(, "cases": [], "seed": "7"})").find("'seed': expected an integer"),
            std::string::npos);
  EXPECT_NE(read_error(head + R"(, "cases": [], "seed": -1})").find("'seed'"), std::string::npos);
  EXPECT_NE(read_error(head + R"(, "cases": [], "ranks": [{"rank": 4294967296}]})")
                .find("'ranks[0].rank'"),
            std::string::npos);
  EXPECT_NE(
      read_error(head + R"(, "cases": [], "controls": [{"rank": 0, "zero_skew_wait_ns": [1.5]}]})")
          .find("'controls[0].zero_skew_wait_ns[0]'"),
      std::string::npos);
  EXPECT_NE(read_error(head + R"(, "cases": [], "clock": 3})").find("'clock'"), std::string::npos);
}

TEST(RunInfoJson, OtherAndNewerSchemasAreToldApart) {
  EXPECT_NE(read_error("[]").find("no tpjitter run"), std::string::npos);
  EXPECT_NE(read_error(R"({"schema": "other/1"})").find("no tpjitter run"), std::string::npos);
  const std::string newer = read_error(R"({"schema": "tpjitter.run/2"})", kExitRunFailed);
  EXPECT_NE(newer.find("newer"), std::string::npos);
}

TEST_F(RunInfoFiles, WriteReplacesTheFileAndLeavesNothingBeside) {
  RunInfo info = full_info();
  write_run_json(directory_, info);
  info.status = "complete";
  write_run_json(directory_, info);
  EXPECT_EQ(read_run_json(directory_).status, "complete");
  std::size_t files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(directory_))
    ++files;
  EXPECT_EQ(files, 1u);
}

TEST_F(RunInfoFiles, AFullDiskIsARunErrorAndKeepsTheOldFile) {
  write_run_json(directory_, full_info());
  // /dev/full refuses every write as a full disk does.
  ASSERT_EQ(symlink("/dev/full", (directory_ / "run.json.tmp").c_str()), 0);
  EXPECT_THROW(write_run_json(directory_, full_info()), RunError);
  EXPECT_EQ(read_run_json(directory_).scenario_name, "smoke");
}

TEST_F(RunInfoFiles, ADirectoryWithoutRunJsonIsAUsageError) {
  for (const auto& path : {directory_, directory_ / "missing"}) {
    try {
      read_run_json(path);
      FAIL();
    } catch (const RecordError& error) {
      EXPECT_EQ(error.exit_code(), kExitUsage);
      EXPECT_NE(std::string(error.what()).find(path.string()), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace tpjitter
