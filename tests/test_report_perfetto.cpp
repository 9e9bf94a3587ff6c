// A validator for the trace, over records of every kind: what viewers misread silently.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>
#include <sstream>

#include "harness/contract/error.h"
#include "reports/report.h"
#include "tests/run_directory.h"

namespace tpjitter {
namespace {

Json trace_of(const std::vector<std::filesystem::path>& runs, const ReportOptions& options = {}) {
  std::ostringstream out;
  report(runs, "perfetto", out, options);
  return parse_strict_json(out.str(), "trace");
}

// Exact: microseconds with three decimals.
std::int64_t ns(const Json& us) {
  const double value = us.get<double>() * 1000;
  EXPECT_LT(std::fabs(value), 9007199254740992.0);
  EXPECT_NEAR(value, std::round(value), 1e-3);
  return std::llround(value);
}

using TrackId = std::pair<std::int64_t, std::int64_t>;

struct Slice {
  std::int64_t begin, end;
  std::string name;
};

std::map<TrackId, std::vector<Slice>> slices_of(const Json& trace) {
  std::map<TrackId, std::vector<Slice>> tracks;
  for (const Json& e : trace["traceEvents"]) {
    if (e["ph"] != "X") continue;
    const std::int64_t begin = ns(e["ts"]);
    tracks[{e["pid"], e["tid"]}].push_back({begin, begin + ns(e["dur"]), e["name"]});
  }
  return tracks;
}

void expect_valid(const Json& trace) {
  EXPECT_EQ(trace["displayTimeUnit"], "ns");
  std::map<std::int64_t, std::string> processes;
  std::set<TrackId> named;
  std::map<std::int64_t, std::string> flows;  // id to its phases in order
  std::map<std::int64_t, std::int64_t> flow_pid;
  for (const Json& e : trace["traceEvents"]) {
    const std::int64_t pid = e["pid"];
    if (e["name"] == "process_name") {
      EXPECT_TRUE(processes.emplace(pid, e["args"]["name"]).second) << "pid twice: " << pid;
    }
    if (e["name"] == "thread_name") {
      EXPECT_TRUE(named.emplace(pid, e["tid"].get<std::int64_t>()).second);
    }
    if (e.contains("ts")) {
      EXPECT_GE(ns(e["ts"]), 0);
    }
    const std::string ph = e["ph"];
    if (ph == "s" || ph == "t" || ph == "f") {
      const std::int64_t id = e["id"];
      EXPECT_TRUE(ph != "s" || !flows.contains(id)) << "flow id twice: " << id;
      flows[id] += ph;
      if (ph == "s") flow_pid[id] = pid;
      EXPECT_EQ(flow_pid[id], pid) << "a flow leaves its rank";
    }
  }
  for (const auto& [id, phases] : flows) {
    EXPECT_TRUE(phases == "stf" || phases == "sf") << id << " " << phases;
  }
  auto tracks = slices_of(trace);
  for (auto& [track, slices] : tracks) {
    EXPECT_TRUE(processes.contains(track.first));
    EXPECT_TRUE(named.contains(track));
    std::vector<Slice> open;
    for (const Slice& s : slices) {  // written in time order, the outer first
      EXPECT_GE(s.end, s.begin);
      while (!open.empty() && open.back().end <= s.begin) open.pop_back();
      if (!open.empty()) {
        EXPECT_LE(s.end, open.back().end) << s.name << " overlaps " << open.back().name;
      }
      open.push_back(s);
    }
  }
  for (const Json& e : trace["traceEvents"]) {
    const std::string ph = e["ph"];
    if (ph != "s" && ph != "t" && ph != "f") continue;
    const auto& slices = tracks[{e["pid"], e["tid"]}];
    const std::int64_t at = ns(e["ts"]);
    EXPECT_TRUE(std::any_of(slices.begin(), slices.end(), [&](const Slice& s) {
      return s.begin <= at && at <= s.end;
    })) << "an arrow to no slice";
  }
}

GeneratorConfig late(const char* backend, bool speculative) {
  GeneratorConfig config;
  config.backend = backend;
  config.world_size = 3;
  config.noise_ns = 700;
  config.decode_ns = 1'000;  // a graph ends before the next begins, as on a stream
  config.steps = 300;
  config.block_steps = 100;
  config.cases[0].speculative = speculative;
  config.cases[0].late_stage = LateStage::kGraphLaunch;
  config.cases[0].late_rank = 2;
  config.cases[0].late_ns = 3'000;
  return config;
}

TEST(ReportPerfetto, TracesOfEveryKindAreValid) {
  for (const char* backend : {"host", "cuda"}) {
    for (const bool speculative : {false, true}) {
      const RunDirectory directory(late(backend, speculative));
      const Json trace = trace_of({directory.path()});
      expect_valid(trace);
      EXPECT_EQ(trace["otherData"]["runs"][0]["steps"], 100);
      EXPECT_EQ(trace["otherData"]["slices_left_out"]["overlapping"], 0);
      EXPECT_EQ(trace["otherData"]["runs"][0]["gpu_clocks_aligned"],
                std::string(backend) == "host");
    }
  }
  GeneratorConfig one_rank;
  one_rank.world_size = 1;
  GeneratorConfig nccl;
  nccl.cases[0].all_reduce = "nccl";
  GeneratorConfig none;
  none.cases[0].all_reduce = "none";
  for (const GeneratorConfig& config : {one_rank, nccl, none}) {
    const RunDirectory directory(config);
    expect_valid(trace_of({directory.path()}));
  }
}

TEST(ReportPerfetto, RecordsOfRealRunsGiveValidTraces) {
  const std::filesystem::path records =
      std::filesystem::path(TPJITTER_SOURCE_DIR) / "tests/golden/records";
  std::size_t read = 0;
  for (const auto& entry : std::filesystem::directory_iterator(records)) {
    if (!std::filesystem::exists(entry.path() / "run.json")) continue;
    SCOPED_TRACE(entry.path());
    expect_valid(trace_of({entry.path()}));
    ++read;
  }
  EXPECT_GT(read, 0u);
}

TEST(ReportPerfetto, SlicesLastAsLongAsTheRowsSay) {
  GeneratorConfig config;
  config.start_ns = 9'000'000'000'000'000'123;  // beyond a double's integers
  const RunDirectory directory(config);
  ReportOptions options;
  options.steps = StepRange{5, 7};
  const Json trace = trace_of({directory.path()}, options);
  expect_valid(trace);
  const auto tracks = slices_of(trace);
  const auto& host = tracks.at({2, 1});  // rank 0
  std::map<std::string, std::int64_t> length;
  std::size_t dispatches = 0;
  for (const Slice& s : host) {
    length[s.name] = s.end - s.begin;
    dispatches += s.name == "dispatch" ? 1 : 0;
  }
  EXPECT_EQ(dispatches, 3u);
  EXPECT_EQ(length["inputs"], 3'000);
  EXPECT_EQ(length["dispatch"], 20'000);
  EXPECT_EQ(length["graph launch"], 6'000);
  EXPECT_EQ(length["wait for accept"], 40'000);
  for (const Slice& s : tracks.at({2, 3})) {
    const std::int64_t expected = s.name == "wait for peers" ? 2'100 : 1'500;
    if (s.name != "first all-reduce") {
      EXPECT_EQ(s.end - s.begin, expected) << s.name;
    }
  }
}

TEST(ReportPerfetto, StepsThatNoRunHasAreRefusedWithTheRange) {
  GeneratorConfig config;
  config.steps = 200;
  GeneratorConfig longer = config;
  longer.steps = 500;
  const RunDirectory directory(config), other(longer);
  ReportOptions options;
  options.steps = StepRange{200, 300};
  std::ostringstream out;
  try {
    report({directory.path()}, "perfetto", out, options);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("--steps 200..300: holds no step of "));
    EXPECT_THAT(error.what(), ::testing::HasSubstr("which has 0..199"));
  }
  EXPECT_EQ(out.str(), "");
  // One run of two has them, and one step of the range is enough.
  EXPECT_EQ(report({directory.path(), other.path()}, "perfetto", out, options), kExitPass);
  options.steps = StepRange{199, 300};
  EXPECT_EQ(report({directory.path()}, "perfetto", out, options), kExitPass);
}

TEST(ReportPerfetto, ARunWithoutRowsIsNotToldThatTheStepsAreWrong) {
  GeneratedRun run = generate_run({});
  for (auto& rows : run.rows) rows.clear();
  const RunDirectory directory(run);
  ReportOptions options;
  options.steps = StepRange{0, 3};
  std::ostringstream out;
  EXPECT_EQ(report({directory.path()}, "perfetto", out, options), kExitNothingMeasured);
}

TEST(ReportPerfetto, TheWorstStepIsAmongTheWorst) {
  GeneratorConfig config;
  config.steps = 400;
  config.block_steps = 200;
  GeneratedRun run = generate_run(config);
  for (PhaseRow& row : run.rows[1]) {
    if (row.step != 333) continue;
    row.launch_begin_ns += 5'000;
    row.launch_end_ns += 5'000;
    row.first_all_reduce_own_ns += 5'000;
  }
  for (PhaseRow& row : run.rows[0]) {
    if (row.step == 333) row.first_all_reduce_last_seen_ns += 5'000;
  }
  const RunDirectory directory(run);
  std::set<int> steps;
  const Json trace = trace_of({directory.path()});
  for (const Json& e : trace["traceEvents"]) {
    if (e.contains("args") && e["args"].contains("step"))
      steps.insert(e["args"]["step"].get<int>());
  }
  EXPECT_EQ(steps.size(), 100u);
  EXPECT_TRUE(steps.contains(333));
}

TEST(ReportPerfetto, UnalignedClocksAreSaidInTheTrackName) {
  const RunDirectory gpu(late("cuda", false)), host(late("host", false));
  const auto names = [](const Json& trace) {
    std::string all;
    for (const Json& e : trace["traceEvents"]) {
      if (e["name"] == "thread_name") all += e["args"]["name"].get<std::string>() + "\n";
    }
    return all;
  };
  EXPECT_NE(names(trace_of({gpu.path()})).find("clock not aligned"), std::string::npos);
  EXPECT_EQ(names(trace_of({host.path()})).find("not aligned"), std::string::npos);
}

TEST(ReportPerfetto, SeveralRunsHaveDifferentProcesses) {
  const RunDirectory a(late("host", false)), b(late("cuda", true));
  expect_valid(trace_of({a.path(), b.path(), a.path()}));
}

TEST(ReportPerfetto, StampsThatCannotBeAreLeftOutAndCounted) {
  GeneratedRun run = generate_run({});
  for (PhaseRow& row : run.rows[0]) {
    if (row.step == 8) std::swap(row.dispatch_begin_ns, row.dispatch_end_ns);
    if (row.step == 9) row.inputs_end_ns = row.dispatch_end_ns - 1;
  }
  const RunDirectory directory(run);
  const Json trace = trace_of({directory.path()});
  expect_valid(trace);
  EXPECT_EQ(trace["otherData"]["slices_left_out"]["end_before_begin"], 1);
  EXPECT_EQ(trace["otherData"]["slices_left_out"]["overlapping"], 1);
}

TEST(ReportPerfetto, StepRangesAreChecked) {
  EXPECT_EQ(parse_step_range("7").last, 7);
  EXPECT_EQ(parse_step_range("3..9").first, 3);
  for (const char* text :
       {"", "a", "3..", "..4", "9..3", "-1..2", "1..2..3", "1.5", "99999999999"}) {
    EXPECT_THROW(parse_step_range(text), ConfigError) << text;
  }
}

}  // namespace
}  // namespace tpjitter
