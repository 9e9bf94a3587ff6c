// A record edited from one backend to the other is named by what it holds of the first; records as
// they were made are not, whatever they lack.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <sstream>

#include "harness/contract/error.h"
#include "reports/record_consistency.h"
#include "reports/report.h"
#include "reports/run_clocks.h"
#include "reports/summary.h"
#include "tests/run_directory.h"

namespace tpjitter {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const std::filesystem::path kRecords =
    std::filesystem::path(TPJITTER_SOURCE_DIR) / "tests/golden/records";

const RunWarning* find(const Run& run, const std::string& code) {
  const auto found = std::find_if(run.problems.begin(), run.problems.end(),
                                  [&](const auto& p) { return p.code == code; });
  return found == run.problems.end() ? nullptr : &*found;
}

std::string contradiction(const Run& run) {
  const RunWarning* problem = find(run, "contradicting_backend");
  return problem == nullptr ? "" : problem->text;
}

GeneratedRun run_of(const char* backend) {
  GeneratorConfig config;
  config.backend = backend;
  return generate_run(config);
}

// A copy of a stored record whose run.json says another backend.
std::filesystem::path edited(const std::filesystem::path& record, const std::string& backend) {
  const auto copy = std::filesystem::path(::testing::TempDir()) /
                    ("edited_" + record.filename().string() + "_" + std::to_string(getpid()));
  std::filesystem::remove_all(copy);
  std::filesystem::copy(record, copy);
  RunInfo info = read_run_json(copy);
  info.backend = backend;
  write_run_json(copy, info);
  return copy;
}

TEST(RecordConsistency, RecordsAsTheyWereMadeContradictNothing) {
  for (const char* backend : {"host", "cuda"}) {
    EXPECT_EQ(contradiction(RunDirectory(run_of(backend)).read()), "") << backend;
  }
  std::size_t read = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kRecords)) {
    if (!std::filesystem::exists(entry.path() / "run.json")) continue;
    EXPECT_EQ(contradiction(read_run(entry.path())), "") << entry.path();
    ++read;
  }
  EXPECT_GT(read, 0u);
}

TEST(RecordConsistency, ARecordThatLacksWhatItsBackendLeavesIsBelieved) {
  // Made by hand, or of a run that failed before its ranks could say anything.
  for (const char* backend : {"host", "cuda"}) {
    GeneratedRun run = run_of(backend);
    run.info.model = nullptr;
    run.info.environment = Json::object();
    run.info.clock = Json::object();
    for (RunRank& rank : run.info.ranks) rank.device = rank.uuid = "";
    for (auto& rows : run.rows) {
      for (PhaseRow& row : rows) row.flags &= ~std::uint32_t{kFlagModelledDevice};
    }
    EXPECT_EQ(contradiction(RunDirectory(run).read()), "") << backend;
    for (auto& rows : run.rows) rows.clear();
    EXPECT_EQ(contradiction(RunDirectory(run).read()), "") << backend;
  }
}

TEST(RecordConsistency, AModelledRunThatSaysCudaIsNamedByEachThingThatItHolds) {
  GeneratedRun run = run_of("host");
  run.info.backend = "cuda";
  std::string text = contradiction(RunDirectory(run).read());
  EXPECT_THAT(text, HasSubstr("run.json says backend cuda, but `model` holds"));
  EXPECT_THAT(text, HasSubstr("the device of rank 0 is \"modelled device\""));
  EXPECT_THAT(text, HasSubstr("rows of rank0.phases.npy carry the flag of the modelled device"));
  // One of them is enough, and the rows are the last to go.
  run.info.model = nullptr;
  for (RunRank& rank : run.info.ranks) rank.device = "NVIDIA H200";
  text = contradiction(RunDirectory(run).read());
  EXPECT_THAT(text, HasSubstr("says backend cuda, but rows of rank0.phases.npy carry"));
  EXPECT_THAT(text, Not(HasSubstr("model`")));
}

TEST(RecordConsistency, ARecordOfGpusThatSaysHostIsNamedAndItsClocksAreNotOne) {
  const std::filesystem::path copy = edited(kRecords / "h200_x2_smoke", "host");
  const auto run = read_run(copy);
  const std::string text = contradiction(run);
  EXPECT_THAT(text, HasSubstr("run.json says backend host, but rank "
                              "0 ran on GPU-"));
  // Its figures across GPUs are null, as they are in the record as it was made.
  const Json summary = summarize(run).document;
  const Json whole = summarize(read_run(kRecords / "h200_x2_smoke")).document;
  EXPECT_EQ(summary["clock"]["gpu_gpu_bound_ns"], whole["clock"]["gpu_gpu_bound_ns"]);
  EXPECT_FALSE(RunClocks(run.info).host_clock());
  ASSERT_EQ(summary["cases"].size(), whole["cases"].size());
  for (std::size_t i = 0; i < whole["cases"].size(); ++i) {
    EXPECT_EQ(summary["cases"][i]["attribution"]["arrival_gap_ns"],
              whole["cases"][i]["attribution"]["arrival_gap_ns"]);
    EXPECT_EQ(summary["cases"][i]["metrics"], whole["cases"][i]["metrics"]);
  }
  for (const char* format : {"text", "md", "json", "html", "csv", "perfetto"}) {
    std::ostringstream out;
    EXPECT_EQ(report({copy}, format, out), kExitRunFailed) << format;
    EXPECT_GT(out.str().size(), 1000u) << format;
  }
  std::filesystem::remove_all(copy);
}

TEST(RecordConsistency, PointsOfCalibrationAloneProveGpus) {
  GeneratedRun run = run_of("host");
  run.info.clock["points"] = Json::array({Json::object()});
  EXPECT_THAT(contradiction(RunDirectory(run).read()),
              HasSubstr("clock.points holds 1 comparisons with clocks of GPUs"));
}

TEST(RecordConsistency, ABackendThatThereIsNotIsNamed) {
  GeneratedRun run = run_of("cuda");
  run.info.backend = "";
  const auto read = RunDirectory(run).read();
  EXPECT_NE(find(read, "unknown_backend"), nullptr);
}

TEST(RecordConsistency, DamagedCasesAreNamedByKey) {
  const struct {
    void (*edit)(RunCase&);
    const char* text;
  } edits[] = {
      {[](RunCase& c) { c.steps_checked = -1; }, "`steps_checked` is -1"},
      {[](RunCase& c) { c.checksum_failures = INT64_MIN; }, "`checksum_failures` is -9223372"},
      {[](RunCase& c) { c.skip_reason = "not today"; }, "it was skipped, but "},
      {[](RunCase& c) { c.values["shape"] = "x"; }, "`values.shape` is not an object"},
      {[](RunCase& c) { c.values["shape"]["layers"] = "36"; },
       "`values.shape.layers` is not of type integer"},
      {[](RunCase& c) { c.values["shape"]["swa"] = 1; },
       "`values.shape.swa` is not of type boolean"},
      {[](RunCase& c) { c.values["step"]["path"] = Json::array(); },
       "`values.step.path` is not of type string"},
      {[](RunCase& c) { c.values["step"]["op_overhead_ns"] = 0.5; },
       "`values.step.op_overhead_ns` is not of type integer or name"},
      {[](RunCase& c) { c.values["body"]["layer_us"] = true; },
       "`values.body.layer_us` is not of type number"},
      {[](RunCase& c) {
         c.values["shape"]["capture_batch_sizes"] = {1, "2"};
       },
       "`values.shape.capture_batch_sizes` is not of type integer list"},
  };
  for (const auto& edit : edits) {
    GeneratedRun run = run_of("host");
    edit.edit(run.info.cases[0]);
    const RunDirectory directory(run);
    const auto read = directory.read();
    const RunWarning* problem = find(read, "damaged_case");
    ASSERT_NE(problem, nullptr) << edit.text;
    EXPECT_THAT(problem->text, HasSubstr(edit.text));
    EXPECT_NE(summarize(read).exit_code, kExitPass) << edit.text;
  }
}

TEST(RecordConsistency, ValuesOfAnotherVersionOrOfAHandAreNoDamage) {
  GeneratedRun run = run_of("host");
  Json& values = run.info.cases[0].values;
  values["step"] = {{"path", "a path of mine"}, {"new_key", Json::object()}, {"topk", nullptr}};
  values["body"] = nullptr;
  values["new_table"] = 3;
  values["shape"]["layers"] = 1'000'000;
  EXPECT_EQ(find(RunDirectory(run).read(), "damaged_case"), nullptr);
  run.info.cases[0].values = nullptr;
  EXPECT_EQ(find(RunDirectory(run).read(), "damaged_case"), nullptr);
}

}  // namespace
}  // namespace tpjitter
