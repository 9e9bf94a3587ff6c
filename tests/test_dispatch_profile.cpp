// Profiles of dispatcher calls: what a table may be, which quantile a call draws, and that drawn
// time is the call's whole time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "harness/call_overhead.h"
#include "harness/contract/dispatch_profile.h"
#include "harness/contract/error.h"
#include "kernels/tensor_ops_recording.h"

namespace tpjitter {
namespace {

using kernels::CallKind;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Json document(Json tables) {
  return {{"schema", "tpjitter.dispatch_profile/1"}, {"quantiles_ns", std::move(tables)}};
}

std::string error_of(const Json& json) {
  try {
    dispatch_profile_from_json(json, "here");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

std::vector<std::int64_t> draws(std::uint64_t seed, int rank, int count) {
  CallOverhead overhead(
      dispatch_profile_from_json(document({{"kernel", {10, 20, 30, 40}}, {"view", {1}}}), "here"),
      seed, rank);
  std::vector<std::int64_t> drawn;
  for (int i = 0; i < count; ++i) drawn.push_back(overhead.draw_ns(CallKind::kKernel));
  return drawn;
}

TEST(DispatchProfile, GivesAKindThatWasNotMeasuredTheTableOfKernels) {
  const DispatchProfile profile =
      dispatch_profile_from_json(document({{"kernel", {10, 20}}, {"view", {1, 2, 3}}}), "here");
  EXPECT_THAT(profile.kinds[static_cast<int>(CallKind::kView)], ElementsAre(1, 2, 3));
  EXPECT_THAT(profile.kinds[static_cast<int>(CallKind::kKernel)], ElementsAre(10, 20));
  EXPECT_THAT(profile.kinds[static_cast<int>(CallKind::kRead)], ElementsAre(10, 20));
  EXPECT_EQ(profile.document["quantiles_ns"]["view"][2], 3);
}

TEST(DispatchProfile, IsRefusedWithThePlaceAndWhatIsAllowed) {
  EXPECT_THAT(error_of(Json::array()), StartsWith("here: no dispatch profile; allowed: "));
  EXPECT_THAT(error_of({{"schema", "tpjitter.dispatch_profile/2"}, {"quantiles_ns", {}}}),
              StartsWith("here: no dispatch profile"));
  EXPECT_THAT(error_of(document({{"view", {1}}})),
              StartsWith("here: quantiles_ns.kernel: no list of quantiles"));
  EXPECT_THAT(error_of(document({{"kernel", Json::array()}})), HasSubstr("no list of quantiles"));
  EXPECT_THAT(error_of(document({{"kernel", {2, 1}}})), HasSubstr("below the one before"));
  EXPECT_THAT(error_of(document({{"kernel", {0}}})), HasSubstr("out of range"));
  EXPECT_THAT(error_of(document({{"kernel", {1.5}}})), HasSubstr("no integer"));
  EXPECT_THAT(error_of(document({{"kernel", {1}}, {"kernal", {1}}})),
              HasSubstr("quantiles_ns.kernal: no kind of call; allowed: view, host, kernel"));
}

TEST(DispatchProfile, WithoutATableIsRefusedSayingHowToMakeOne) {
  try {
    built_in_dispatch_profile("no_such");
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("scripts/calibrate_dispatch.py"));
    EXPECT_THAT(error.what(), HasSubstr("dispatch_profiles/no_such.json"));
  }
}

TEST(CallOverhead, DrawsTheSameForTheSameSeedAndRankAndElseOtherwise) {
  EXPECT_EQ(draws(7, 0, 64), draws(7, 0, 64));
  EXPECT_NE(draws(7, 0, 64), draws(7, 1, 64));
  EXPECT_NE(draws(7, 0, 64), draws(8, 0, 64));
}

TEST(CallOverhead, DrawsEachQuantileAboutEquallyOften) {
  std::map<std::int64_t, int> count;
  for (const std::int64_t ns : draws(1, 3, 40'000)) ++count[ns];
  ASSERT_EQ(count.size(), 4u);
  // Four standard deviations of a quarter of 40000 draws.
  for (const auto& [ns, times] : count) EXPECT_NEAR(times, 10'000, 350) << ns;
}

TEST(CallOverhead, SlowsAllCallsOfARebuildTogether) {
  Json table = document({{"kernel", {1000}}});
  table["rebuild_permille"] = {500, 1000, 3000};
  CallOverhead overhead(dispatch_profile_from_json(table, "here"), 1, 0);
  std::set<std::int64_t> seen;
  for (int rebuild = 0; rebuild < 50; ++rebuild) {
    overhead.begin_rebuild();
    const std::int64_t first = overhead.draw_ns(CallKind::kKernel);
    for (int call = 0; call < 5; ++call) EXPECT_EQ(overhead.draw_ns(CallKind::kView), first);
    seen.insert(first);
  }
  EXPECT_EQ(seen, (std::set<std::int64_t>{500, 1000, 3000}));
  table["rebuild_permille"] = {3, 2};
  EXPECT_THAT(error_of(table), HasSubstr("rebuild_permille: a quantile is below"));
}

TEST(CallOverhead, MakesACallLastItsDrawAndANumberIsAddedToEach) {
  constexpr std::int64_t kNs = 200'000;
  CallOverhead drawn(dispatch_profile_from_json(document({{"kernel", {kNs}}}), "here"), 1, 0);
  const std::int64_t begin = now_ns();
  drawn.begin(CallKind::kKernel);
  drawn.end();
  EXPECT_GE(now_ns() - begin, kNs);

  CaseConfig config;
  config.op_overhead_ns = kNs;
  CallOverhead added = CallOverhead::of(config, 0);
  const std::int64_t again = now_ns();
  added.begin(CallKind::kView);
  EXPECT_GE(now_ns() - again, kNs);
}

// Every kind that the op-by-op rebuild has: what calibration must measure.
class KindsOfCalls final : public kernels::RecordingTensorOps {
 public:
  using RecordingTensorOps::RecordingTensorOps;
  std::vector<CallKind> kinds;

 protected:
  void on_call(const char* name, CallKind kind) override {
    kinds.push_back(kind);
    RecordingTensorOps::on_call(name, kind);
  }
};

TEST(CallKinds, SayWhatAnOperationCosts) {
  kernels::AddressSource addresses;
  kernels::TensorAllocator allocator(addresses.block_source());
  KindsOfCalls ops(allocator, 5);
  const auto vector = [](kernels::IntType dtype) {
    return kernels::vector_tensor(reinterpret_cast<void*>(std::uintptr_t{4096}), dtype, 8);
  };
  const kernels::Tensor narrow = vector(kernels::IntType::kInt32);
  const kernels::Tensor wide = vector(kernels::IntType::kInt64);
  kernels::Tensor host = wide;
  host.on_host = true;
  ops.slice(narrow, 0, 0, 4);
  ops.item(ops.max(host));
  ops.item(ops.max(narrow));
  ops.copy_(narrow, narrow);
  ops.copy_(narrow, wide);
  ops.cumsum(narrow, kernels::IntType::kInt32);
  ops.index(wide, wide);
  ops.index(wide, narrow);
  ops.index(kernels::matrix_tensor(narrow.data, kernels::IntType::kInt32, 4, 2, 2),
            ops.unsqueeze(wide, 1), wide);
  EXPECT_THAT(ops.kinds, ElementsAre(CallKind::kView, CallKind::kHost, CallKind::kHost,
                                     CallKind::kKernel, CallKind::kRead, CallKind::kCopy,
                                     CallKind::kKernel, CallKind::kScan, CallKind::kIndex,
                                     CallKind::kIndexCast, CallKind::kView, CallKind::kIndexRows));
}

}  // namespace
}  // namespace tpjitter
