// Linear-attention state metadata: answers by hand, the op-by-op form against the reference, and
// the padded rows that the engine's count by fill value gets wrong.
#include <gtest/gtest.h>

#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/linear_state.h"
#include "kernels/tensor_ops_recording.h"
#include "kernels/tensor_ops_reference.h"
#include "tests/linear_state_cases.h"

namespace tpjitter {
namespace {

using kernels::DecodePhase;
using kernels::IntType;
using kernels::LinearStateArgs;
using kernels::ReferenceTensorOps;
using kernels::TensorAllocator;
using test::LinearCase;
using test::LinearOutputs;
using Ints = std::vector<std::int32_t>;
using Longs = std::vector<std::int64_t>;

constexpr DecodePhase kDecode = DecodePhase::kNormalDecode;
constexpr DecodePhase kVerify = DecodePhase::kTargetVerify;

// Requests in pool rows 3 and 1, then two padded rows whose pool rows are stale.
LinearCase two_of_four(std::int32_t query_len) {
  LinearCase c;
  c.req_pool_indices = {3, 1, 2, 2};
  c.mapping = {0, 7, 8, 5};
  c.num_padding = 2;
  c.query_len = query_len;
  return c;
}

TEST(LinearState, LooksUpLiveRowsAndEndsTheQueriesAtTheLiveCount) {
  const LinearCase c = two_of_four(1);
  LinearOutputs outputs(c);
  reference_linear_state(kDecode, bind(c, outputs));
  EXPECT_EQ(outputs.state_indices, (Ints{5, 7, -1, -1, test::kLinearPoison}));
  EXPECT_EQ(outputs.query_start_loc, (Ints{0, 1, 2, 2, 2, test::kLinearPoison}));
  EXPECT_EQ(outputs.req_pool_indices, (Longs{3, 1, 2, 2}));
}

TEST(LinearState, OfVerifyCountsDraftTokens) {
  const LinearCase c = two_of_four(4);
  LinearOutputs outputs(c);
  reference_linear_state(kVerify, bind(c, outputs));
  EXPECT_EQ(outputs.query_start_loc, (Ints{0, 4, 8, 8, 8, test::kLinearPoison}));
}

TEST(LinearState, ZeroesTheRunnersPaddedRequestsOnlyWhereAskedFor) {
  const LinearCase c = two_of_four(1);
  LinearOutputs outputs(c);
  LinearStateArgs args = bind(c, outputs);
  args.zero_padded_requests = true;
  reference_linear_state(kDecode, args);
  EXPECT_EQ(outputs.req_pool_indices, (Longs{3, 1, 0, 0}));
  EXPECT_EQ(outputs.state_indices, (Ints{5, 7, -1, -1, test::kLinearPoison}));
}

TEST(LinearState, CountingTheFillValueTakesLiveRowsOfLengthOneForPadding) {
  // Rows 0 and 1 live, row 1 a request of one token; rows 2 and 3 padded with the fill value 1.
  LinearCase c = two_of_four(1);
  const Longs seq_lens_cpu = {9, 1, 1, 1};
  const std::int32_t counted = kernels::count_fill_lengths(seq_lens_cpu.data(), 4, 1);
  EXPECT_EQ(counted, 3);  // one too many
  LinearOutputs given(c), miscounted(c);
  reference_linear_state(kDecode, bind(c, given));
  c.num_padding = counted;
  reference_linear_state(kDecode, bind(c, miscounted));
  // The live row loses its state and its query: what the explicit count avoids.
  EXPECT_EQ(miscounted.state_indices, (Ints{5, -1, -1, -1, test::kLinearPoison}));
  EXPECT_EQ(miscounted.query_start_loc, (Ints{0, 1, 1, 1, 1, test::kLinearPoison}));
  EXPECT_EQ(given.state_indices, (Ints{5, 7, -1, -1, test::kLinearPoison}));
  EXPECT_EQ(kernels::count_fill_lengths(nullptr, 4, 1), 0);  // no mirror: no padding at all
}

TEST(LinearState, AnIndexOutsideOfTheMappingIsNamedAndReadsNothing) {
  LinearCase c = two_of_four(1);
  c.req_pool_indices = {3, 4, 2, 2};
  LinearOutputs outputs(c);
  const LinearStateArgs args = bind(c, outputs);
  reference_linear_state(kDecode, args);
  EXPECT_EQ(outputs.state_indices, (Ints{5, -1, -1, -1, test::kLinearPoison}));
  try {
    check_linear_mapping(args);
    ADD_FAILURE() << "accepted";
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(),
                 "linear state: row 1 is request 4, outside of the state mapping of 4");
  }
  c.req_pool_indices = {3, 1, 9, 9};  // padded rows may hold anything
  LinearOutputs good(c);
  EXPECT_NO_THROW(check_linear_mapping(bind(c, good)));
}

TEST(LinearState, RefusesOtherModesAndSizesThatMakeNoSense) {
  const LinearCase c = two_of_four(1);
  LinearOutputs outputs(c);
  const LinearStateArgs good = bind(c, outputs);
  for (const DecodePhase phase : {DecodePhase::kDraftDecode, DecodePhase::kDraftExtendStrided,
                                  DecodePhase::kDraftExtendCumsum}) {
    EXPECT_THROW(reference_linear_state(phase, good), std::invalid_argument);
  }
  std::vector<LinearStateArgs> bad(7, good);
  bad[0].num_padding = 5;
  bad[1].num_padding = -1;
  bad[2].query_len = 4;  // in decode
  bad[3].mapping = nullptr;
  bad[4].req_pool_indices = nullptr;
  bad[5].state_indices = nullptr;
  bad[6].query_start_loc = nullptr;
  for (std::size_t i = 0; i < bad.size(); ++i) {
    EXPECT_THROW(reference_linear_state(kDecode, bad[i]), std::invalid_argument) << i;
  }
  EXPECT_EQ(outputs, LinearOutputs(c));
  LinearStateArgs empty;
  EXPECT_NO_THROW(reference_linear_state(kDecode, empty));
}

class LinearStateOps : public ::testing::Test {
 protected:
  TensorAllocator allocator_{kernels::host_block_source()};
  ReferenceTensorOps ops_{allocator_};
};

TEST_F(LinearStateOps, EqualTheReferenceInEveryWord) {
  for (const LinearCase& c : test::random_linear_cases()) {
    for (const bool zeroes : {false, true}) {
      const DecodePhase phase = c.query_len == 1 ? kDecode : kVerify;
      LinearOutputs expected(c), outputs(c);
      LinearStateArgs args = bind(c, expected);
      args.zero_padded_requests = zeroes;
      reference_linear_state(phase, args);
      const Ints preset = query_start_preset(c);
      args = bind(c, outputs);
      args.zero_padded_requests = zeroes;
      args.query_start_preset = preset.data();
      ASSERT_EQ(rebuild_linear_state_aten(ops_, phase, args), 0);
      ASSERT_EQ(outputs, expected)
          << "batch " << c.req_pool_indices.size() << ", padding " << c.num_padding;
      ASSERT_EQ(allocator_.blocks_in_use(), 0);
    }
  }
}

TEST_F(LinearStateOps, AMappingTooShortRaisesAsInPyTorch) {
  LinearCase c = two_of_four(1);
  c.mapping.resize(3);  // pool row 3 has no entry
  LinearOutputs outputs(c);
  LinearStateArgs args = bind(c, outputs);
  const Ints preset = query_start_preset(c);
  args.query_start_preset = preset.data();
  EXPECT_THROW(rebuild_linear_state_aten(ops_, kDecode, args), std::out_of_range);
  args.query_start_preset = nullptr;
  EXPECT_THROW(rebuild_linear_state_aten(ops_, kDecode, args), std::invalid_argument);
}

std::string recorded(std::int32_t num_padding, bool zeroes) {
  LinearCase c = two_of_four(1);
  c.num_padding = num_padding;
  LinearOutputs outputs(c);
  LinearStateArgs args = bind(c, outputs);
  const Ints preset = query_start_preset(c);
  args.query_start_preset = preset.data();
  args.zero_padded_requests = zeroes;
  kernels::AddressSource addresses;
  TensorAllocator allocator(addresses.block_source());
  kernels::RecordingTensorOps ops(allocator, 0);
  rebuild_linear_state_aten(ops, kDecode, args);
  std::string text;
  for (const auto& operation : ops.operations()) text += operation.name + " ";
  const kernels::OperationCounts counts = ops.counts();
  return text + std::to_string(counts.kernel_launches) + " launches, " +
         std::to_string(counts.copies) + " copies, " + std::to_string(counts.syncs) + " syncs";
}

TEST(LinearStateRecorded, CostsFewOperationsAndNoSync) {
  EXPECT_EQ(recorded(0, false),
            "index slice fill_ slice copy_ slice copy_ 1 launches, 2 copies, 0 syncs");
  EXPECT_EQ(recorded(2, true),
            "slice fill_ index slice fill_ slice copy_ slice slice copy_ slice fill_ 4 launches, "
            "2 copies, 0 syncs");
}

}  // namespace
}  // namespace tpjitter
