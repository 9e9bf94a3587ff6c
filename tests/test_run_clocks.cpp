// The clocks of a run from its record: generated rows are put on GPU clocks with known offsets and
// drifts, with the points of calibration that such clocks give.
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <sstream>

#include "reports/report.h"
#include "reports/run_clocks.h"
#include "reports/summary.h"
#include "tests/run_directory.h"

namespace tpjitter {
namespace {

constexpr std::int64_t kMillisecond = 1'000'000;

// The generator's clocks are 45 us apart and do not drift; these do, and may be set.
struct GpuClocks {
  std::vector<std::int64_t> drift_ppb = {0, 800, -600, 400, 300, -200, 100, 900};
  std::int64_t step_after_ns = INT64_MAX;  // host time, rank 1
  std::int64_t step_ns = 0;

  std::int64_t at(std::int64_t host_ns, int rank) const {
    const auto r = static_cast<std::size_t>(rank);
    return host_ns + 7'000'000'000 + rank * 45'000 + host_ns / 1000 * drift_ppb[r] / 1'000'000 +
           (rank == 1 && host_ns >= step_after_ns ? step_ns : 0);
  }
};

GeneratorConfig on_gpus(int world_size, LateStage stage, std::int64_t late_ns) {
  GeneratorConfig config;
  config.backend = "cuda";
  config.world_size = world_size;
  config.steps = 400;
  config.cases[0].late_stage = stage;
  config.cases[0].late_rank = world_size - 1;
  config.cases[0].late_ns = late_ns;
  return config;
}

class CalibratedRun {
 public:
  CalibratedRun(const GeneratorConfig& config, const GpuClocks& clocks = {}, int points = 9)
      : run(generate_run(config)), clocks_(clocks) {
    std::int64_t begin = INT64_MAX, end = 0;
    for (int rank = 0; rank < config.world_size; ++rank) {
      for (PhaseRow& row : run.rows[static_cast<std::size_t>(rank)]) {
        begin = std::min(begin, row.accept_seen_ns);
        for (std::int64_t* stamp :
             {&row.gpu_begin_ns, &row.gpu_end_ns, &row.first_all_reduce_own_ns,
              &row.first_all_reduce_last_seen_ns, &row.first_all_reduce_end_ns}) {
          if (*stamp == 0) continue;
          const std::int64_t host = *stamp - 7'000'000'000 - rank * 45'000;
          end = std::max(end, host);
          *stamp = clocks_.at(host, rank);
        }
      }
    }
    begin -= kMillisecond;
    end += kMillisecond;
    Json& all = run.info.clock["points"] = Json::array();
    for (int point = 0; point < points; ++point) {
      const std::int64_t at = begin + (end - begin) / (points - 1) * point;
      for (int rank = 1; rank < config.world_size; ++rank) all.push_back(exchange(at, 0, rank));
      for (int rank = 1; rank + 1 < config.world_size && point > 0 && point + 1 < points; ++rank) {
        all.push_back(exchange(at, rank, rank + 1));
      }
    }
  }

  Json summary() const {
    RunDirectory directory;
    write_run(directory.path(), run);
    return directory.summary().document;
  }
  std::string text() const {
    std::ostringstream out;
    write_text({summary()}, out);
    return out.str();
  }

  GeneratedRun run;

 private:
  Json exchange(std::int64_t host_ns, int a, int b) const {
    Json exchanges = Json::array();
    const std::int64_t base_a = clocks_.at(host_ns, a), base_b = clocks_.at(host_ns, b);
    for (int i = 0; i < 16; ++i) {
      const std::int64_t send = host_ns + i * 3'000;
      const std::int64_t receive = send + 1'100 + i % 3 * 20, answer = receive + 30;
      const std::int64_t back = answer + 1'100 + i % 5 * 20;
      for (const std::int64_t stamp :
           {clocks_.at(send, a) - base_a, clocks_.at(receive, b) - base_b,
            clocks_.at(answer, b) - base_b, clocks_.at(back, a) - base_a}) {
        exchanges.push_back(stamp);
      }
    }
    return Json{{"launch", 0},
                {"when", "between"},
                {"a", a},
                {"b", b},
                {"made", 64},
                {"base_a_ns", base_a},
                {"base_b_ns", base_b},
                {"exchanges_ns", std::move(exchanges)}};
  }

  GpuClocks clocks_;
};

double share(const Json& attribution, const std::string& name) {
  for (const Json& stage : attribution["stages"]) {
    if (stage["stage"] == name && !stage["share"].is_null()) return stage["share"].get<double>();
  }
  return -1e9;
}

// Everything that compares GPUs is null, and says why.
void expect_refused(const Json& summary, const std::string& why) {
  for (const Json& c : summary["cases"]) {
    const Json& a = c["attribution"];
    EXPECT_TRUE(a["arrival_gap_ns"]["p50"].is_null());
    EXPECT_NE(a["arrival_gap_ns"]["reasons"]["p50"].get<std::string>().find(why), std::string::npos)
        << a["arrival_gap_ns"].dump();
    EXPECT_TRUE(a["arrival_bound_ns"].is_null());
    EXPECT_EQ(share(a, "launch_to_arrival"), -1e9);
    EXPECT_FALSE(a["exposed_ns"].is_null());  // per-rank figures stay
  }
}

TEST(RunClocks, WhatTheGpuMakesLateIsLaunchToArrivalOnAlignedClocks) {
  for (const int world_size : {2, 3, 8}) {
    const Json summary = CalibratedRun(on_gpus(world_size, LateStage::kArrival, 40'000)).summary();
    const Json& a = summary["cases"][0]["attribution"];
    EXPECT_NEAR(share(a, "launch_to_arrival"), 1.0, 0.01) << world_size;
    EXPECT_NEAR(share(a, "unexplained"), 0.0, 0.01) << world_size;
    EXPECT_NEAR(a["arrival_gap_ns"]["p50"].get<double>(), 40'000, 100) << world_size;
    EXPECT_NEAR(a["arrival_residual_ns"]["p50"].get<double>(), 0, 100) << world_size;
    EXPECT_LE(a["arrival_residual_ns"]["max"].get<std::int64_t>(), 200) << world_size;
    EXPECT_LE(a["arrival_bound_ns"], summary["clock"]["gpu_gpu_bound_ns"].get<int>() * 2);
    EXPECT_EQ(a["missing_evidence"].dump().find("launch_to_arrival"), std::string::npos);
  }
}

TEST(RunClocks, WhatTheHostMakesLateStaysWithItsStage) {
  const Json summary = CalibratedRun(on_gpus(2, LateStage::kDispatch, 40'000)).summary();
  const Json& a = summary["cases"][0]["attribution"];
  EXPECT_NEAR(share(a, "dispatch"), 1.0, 0.01);
  EXPECT_NEAR(share(a, "launch_to_arrival"), 0.0, 0.01);
}

TEST(RunClocks, OffsetDriftAndBoundOfEachPairAreReported) {
  const Json clock = CalibratedRun(on_gpus(3, LateStage::kNone, 0)).summary()["clock"];
  ASSERT_EQ(clock["pairs"].size(), 3u);  // 0-1, 0-2, 1-2
  const Json& first = clock["pairs"][0];
  EXPECT_EQ(first["a"], 0);
  EXPECT_EQ(first["b"], 1);
  EXPECT_EQ(first["points"], 9);
  EXPECT_EQ(first["exchanges"], 9 * 64);
  EXPECT_NEAR(first["offset_ns"].get<double>(), 45'800, 100);
  EXPECT_NEAR(first["drift_ns_per_s"].get<double>(), 800, 120);
  EXPECT_NEAR(first["round_trip_ns"].get<double>(), 2'200, 10);
  EXPECT_GE(first["point_bound_ns"], 1'100);
  EXPECT_GE(first["bound_ns"], first["point_bound_ns"]);
  EXPECT_TRUE(first["reason"].is_null());
  EXPECT_TRUE(clock["reason"].is_null());
  EXPECT_GE(clock["gpu_gpu_bound_ns"], first["bound_ns"]);
  EXPECT_TRUE(clock["host_gpu_bound_ns"].is_null());  // was not measured
  ASSERT_EQ(clock["closures"].size(), 1u);
  EXPECT_EQ(clock["closures"][0]["within"], true);
  EXPECT_EQ(clock["closures"][0]["points"], 7);
}

TEST(RunClocks, TheRunsOwnAllReducesAgreeWithTheCalibration) {
  const Json two = CalibratedRun(on_gpus(2, LateStage::kNone, 0)).summary()["cases"][0]["clock"];
  EXPECT_EQ(two["both_waited"], two["replays"]);
  EXPECT_EQ(two["no_pair"], 0);
  EXPECT_EQ(two["flight_ns"], 2'100);
  EXPECT_EQ(two["compared"], two["both_waited"]);
  EXPECT_EQ(two["contradictions"], 0);
  EXPECT_LE(two["residual_largest_ns"], 100);
  // A row knows its last peer only: of eight ranks at most four pairs name each other.
  const Json eight = CalibratedRun(on_gpus(8, LateStage::kNone, 0)).summary()["cases"][0]["clock"];
  EXPECT_EQ(eight["replays"], two["replays"]);
  EXPECT_LT(eight["both_waited"].get<int>(), 4 * eight["replays"].get<int>());
  // A late rank: the others find its flag late, it finds theirs there.
  const Json late =
      CalibratedRun(on_gpus(2, LateStage::kDispatch, 40'000)).summary()["cases"][0]["clock"];
  EXPECT_EQ(late["both_waited"], 0);
  EXPECT_EQ(late["one_flag_there"], late["replays"]);
}

TEST(RunClocks, WithoutCalibrationNothingIsComparedBetweenGpus) {
  CalibratedRun run(on_gpus(2, LateStage::kArrival, 40'000));
  run.run.info.clock = Json::object();
  const Json summary = run.summary();
  expect_refused(summary, "no calibration in run.json");
  EXPECT_EQ(summary["clock"]["reason"], "no calibration in run.json");
  EXPECT_TRUE(summary["clock"]["gpu_gpu_bound_ns"].is_null());
  EXPECT_TRUE(summary["clock"]["pairs"].empty());
}

TEST(RunClocks, TwoPointsAreNotEnough) {
  const Json summary = CalibratedRun(on_gpus(2, LateStage::kArrival, 40'000), {}, 2).summary();
  expect_refused(summary, "2 points of calibration, 3 are needed");
  EXPECT_TRUE(summary["clock"]["gpu_gpu_bound_ns"].is_null());
}

TEST(RunClocks, AClockThatWasSetRefusesTheLaunch) {
  GpuClocks clocks;
  clocks.step_after_ns = 1'100'000'000;
  clocks.step_ns = 60'000;
  const Json summary = CalibratedRun(on_gpus(2, LateStage::kNone, 0), clocks).summary();
  expect_refused(summary, "was set");
  EXPECT_NE(summary["clock"]["reason"].get<std::string>().find("launch 0: rank 1 against rank 0"),
            std::string::npos);
}

TEST(RunClocks, AllReducesThatContradictTheCalibrationRefuseTheCase) {
  CalibratedRun run(on_gpus(2, LateStage::kNone, 0));
  for (PhaseRow& row : run.run.rows[1]) {  // stamps of a clock that nobody calibrated
    row.first_all_reduce_own_ns += 100'000;
    row.first_all_reduce_last_seen_ns += 100'000;
    row.first_all_reduce_end_ns += 100'000;
  }
  expect_refused(run.summary(), "own all-reduces contradict the calibration in");
}

TEST(RunClocks, ATriangleThatDoesNotCloseRefusesTheLaunch) {
  CalibratedRun run(on_gpus(3, LateStage::kNone, 0));
  for (Json& point : run.run.info.clock["points"]) {
    if (point["b"] != 2 || point["a"] != 0) continue;
    point["base_b_ns"] = point["base_b_ns"].get<std::int64_t>() + 30'000;
  }
  const Json summary = run.summary();
  expect_refused(summary, "do not close");
  EXPECT_EQ(summary["clock"]["closures"][0]["within"], false);
}

TEST(RunClocks, AClosingPairThatIsInconsistentRefusesTheLaunch) {
  CalibratedRun run(on_gpus(3, LateStage::kNone, 0));
  int point_of_pair = 0;
  for (Json& point : run.run.info.clock["points"]) {
    if (point["a"] != 1 || ++point_of_pair < 4) continue;
    point["base_b_ns"] = point["base_b_ns"].get<std::int64_t>() + 30'000;
  }
  expect_refused(run.summary(), "launch 0: rank 2 against rank 1: one of the clocks was set");
}

TEST(RunClocks, WithNcclTheArrivalsAreKnownThoughNoWaitIs) {
  GeneratorConfig config = on_gpus(2, LateStage::kDispatch, 40'000);
  config.cases[0].all_reduce = "nccl";
  const Json a = CalibratedRun(config).summary()["cases"][0]["attribution"];
  EXPECT_NEAR(a["arrival_gap_ns"]["p50"].get<double>(), 40'000, 100);
  EXPECT_TRUE(a["exposed_ns"].is_null());
  EXPECT_EQ(a["arrival_residual_ns"]["reasons"]["p50"], "no excess wait");
  EXPECT_NEAR(share(a, "dispatch"), 1.0, 0.01);
  EXPECT_NEAR(share(a, "launch_to_arrival"), 0.0, 0.01);
}

TEST(RunClocks, ARankWithoutCalibrationRefusesTheLaunch) {
  CalibratedRun run(on_gpus(3, LateStage::kNone, 0));
  Json kept = Json::array();
  for (const Json& point : run.run.info.clock["points"]) {
    if (point["b"] != 2) kept.push_back(point);
  }
  run.run.info.clock["points"] = kept;
  expect_refused(run.summary(), "no calibration of rank 2 against rank 0");
}

TEST(RunClocks, ReplaysBeyondTheLastPointAreNotCompared) {
  CalibratedRun run(on_gpus(2, LateStage::kArrival, 40'000));  // as of a run that was killed
  Json& points = run.run.info.clock["points"];
  points.erase(points.end() - 1);
  const Json summary = run.summary();
  const Json& a = summary["cases"][0]["attribution"];
  EXPECT_GT(a["arrival_gap_ns"]["n"], 0);
  EXPECT_LT(a["arrival_gap_ns"]["n"], a["replays"]);
  EXPECT_EQ(share(a, "launch_to_arrival"), -1e9);
  EXPECT_NE(a["missing_evidence"].dump().find("outside the calibrated time"), std::string::npos);
  double total = 0;
  for (const Json& stage : a["stages"]) {
    if (!stage["share"].is_null()) total += stage["share"].get<double>();
  }
  EXPECT_NEAR(total, 1.0, 1e-9);
}

TEST(RunClocks, PointsThatCannotBeReadAreCountedAndDoNoHarm) {
  const Json good = CalibratedRun(on_gpus(2, LateStage::kNone, 0)).run.info.clock["points"][0];
  const std::function<void(Json&)> kDamages[] = {
      [](Json& p) { p = 7; },
      [](Json& p) { p.erase("launch"); },
      [](Json& p) { p["launch"] = -1; },
      [](Json& p) { p["launch"] = 1'000'000; },
      [](Json& p) { p["a"] = 9; },
      [](Json& p) { p["a"] = "0"; },
      [](Json& p) { p["b"] = 0; },
      [](Json& p) { p.erase("exchanges_ns"); },
      [](Json& p) { p["exchanges_ns"] = "none"; },
      [](Json& p) { p["exchanges_ns"].erase(3); },
      [](Json& p) { p["exchanges_ns"][3] = 1.5; },
      [](Json& p) {
        p["exchanges_ns"][3] = {1, 2, 3, 4};
      },
  };
  int damages = 0;
  CalibratedRun run(on_gpus(2, LateStage::kNone, 0));
  for (const auto& damage : kDamages) {
    Json point = good;
    damage(point);
    run.run.info.clock["points"].push_back(point);
    ++damages;
  }
  const Json clock = run.summary()["clock"];
  EXPECT_EQ(clock["unreadable_points"], damages);
  EXPECT_TRUE(clock["reason"].is_null());
  run.run.info.clock["points"] = Json{{"not", "a list"}};
  EXPECT_EQ(run.summary()["clock"]["reason"], "1 points of calibration cannot be read");
}

TEST(RunClocks, StampsOfA32BitCounterAreFollowedThroughItsWrap) {
  CalibratedRun run(on_gpus(2, LateStage::kNone, 0), {},
                    30);  // less than 2.1 s from point to point
  const Json wide = run.summary()["clock"]["pairs"][0];
  for (Json& point : run.run.info.clock["points"]) {
    const std::int64_t base[] = {point["base_a_ns"].get<std::int64_t>(),
                                 point["base_b_ns"].get<std::int64_t>()};
    point["base_a_ns"] = point["base_b_ns"] = 0;
    point["stamp_bits"] = 32;
    Json& stamps = point["exchanges_ns"];
    for (std::size_t i = 0; i < stamps.size(); ++i) {
      const bool of_b = i % 4 == 1 || i % 4 == 2;
      // Wraps on b's side between two points.
      const std::int64_t shift = of_b ? (std::int64_t{1} << 32) - 8'100'000'000 : 0;
      stamps[i] = (stamps[i].get<std::int64_t>() + base[of_b ? 1 : 0] + shift) & 0xffffffff;
    }
  }
  const Json& points = run.run.info.clock["points"];
  ASSERT_GT(points.front()["exchanges_ns"][1], points.back()["exchanges_ns"][1]);  // it did wrap
  const Json wrapped = run.summary()["clock"]["pairs"][0];
  ASSERT_TRUE(wrapped["reason"].is_null()) << wrapped.dump();
  EXPECT_EQ(wrapped["drift_ns_per_s"], wide["drift_ns_per_s"]);
  EXPECT_EQ(wrapped["bound_ns"], wide["bound_ns"]);
}

TEST(RunClocks, AModelledDeviceKeepsTheHostsClock) {
  GeneratorConfig config = on_gpus(2, LateStage::kDispatch, 40'000);
  config.backend = "host";
  const Json summary = RunDirectory(config).summary().document;
  EXPECT_TRUE(summary["clock"]["pairs"].empty());
  EXPECT_EQ(summary["clock"]["reason"], "modelled device: it runs on the host clock");
  const Json& a = summary["cases"][0]["attribution"];
  EXPECT_EQ(a["arrival_gap_ns"]["p50"], 40'000);
  EXPECT_EQ(a["arrival_residual_ns"]["p50"], 0);
  EXPECT_EQ(a["arrival_bound_ns"], 0);
}

TEST(RunClocks, TheReportShowsWhatWasComparedAndHowWell) {
  const std::string text = CalibratedRun(on_gpus(3, LateStage::kNone, 0)).text();
  for (const char* part :
       {"Can stamps of different clocks be compared?", "rank 0 to rank 1: offset",
        "ranks 0, 1 and 2 in launch 0: close to", "arrival gap p50"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << '\n' << text;
  }
}

// A record from two H200 without calibration: what its all-reduces say by themselves.
TEST(RunClocks, RealAllReducesOfTwoGpusShowTheirFlight) {
  const std::filesystem::path record =
      std::filesystem::path(TPJITTER_SOURCE_DIR) / "tests/golden/records/h200_x2_smoke";
  if (!std::filesystem::exists(record)) GTEST_SKIP() << "no record of two GPUs";
  const auto run = read_run(record);
  const RunClocks clocks(run.info);
  EXPECT_EQ(clocks.reason(), "no calibration in run.json");
  std::uint64_t both = 0;
  for (const RunCase& c : run.info.cases) {
    const OwnExchanges own = own_exchanges(run, match_replays(run, c.index), clocks);
    both += own.both_waited;
    EXPECT_EQ(own.no_pair, 0u);
    for (const std::int64_t flight : own.flights_ns) {
      EXPECT_GT(flight, 1'000);
      EXPECT_LT(flight, 3'000);
    }
  }
  EXPECT_GT(both, 50u);
}

}  // namespace
}  // namespace tpjitter
