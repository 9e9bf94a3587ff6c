// Attribution of published cases, from the record alone. Each record is generated from what a user
// reported about a real engine; what was found there must be found here. The random records below
// have a known laggard and stage in every replay.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "reports/attribution.h"
#include "tests/run_directory.h"

namespace tpjitter {
namespace {

Json case_of(const GeneratedRun& run) { return RunDirectory(run).summary().document["cases"][0]; }

double share(const Json& attribution, const std::string& name) {
  for (const Json& stage : attribution["stages"]) {
    if (stage["stage"] == name && stage["share"].is_number()) return stage["share"].get<double>();
  }
  return -1e9;
}

GeneratorConfig gpus(int steps = 1040) {
  GeneratorConfig config;
  config.backend = "cuda";
  config.steps = steps;
  config.block_steps = 260;
  config.gpu_tick_ns = 32;
  return config;
}

// Two ranks: rank 0 waits 3.5 ms for rank 1 in the first all-reduce of each batch, because rank 1
// gets its schedule late; the other all-reduces of the batch do not wait.
TEST(PublishedCases, AFollowerThatIsLateOnTheFirstAllReduceOfEachBatchOnly) {
  GeneratorConfig config = gpus();
  config.noise_ns = 2'000;
  GeneratedCase& c = config.cases[0];
  c.speculative = true;
  c.late_stage = LateStage::kCoupling;
  c.late_rank = 1;
  c.late_ns = 3'500'000;
  c.late_first_graph_only = true;
  const Json found = case_of(generate_run(config));
  const Json& a = found["attribution"];
  EXPECT_GT(share(a, "coupling"), 0.95);
  EXPECT_GT(found["ranks"][0]["metrics"]["first_all_reduce_excess_wait_ns"]["p90"], 3'400'000);
  EXPECT_LT(found["ranks"][1]["metrics"]["first_all_reduce_excess_wait_ns"]["p90"], 10'000);
  // One graph of three waits, and in it no other all-reduce.
  EXPECT_LT(a["exposed_ns"], 10'000);
  EXPECT_NEAR(a["later_excess_ns"].get<double>(), 0, 100);

  c.speculative = false;  // the batch is one graph: now every first all-reduce is such a one
  const Json one_graph = case_of(generate_run(config));
  EXPECT_EQ(one_graph["attribution"]["class"], "arrival_skew");
  EXPECT_NEAR(one_graph["attribution"]["exposed_ns"].get<double>(), 3'500'000, 10'000);
  EXPECT_EQ(one_graph["ranks"][1]["laggard_share"], 1.0);
  EXPECT_NE(one_graph["attribution"]["next_experiment"].get<std::string>().find("accept"),
            std::string::npos);
}

// About 159 all-reduces a step, each entered 150 us apart, because the host launches between them.
TEST(PublishedCases, SkewAtEveryAllReduceOfALaunchPacedStep) {
  GeneratorConfig config = gpus();
  config.noise_ns = 2'000;
  GeneratedCase& c = config.cases[0];
  c.late_stage = LateStage::kGraphLaunch;
  c.late_rank = 1;
  c.late_ns = 150'000;
  c.later_skew_ns = 150'000;
  GeneratedRun run = generate_run(config);
  run.info.cases[0].values["step"] = {{"execution", "eager"}};
  const Json a = case_of(run)["attribution"];
  EXPECT_EQ(a["class"], "arrival_skew");
  EXPECT_NEAR(a["later_excess_ns"].get<double>(), 150'000, 100);
  EXPECT_EQ(a["next_experiment"].get<std::string>().find("run with step.execution"), 0u);
  // The same skew at the first all-reduce only is a matter of the launch, not of what follows it.
  config.cases[0].later_skew_ns = 0;
  const Json first_only = case_of(generate_run(config))["attribution"];
  EXPECT_NEAR(first_only["later_excess_ns"].get<double>(), 0, 100);
  EXPECT_EQ(first_only["next_experiment"].get<std::string>().find("run with fewer nodes"), 0u);
}

// A regression of 2 us in every all-reduce of both ranks is the transfer's, whether the data or the
// flags take longer: nobody is late.
TEST(PublishedCases, TwoMicrosecondsMoreOnEveryAllReduceOfBothRanksIsTransfer) {
  GeneratorConfig config = gpus();
  config.cases[0].late_stage = LateStage::kDispatch;
  config.cases[0].late_rotates = true;
  config.cases[0].late_ns = 300;  // natural: some flight remains to be waited for
  const Json before = case_of(generate_run(config))["attribution"];
  for (const bool flags : {false, true}) {
    GeneratorConfig slower = config;
    (flags ? slower.slower_flight_ns : slower.slower_transfer_ns) = 2'000;
    const Json found = case_of(generate_run(slower));
    const Json& a = found["attribution"];
    EXPECT_EQ(a["class"], "transfer") << a.dump();
    EXPECT_NEAR(a["exposed_ns"].get<double>(), before["exposed_ns"].get<double>(), 64);
    EXPECT_NEAR(a["flight_shift_ns"].get<double>(), flags ? 2'000 : 0, 64);
    EXPECT_NEAR(a["later_excess_ns"].get<double>(), 0, 64);
    EXPECT_NEAR(found["ranks"][0]["laggard_share"].get<double>(), 0.5, 0.02);
  }
}

// A profiler that starts on one rank: one all-reduce spins for 15.7 s of a run of 16.8 s.
TEST(PublishedCases, AProfilerStartIsAnOutlierAndMovesNoMedian) {
  GeneratorConfig config = gpus();
  config.noise_ns = 2'000;
  const Json quiet = case_of(generate_run(config));
  config.cases[0].once = {{700, 1, LateStage::kDispatch, 15'700'000'000}};
  GeneratedRun run = generate_run(config);
  for (PhaseRow& row : run.rows[1]) {
    if (row.step == 700) row.context_switches_involuntary = 41, row.faults_minor = 9'000;
    if (row.step >= 700) row.cpu = 5;
  }
  const Json found = case_of(run);
  for (const char* metric : {"first_all_reduce_excess_wait_ns", "launch_skew_ns", "step_ns"}) {
    for (const char* quantile : {"p50", "p90", "p99"}) {
      EXPECT_NEAR(found["metrics"][metric][quantile].get<double>(),
                  quiet["metrics"][metric][quantile].get<double>(), 200)
          << metric << " " << quantile;
    }
  }
  EXPECT_EQ(found["attribution"]["class"], quiet["attribution"]["class"]);
  ASSERT_FALSE(found["outliers"].empty());
  const Json& worst = found["outliers"][0];
  EXPECT_EQ(worst["by"], "excess_wait");
  EXPECT_EQ(worst["step"], 700);
  EXPECT_EQ(worst["rank"], 1);
  EXPECT_EQ(worst["stage"], "dispatch");
  EXPECT_GT(worst["excess_ns"], 15'600'000'000);
  EXPECT_EQ(worst["context_switches_involuntary"], 41);
  EXPECT_EQ(worst["faults_minor"], 9'000);
  EXPECT_EQ(worst["cpu"], 5);
  EXPECT_EQ(worst["migrated"], true);
}

// Lateness below a flag's flight: both ranks poll, and the difference of their waits is twice it.
TEST(Lateness, IsItselfWhereBothRanksWaited) {
  for (const std::int64_t late_ns : {320, 1'280, 40'000}) {  // the flight takes 2.1 us
    GeneratorConfig config = gpus();
    config.cases[0].late_stage = LateStage::kDispatch;
    config.cases[0].late_rank = 1;
    config.cases[0].late_ns = late_ns;
    const Json a = case_of(generate_run(config))["attribution"];
    EXPECT_NEAR(a["lateness_ns"].get<double>(), static_cast<double>(late_ns), 32) << late_ns;
    EXPECT_NEAR(share(a, "dispatch"), 1, 0.1) << late_ns;
  }
}

// Waits of ranks that arrive in each replay when `after_ns` says; flags fly `flight_ns`, and a flag that is there is read in 400 ns.
template <class Arrival>
void arrive(GeneratedRun* run, std::int64_t flight_ns, Arrival after_ns) {
  const std::size_t ranks = run->rows.size();
  for (std::size_t i = 0; i < run->rows[0].size(); ++i) {
    std::vector<std::int64_t> own(ranks);
    for (std::size_t r = 0; r < ranks; ++r) own[r] = after_ns(i, r);
    for (std::size_t r = 0; r < ranks; ++r) {
      std::int64_t seen = own[r] + 400;
      PhaseRow& row = run->rows[r][i];
      row.flags &= ~std::uint32_t{kFlagWaited};
      for (std::size_t p = 0; p < ranks; ++p) {
        if (p == r || own[p] + flight_ns <= seen) continue;
        seen = own[p] + flight_ns;
        row.flags |= kFlagWaited;
      }
      row.first_all_reduce_last_seen_ns = row.first_all_reduce_own_ns + seen - own[r];
      row.first_all_reduce_end_ns = row.first_all_reduce_last_seen_ns + 1'500;
    }
  }
}

// The last two wait for each other, and the median rank is neither of them.
TEST(Lateness, IsAgainstTheMedianRankWhereTheLastTwoArriveWithinAFlight) {
  GeneratorConfig config = gpus();
  config.world_size = 4;
  GeneratedRun run = generate_run(config);
  arrive(&run, 1'000, [](std::size_t, std::size_t rank) {
    constexpr std::int64_t kArrivals[] = {0, 0, 49'500, 50'000};
    return kArrivals[rank];
  });
  EXPECT_EQ(case_of(run)["attribution"]["lateness_ns"], 50'000);
}

// A flight of 2 us over the floor is no lateness, whether the last rank polls or finds all flags.
TEST(Lateness, DoesNotHoldWhatTheFlightTookOverItsFloor) {
  GeneratedRun run = generate_run(gpus());
  arrive(&run, 4'100, [](std::size_t i, std::size_t rank) {
    if (rank == 0) return std::int64_t{0};
    return std::int64_t{i % 3 == 0 ? 300 : 40'000};
  });
  const Json a = case_of(run)["attribution"];
  EXPECT_EQ(a["flight_shift_ns"], 2'000);
  EXPECT_EQ(a["exposed_ns"], 40'000);
  EXPECT_EQ(a["lateness_ns"], 40'000);
  double mean = 0;
  for (const Json& stage : a["stages"]) {
    if (stage["mean_ns"].is_number()) mean += stage["mean_ns"].get<double>();
  }
  EXPECT_NEAR(mean, 40'000 * 2.0 / 3 + 100, 400);
}

// What the flight takes longer than the control's floor is no skew, neither of the case nor of the
// steps that stand out of it.
TEST(Outliers, HaveTheScaleOfTheExposedSkew) {
  GeneratorConfig config = gpus();
  config.cases[0].late_stage = LateStage::kDispatch;
  config.cases[0].late_rotates = true;
  config.cases[0].late_ns = 300;
  config.cases[0].once = {{700, 1, LateStage::kDispatch, 100'000}};
  const Json quick = case_of(generate_run(config));
  config.slower_flight_ns = 2'000;
  const Json slow = case_of(generate_run(config));
  ASSERT_NEAR(slow["attribution"]["flight_shift_ns"].get<double>(), 2'000, 64);
  const Json &worst = slow["outliers"][0], &before = quick["outliers"][0];
  EXPECT_EQ(worst["step"], 700);
  EXPECT_NEAR(worst["excess_ns"].get<double>(), before["excess_ns"].get<double>(), 64);
  for (const Json& outlier : slow["outliers"]) {
    if (outlier["by"] != "excess_wait") continue;
    EXPECT_GT(outlier["excess_ns"], slow["attribution"]["exposed_ns"]);
  }
}

// The launch of the whole-step graph takes the host 700 us a step with the GPU idle; where launches
// run ahead, the gap between two replays is 5.4 us.
TEST(PublishedCases, SevenHundredMicrosecondsOfLaunchWithTheGpuIdle) {
  GeneratorConfig config = gpus();
  config.graph_launch_ns = 700'000;
  config.arrival_ns = 4'000;
  config.noise_ns = 1'000;
  GeneratedRun run = generate_run(config);
  const Json a = case_of(run)["attribution"];
  EXPECT_EQ(a["class"], "transfer");  // both ranks take as long
  EXPECT_GT(a["gpu_idle_ns"], 700'000);
  EXPECT_LT(a["gpu_idle_ns"], 810'000);
  EXPECT_EQ(a["gpu_idle_stage"], "graph_launch");
  EXPECT_EQ(a["next_experiment"].get<std::string>().find("run with step.loop = \"run_ahead\""), 0u);

  // Behind the gate of a delay on the GPU nobody knows since when the GPU stands idle.
  GeneratedRun gated = run;
  gated.info.cases[0].values["inject"] = {{"where", "gpu"}};
  EXPECT_TRUE(case_of(gated)["attribution"]["gpu_idle_ns"].is_null());
  gated.info.cases[0].values["inject"] = {{"where", "before_launch"}};
  EXPECT_EQ(case_of(gated)["attribution"]["gpu_idle_ns"], a["gpu_idle_ns"]);

  for (auto& rows : run.rows) {  // the same launches, hidden behind the replay before
    for (std::size_t i = 1; i < rows.size(); ++i)
      rows[i].gpu_begin_ns = rows[i - 1].gpu_end_ns + 5'400;
  }
  const Json hidden = case_of(run)["attribution"];
  EXPECT_EQ(hidden["gpu_idle_ns"], 5'400);
  EXPECT_TRUE(hidden["gpu_idle_stage"].is_null());
  EXPECT_EQ(hidden["next_experiment"].get<std::string>().find("compare body.all_reduce"), 0u);

  config.graph_launch_ns = 6'000;  // one rank alone is slow: then the others wait for it
  config.cases[0].late_stage = LateStage::kGraphLaunch;
  config.cases[0].late_rank = 0;
  config.cases[0].late_ns = 700'000;
  const Json one = case_of(generate_run(config));
  EXPECT_EQ(one["attribution"]["class"], "arrival_skew");
  EXPECT_GT(share(one["attribution"], "graph_launch"), 0.99);
  EXPECT_EQ(one["ranks"][0]["laggard_share"], 1.0);
}

// A warm-up without collectives leaves the ranks hundreds of ms apart; all of it lands on the first
// pass. With 8 samples its value was the published p90 and p99.
TEST(PublishedCases, TheFirstPassAfterWarmUpIsKeptOutOfEveryFigure) {
  GeneratorConfig config = gpus();
  config.world_size = 4;
  config.noise_ns = 2'000;
  const Json quiet = case_of(generate_run(config));
  config.cases[0].once = {{0, 2, LateStage::kArrival, 400'000'000}};
  const GeneratedRun run = generate_run(config);
  const Json found = case_of(run);
  EXPECT_EQ(found["left_out"], quiet["left_out"]);
  EXPECT_LT(found["metrics"]["first_all_reduce_wait_ns"]["max"], 100'000);
  EXPECT_LT(found["metrics"]["step_ns"]["max"], 10'000'000);
  EXPECT_EQ(found["attribution"]["class"], quiet["attribution"]["class"]);
  for (const Json& outlier : found["outliers"]) EXPECT_NE(outlier["step"], 0);
  const PhaseRow& kept = run.rows[0][0];
  EXPECT_NE(kept.flags & kFlagFirstAfterWarmup, 0u);
  EXPECT_GT(kept.first_all_reduce_last_seen_ns - kept.first_all_reduce_own_ns, 390'000'000);

  GeneratorConfig eight = gpus(8);
  const Json few = case_of(generate_run(eight));
  EXPECT_TRUE(few["metrics"]["first_all_reduce_wait_ns"]["p90"].is_null());
  EXPECT_TRUE(few["metrics"]["first_all_reduce_wait_ns"]["p99"].is_null());
}

// What the attribution got right, over the replays whose skew exceeds the bound.
struct Score {
  int replays = 0, laggard = 0, staged = 0, stage = 0;
  double laggard_right() const { return static_cast<double>(laggard) / replays; }
  double stage_right() const { return static_cast<double>(stage) / staged; }
};

bool same_stage(LateStage truth, std::optional<std::size_t> found) {
  if (!found) return false;
  switch (truth) {
    case LateStage::kCoupling:
      return *found == kStageCoupling;
    case LateStage::kInputs:
      return *found == kStageInputs;
    case LateStage::kDispatch:
      return *found == kStageDispatch;
    case LateStage::kGraphLaunch:
      return *found == kStageGraphLaunch;
    case LateStage::
        kArrival:  // without a common clock nobody sees more than that the host is not it
      return *found == kStageLaunchToArrival || *found == kStageUnexplained;
    case LateStage::kNone:
      return false;
  }
  return false;
}

void add_score(const GeneratedRun& generated, std::int64_t bound_ns, Score* score) {
  const RunDirectory directory(generated);
  const Run run = directory.read();
  const ReplayTable table = match_replays(run, 0);
  const Floors floors = compute_floors(run, 0, table);
  attribute(run, run.info.cases[0], table, floors, [&](const ReplayLateness& replay) {
    const PhaseRow& row = run.ranks[0].rows[table.row_of_slot[0][replay.slot]];
    const auto truth =
        std::find_if(generated.truth.begin(), generated.truth.end(), [&](const ReplayTruth& t) {
          return t.launch == row.launch && t.repetition == row.repetition && t.step == row.step &&
                 t.graph == row.graph;
        });
    if (truth->skew_ns < bound_ns) return;
    ++score->replays;
    const bool right = replay.laggard == static_cast<std::size_t>(truth->laggard);
    score->laggard += right ? 1 : 0;
    ++score->staged;
    score->stage += same_stage(truth->stage, replay.stage) ? 1 : 0;
  });
}

// Random ranks and stages are late by 4 to 64 us over natural noise; worlds of 2 to 8 ranks.
GeneratedRun random_record(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  GeneratorConfig config = gpus(120);
  config.block_steps = 60;
  config.seed = seed;
  config.backend = random() % 2 == 0 ? "cuda" : "host";
  config.world_size = 2 + static_cast<int>(random() % 7);
  config.noise_ns = static_cast<std::int64_t>(random() % 800);
  config.flight_noise_ns = static_cast<std::int64_t>(random() % 200);
  GeneratedCase& c = config.cases[0];
  c.late_random = true;
  c.late_ns = 64'000;
  c.speculative = random() % 3 == 0;
  return generate_run(config);
}

constexpr std::int64_t kBoundNs = 1'200;  // of the GPU clocks of one host

TEST(RandomRecords, TheLaggardAndItsStageAreFound) {
  Score score;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) add_score(random_record(seed), kBoundNs, &score);
  EXPECT_GT(score.replays, 5'000);
  EXPECT_GE(score.laggard_right(), 0.99);
  EXPECT_GE(score.stage_right(), 0.95);
}

TEST(RandomRecords, WrongTruthAndDamagedStampsScoreBadly) {
  Score swapped, moved;
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    GeneratedRun run = random_record(seed);
    for (ReplayTruth& truth : run.truth) truth.laggard = (truth.laggard + 1) % run.info.world_size;
    add_score(run, kBoundNs, &swapped);
    // Each stage's time stands in the next one: a mistaken attribution, seen from the other side.
    run = random_record(seed);
    for (auto& rows : run.rows) {
      for (PhaseRow& row : rows) {
        const std::int64_t inputs = row.inputs_end_ns - row.inputs_begin_ns;
        const std::int64_t dispatch = row.dispatch_end_ns - row.dispatch_begin_ns;
        row.inputs_end_ns = row.dispatch_begin_ns = row.inputs_begin_ns + dispatch;
        row.dispatch_end_ns = row.dispatch_begin_ns + inputs;
      }
    }
    add_score(run, kBoundNs, &moved);
  }
  EXPECT_LT(swapped.laggard_right(), 0.2);
  EXPECT_LT(moved.stage_right(), 0.8);
  EXPECT_GE(moved.laggard_right(), 0.99);  // that did not change
}

}  // namespace
}  // namespace tpjitter
