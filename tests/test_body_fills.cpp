// What baked fills add to the modelled graph of the host backend, and which cases it leaves to GPUs.
#include <gtest/gtest.h>

#include "harness/host/host_backend.h"
#include "harness/host/host_case.h"

namespace tpjitter {
namespace {

constexpr int kRanks = 2;

CaseConfig small_case(bool swa) {
  CaseConfig config;
  config.path = "fused_in_graph";
  config.swa = config.draft_swa = swa;
  config.context_tokens = 500;
  config.page_size = 16;
  config.layers = 6;
  return config;
}

ModelledGraph graph_of(CaseConfig config, const std::string& fills, int graph = 0) {
  config.fills = fills;
  return HostCase(config, DeviceModel{}, kRanks).graphs[graph];
}

TEST(BodyFills, CostThreeFillerNodesALayerWithFullAttention) {
  const DeviceModel model;
  for (const bool swa : {false, true}) {
    const ModelledGraph persistent = graph_of(small_case(swa), "persistent");
    const ModelledGraph baked = graph_of(small_case(swa), "baked");
    const std::int64_t fills = swa ? 3 * 3 : 6 * 3;  // every other layer, from the second on
    EXPECT_EQ(baked.lead_ns + baked.rest_ns - persistent.lead_ns - persistent.rest_ns,
              fills * model.filler_node_ns);
    // Layer 0's come before the first all-reduce, unless it is sliding.
    EXPECT_EQ(baked.lead_ns - persistent.lead_ns, swa ? 0 : 3 * model.filler_node_ns);
    EXPECT_GT(baked.host_ns, persistent.host_ns);
    EXPECT_EQ(baked.all_reduces, persistent.all_reduces);
  }
}

TEST(BodyFills, CountTheLayersOfAllForwardsOfADraftGraph) {
  CaseConfig config = small_case(false);
  config.mode = "speculative";
  config.draft_steps = 4;
  const ModelledGraph persistent = graph_of(config, "persistent");
  const ModelledGraph baked = graph_of(config, "baked");
  EXPECT_EQ(baked.lead_ns + baked.rest_ns - persistent.lead_ns - persistent.rest_ns,
            3 * 3 * DeviceModel{}.filler_node_ns);
}

TEST(BodyFills, AreForTheHostBackendTooButProgrammaticLaunchIsNot) {
  CaseConfig config = small_case(true);
  config.fills = "baked";
  EXPECT_EQ(host_skip_reason(config, kRanks), "");
  config.pdl = true;
  EXPECT_EQ(host_skip_reason(config, kRanks),
            "body.pdl needs a GPU: the model has no launch latency between nodes");
}

// As SGLang's trtllm_mha backend sizes its buffer; a batch of one has its padding row too.
TEST(BodyFills, NeedCountersForEveryRunningRequestAndItsDraftTokens) {
  EXPECT_EQ(kernels::attention_counter_rows(32, 1), 33);
  EXPECT_EQ(kernels::attention_counter_rows(32, 4), 132);
  EXPECT_EQ(kernels::attention_counter_rows(1, 0), 2);
}

}  // namespace
}  // namespace tpjitter
