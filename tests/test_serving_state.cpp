#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "harness/contract/error.h"
#include "harness/serving_state.h"
#include "kernels/decode_body.h"

namespace tpjitter {
namespace {

CaseConfig small_case() {
  CaseConfig config;
  config.batch_size = 6;
  config.capture_batch_sizes = {4, 8};
  config.context_tokens = 300;
  config.max_context_tokens = 360;
  config.page_size = 16;
  config.swa = true;
  config.inject_seed = 7;
  return config;
}

TEST(ServingShape, TakesTheSmallestCapturedBatchThatFits) {
  const ServingShape shape = ServingShape::of(small_case());
  EXPECT_EQ(shape.live_batch, 6);
  EXPECT_EQ(shape.batch_size, 8);
  EXPECT_EQ(shape.max_context, 368);  // whole pages
  EXPECT_EQ(shape.max_seq_pages, 23);
}

TEST(ServingShape, RefusesABatchThatNoGraphWasCapturedFor) {
  CaseConfig config = small_case();
  config.batch_size = 9;
  EXPECT_THROW(ServingShape::of(config), ConfigError);
}

TEST(ServingState, TwoRanksSeeTheSameInputs) {
  const ServingShape shape = ServingShape::of(small_case());
  ServingState a(shape), b(shape);
  for (int step = 0; step < 200; ++step) {
    const StepInputs& x = a.advance();
    const StepInputs& y = b.advance();
    ASSERT_EQ(x.seq_lens, y.seq_lens);
    ASSERT_EQ(x.req_pool_indices, y.req_pool_indices);
    ASSERT_EQ(x.out_cache_loc, y.out_cache_loc);
  }
  EXPECT_EQ(a.req_to_token(), b.req_to_token());
}

TEST(ServingState, PaddedRowsHoldWhatRunnersFill) {
  ServingState state(ServingShape::of(small_case()));
  for (int step = 0; step < 20; ++step) {
    const StepInputs& in = state.advance();
    for (int row = 6; row < 8; ++row) {
      EXPECT_EQ(in.seq_lens[row], 1);
      EXPECT_EQ(in.req_pool_indices[row], 0);
      EXPECT_EQ(in.out_cache_loc[row], 0);
    }
  }
  const auto& table = state.req_to_token();
  EXPECT_TRUE(std::all_of(table.begin(), table.begin() + state.shape().max_context,
                          [](std::int32_t slot) { return slot == 0; }));
}

TEST(ServingState, EveryLiveTokenHasASlotOfItsOwn) {
  const ServingShape shape = ServingShape::of(small_case());
  ServingState state(shape);
  for (int step = 0; step < 400; ++step) {
    const StepInputs& in = state.advance();
    std::set<std::int32_t> slots;
    std::int64_t tokens = 0;
    for (int row = 0; row < shape.live_batch; ++row) {
      ASSERT_LE(in.seq_lens[row], shape.max_context);
      for (int t = 0; t < in.seq_lens[row]; ++t) {
        const std::int32_t slot =
            state.req_to_token()[in.req_pool_indices[row] * shape.max_context + t];
        ASSERT_GE(slot, shape.page_size) << "page 0 is the padding page";
        ASSERT_LT(slot, shape.num_slots + shape.page_size);
        ASSERT_EQ(slot % shape.page_size, t % shape.page_size);
        slots.insert(slot);
        ++tokens;
      }
    }
    ASSERT_EQ(static_cast<std::int64_t>(slots.size()), tokens) << "step " << step;
  }
}

TEST(ServingState, WritesAndResetsRebuildTheDeviceCopy) {
  const ServingShape shape = ServingShape::of(small_case());
  ServingState state(shape);
  std::vector<std::int32_t> table = state.req_to_token();
  std::vector<std::int32_t> lengths(shape.batch_size, 1);
  int joins = 0;
  for (std::int64_t step = 0; step < 400; ++step) {
    if (step > 0) {  // the accept kernel
      for (int row = 0; row < shape.live_batch; ++row) {
        lengths[row] += kernels::accepted_tokens(shape.seed, step - 1, row);
      }
    }
    const StepInputs& in = state.advance();
    for (const TokenWrite& w : in.writes) table[w.flat] = w.slot;
    for (const LengthReset& r : in.resets) lengths[r.row] = r.seq_len;
    joins += step > 0 ? static_cast<int>(in.resets.size()) : 0;
    ASSERT_EQ(lengths, in.seq_lens) << "step " << step;
    ASSERT_LE(static_cast<std::int64_t>(in.writes.size()), state.max_writes());
  }
  EXPECT_EQ(table, state.req_to_token());
  EXPECT_GT(joins, 10) << "requests must leave and join";
}

// What a read that comes too late, or a write that comes too early, is caught by.
TEST(ServingState, ARowThatItsRequestLeavesIsWrongUntilAnotherTakesIt) {
  const ServingShape shape = ServingShape::of(small_case());
  ServingState state(shape);
  StepInputs before = state.advance();
  int given_up = 0;
  for (int step = 1; step < 400; ++step) {
    const StepInputs& now = state.advance();
    std::set<std::int64_t> places;
    for (const TokenWrite& write : now.writes) places.insert(write.flat);
    ASSERT_EQ(places.size(), now.writes.size()) << "two writes to one place, step " << step;
    for (const LengthReset& reset : now.resets) {
      const std::int64_t left = before.req_pool_indices[reset.row];
      const auto& rows = now.req_pool_indices;
      const bool taken = std::find(rows.begin(), rows.end(), left) != rows.end();
      EXPECT_EQ(state.req_to_token()[left * shape.max_context] == 0, !taken);
      EXPECT_EQ(places.count(left * shape.max_context), 1u);
      given_up += !taken;
    }
    before = now;
  }
  EXPECT_GT(given_up, 10);
}

TEST(ServingState, EveryStepChangesTheInputs) {
  ServingState state(ServingShape::of(small_case()));
  StepInputs before = state.advance();
  for (int step = 1; step < 50; ++step) {
    const StepInputs& now = state.advance();
    for (int row = 0; row < 6; ++row) {
      EXPECT_NE(now.seq_lens[row], before.seq_lens[row]);
      EXPECT_NE(now.out_cache_loc[row], before.out_cache_loc[row]);
    }
    before = now;
  }
}

TEST(ServingState, SwaMappingEndsInTheSentinelAndKeepsPagesWhole) {
  const ServingShape shape = ServingShape::of(small_case());
  const ServingState state(shape);
  const auto& mapping = state.full_to_swa();
  ASSERT_EQ(static_cast<std::int64_t>(mapping.size()), shape.num_slots + shape.page_size + 1);
  EXPECT_EQ(mapping.back(), -1);
  int unmapped = 0;
  for (std::int64_t slot = 0; slot + 1 < static_cast<std::int64_t>(mapping.size()); ++slot) {
    const std::int64_t first = mapping[slot / shape.page_size * shape.page_size];
    if (first < 0) {
      EXPECT_EQ(mapping[slot], -1);
      ++unmapped;
    } else {
      EXPECT_EQ(mapping[slot], first + slot % shape.page_size);
    }
  }
  EXPECT_GT(unmapped, 0);
}

}  // namespace
}  // namespace tpjitter
