#include <gtest/gtest.h>

#include "tests/run_directory.h"

namespace tpjitter {
namespace {

GeneratorConfig late(LateStage stage, std::int64_t late_ns, int world_size = 2) {
  GeneratorConfig config;
  config.world_size = world_size;
  config.cases[0].late_stage = stage;
  config.cases[0].late_rank = world_size - 1;
  config.cases[0].late_ns = late_ns;
  return config;
}

Json attribution_of(const GeneratorConfig& config) {
  return RunDirectory(config).summary().document["cases"][0]["attribution"];
}

double share(const Json& attribution, const std::string& name) {
  for (const Json& stage : attribution["stages"]) {
    if (stage["stage"] == name)
      return stage["share"].is_null() ? -1e9 : stage["share"].get<double>();
  }
  return -1e9;
}

TEST(Attribution, TheLateStageExplainsAllOfTheLateness) {
  const std::pair<LateStage, const char*> kStages[] = {{LateStage::kCoupling, "coupling"},
                                                       {LateStage::kInputs, "inputs"},
                                                       {LateStage::kDispatch, "dispatch"},
                                                       {LateStage::kGraphLaunch, "graph_launch"},
                                                       {LateStage::kArrival, "launch_to_arrival"}};
  for (const auto& [stage, name] : kStages) {
    for (const int world_size : {2, 3, 8}) {
      const Json a = attribution_of(late(stage, 40'000, world_size));
      EXPECT_EQ(a["class"], "arrival_skew") << name;
      EXPECT_EQ(a["exposed_ns"], 40'000) << name;
      EXPECT_EQ(a["lateness_ns"], 40'000) << name;
      EXPECT_DOUBLE_EQ(share(a, name), 1.0) << name << " at world size " << world_size;
      EXPECT_DOUBLE_EQ(share(a, "unexplained"), 0.0) << name;
    }
  }
}

TEST(Attribution, WithoutAlignedGpuClocksTheGpusPartIsUnexplainedAndSaidToBeMissing) {
  GeneratorConfig config = late(LateStage::kArrival, 40'000);
  config.backend = "cuda";
  const Json a = attribution_of(config);
  EXPECT_EQ(a["exposed_ns"], 40'000);
  EXPECT_EQ(a["hidden_ns"], -40'000);  // the launches were together: the GPU made it
  EXPECT_EQ(a["hidden_negative"], 38);
  EXPECT_DOUBLE_EQ(share(a, "unexplained"), 1.0);
  for (const Json& stage : a["stages"]) {
    if (stage["stage"] == "launch_to_arrival") {
      EXPECT_TRUE(stage["share"].is_null());
    }
  }
  EXPECT_NE(a["missing_evidence"].dump().find("launch_to_arrival"), std::string::npos);
}

TEST(Attribution, HostStagesAreExactOnAGpuToo) {
  GeneratorConfig config = late(LateStage::kDispatch, 40'000);
  config.backend = "cuda";
  const Json a = attribution_of(config);
  EXPECT_DOUBLE_EQ(share(a, "dispatch"), 1.0);
  EXPECT_EQ(a["hidden_ns"], 0);
}

TEST(Attribution, ClassFollowsTheExcessAgainstTheTransfer) {
  EXPECT_EQ(attribution_of(late(LateStage::kNone, 0))["class"], "transfer");
  EXPECT_EQ(attribution_of(late(LateStage::kDispatch, 700))["class"], "transfer");
  EXPECT_EQ(attribution_of(late(LateStage::kDispatch, 2'000))["class"], "mixed");
  EXPECT_EQ(attribution_of(late(LateStage::kDispatch, 30'000))["class"], "arrival_skew");
}

TEST(Attribution, TooFewReplaysOrNoWaitsAreInconclusive) {
  GeneratorConfig few = late(LateStage::kDispatch, 30'000);
  few.steps = 10;
  EXPECT_EQ(attribution_of(few)["class"], "inconclusive");
  EXPECT_NE(attribution_of(few)["missing_evidence"].dump().find("20 are needed"),
            std::string::npos);
  GeneratorConfig nccl = late(LateStage::kDispatch, 30'000);
  nccl.cases[0].all_reduce = "nccl";
  const Json a = attribution_of(nccl);
  EXPECT_EQ(a["class"], "inconclusive");
  EXPECT_TRUE(a["exposed_ns"].is_null());
  EXPECT_DOUBLE_EQ(share(a, "dispatch"), 1.0);  // the launch itself is still explained
  EXPECT_FALSE(a["next_experiment"].get<std::string>().empty());
}

TEST(Attribution, SharesAddUpUnderNoise) {
  GeneratorConfig config = late(LateStage::kDispatch, 50'000, 4);
  config.noise_ns = 3'000;
  config.steps = 400;
  for (const char* backend : {"host", "cuda"}) {
    config.backend = backend;
    const Json a = attribution_of(config);
    double sum = 0;
    for (const Json& stage : a["stages"]) {
      if (!stage["share"].is_null()) sum += stage["share"].get<double>();
    }
    EXPECT_NEAR(sum, 1.0, 1e-9);
    EXPECT_GT(share(a, "dispatch"), 0.9);
    EXPECT_EQ(a["class"], "arrival_skew");
  }
}

TEST(Attribution, SpeculativeStepsSumTheRebuildsBeforeEachLaunch) {
  GeneratorConfig config = late(LateStage::kDispatch, 10'000);
  config.cases[0].speculative = true;
  const Json a = attribution_of(config);
  EXPECT_DOUBLE_EQ(share(a, "dispatch"), 1.0);
  EXPECT_EQ(a["replays"], 3 * 38);
}

TEST(Attribution, AdviceOnCouplingFollowsPinningAndInvoluntarySwitches) {
  const auto advice = [](const GeneratedRun& run) {
    const Json a = RunDirectory(run).summary().document["cases"][0]["attribution"];
    EXPECT_DOUBLE_EQ(share(a, "coupling"), 1.0);
    return a["next_experiment"].get<std::string>();
  };
  GeneratorConfig config = late(LateStage::kCoupling, 40'000);
  EXPECT_EQ(advice(generate_run(config)).find("compare idle states"), 0u);
  config.backend = "cuda";
  const GeneratedRun pinned = generate_run(config);
  EXPECT_EQ(advice(pinned).find("compare step.coupling_wait = \"mapped_flag\""), 0u);

  GeneratedRun loose = pinned;
  loose.info.ranks[0].cpu = std::nullopt;
  EXPECT_EQ(advice(loose).find("pin the ranks' timed threads"), 0u);

  const auto preempt = [&](std::size_t rank, std::size_t every) {
    GeneratedRun run = pinned;
    for (std::size_t i = 0; i < run.rows[rank].size(); i += every) {
      run.rows[rank][i].context_switches_involuntary = 2;
    }
    return advice(run);
  };
  EXPECT_EQ(preempt(1, 1).find("move other work off the ranks' cores"), 0u);
  EXPECT_NE(preempt(1, 1).find(": 100% of the time lost to coupling"), std::string::npos);
  EXPECT_NE(preempt(1, 4).find("mapped_flag"), std::string::npos);  // too few to explain it
  EXPECT_NE(preempt(0, 1).find("mapped_flag"), std::string::npos);  // not the late rank
}

TEST(Attribution, AdviceCanBeFollowed) {
  const auto advice = [](const GeneratedRun& run) {
    return RunDirectory(run).summary().document["cases"][0]["attribution"];
  };
  const auto next = [&](const GeneratedRun& run) {
    return advice(run)["next_experiment"].get<std::string>();
  };
  GeneratorConfig together = late(LateStage::kNone, 0);
  EXPECT_EQ(next(generate_run(together)).find("measure on GPUs"), 0u);
  together.backend = "cuda";
  EXPECT_EQ(next(generate_run(together)).find("compare body.all_reduce kernels"), 0u);

  GeneratorConfig in_graph = late(LateStage::kDispatch, 40'000);
  EXPECT_NE(next(generate_run(in_graph)).find("fused_in_graph"), std::string::npos);
  in_graph.cases[0].path = "fused_in_graph";
  EXPECT_EQ(next(generate_run(in_graph)).find("look for host noise before the launch"), 0u);

  GeneratedRun crowded = generate_run(late(LateStage::kCoupling, 40'000));
  for (RunRank& rank : crowded.info.ranks) rank.cpu = std::nullopt;
  EXPECT_EQ(next(crowded).find("pin the ranks"), 0u);
  crowded.info.warnings.push_back({"oversubscribed", "2 ranks share 1 CPU", std::nullopt});
  EXPECT_EQ(next(crowded).find("run fewer ranks than cores"), 0u);

  GeneratedRun lost = generate_run(late(LateStage::kDispatch, 40'000));
  for (auto& rows : lost.rows) {
    for (PhaseRow& row : rows) row.flags |= kFlagNoDeviceStamps;
  }
  EXPECT_EQ(next(lost).find("one_shot_pull"), std::string::npos);
  lost.info.cases[0].values["body"]["all_reduce"] = "one_shot_push";
  EXPECT_EQ(next(lost).find("one_shot_pull"), std::string::npos) << "push stamps its waits too";

  GeneratedRun unmarked = generate_run(late(LateStage::kDispatch, 40'000));
  for (PhaseRow& row : unmarked.rows[0]) row.flags &= ~std::uint32_t{kFlagModelledDevice};
  EXPECT_EQ(advice(unmarked).dump().find("GPU clocks"), std::string::npos);
}

TEST(Attribution, SharesOfStagesThatCancelAreLeftOut) {
  GeneratedRun run = generate_run({});
  for (auto& rows : run.rows) {
    for (PhaseRow& row : rows) {
      const bool late = &rows == &run.rows[1];
      row.inputs_end_ns += late ? 900 : 0;
      row.dispatch_begin_ns = row.inputs_end_ns;
      row.first_all_reduce_own_ns += late ? 1 : 0;
    }
  }
  const Json a = RunDirectory(run).summary().document["cases"][0]["attribution"];
  EXPECT_EQ(a["lateness_ns"], 1);
  EXPECT_DOUBLE_EQ(share(a, "inputs"), -1e9);  // null
  EXPECT_NE(a["missing_evidence"].dump().find("they cancel"), std::string::npos);
}

TEST(Attribution, AFewRowsWithoutLocalFloorAreNamed) {
  GeneratedRun generated = generate_run({});
  for (std::size_t i = 2; i < 7; ++i) generated.rows[1][i].flags &= ~std::uint32_t{kFlagWaited};
  const Json a = RunDirectory(generated).summary().document["cases"][0]["attribution"];
  EXPECT_NE(a["missing_evidence"].dump().find("local floor of rank 1: 5 rows"), std::string::npos);
}

}  // namespace
}  // namespace tpjitter
