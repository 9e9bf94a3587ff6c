// What the all-reduce kernels say about waiting: stamps, a late rank, a dead one, an abort, and
// arguments that are refused.
#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/spin.h"
#include "tests/gpu/all_reduce_checked.cuh"

namespace tpjitter {
namespace {

using kernels::AllReduceArgs;
using kernels::AllReduceStamp;

class AllReduceWaits : public PlacedRanksTest {};
INSTANTIATE_TEST_SUITE_P(Placements, AllReduceWaits,
                         testing::ValuesIn(placements({{1, 1}, {2, 1}, {3, 1}, {8, 1}, {2, 2}})),
                         [](const auto& info) { return name_of(info.param); });

TEST_P(AllReduceWaits, StampsInOrder) {
  const auto [kernel, world_size, devices] = GetParam();
  constexpr int kCalls = 16;
  AllReduceRanks ranks(world_size, 262'144, kCalls, devices);
  for (int call = 0; call < kCalls; ++call) {
    ranks.launch_all(kernel, call, call % 3 == 0 ? 262'144 : 5'760);
  }
  ranks.synchronize_all();
  for (int r = 0; r < world_size; ++r) {
    const auto stamps = download(ranks[r].stamps.data(), kCalls);
    for (const AllReduceStamp& stamp : stamps) {
      EXPECT_GT(stamp.own_ns, 0);
      EXPECT_LE(stamp.own_ns, stamp.end_ns);
      for (int p = 0; p < world_size; ++p) {
        if (p == r) {
          EXPECT_EQ(stamp.seen_ns[p], 0);
          EXPECT_EQ(stamp.waited >> p & 1, 0u);
          continue;
        }
        EXPECT_LE(stamp.own_ns, stamp.seen_ns[p]);
        EXPECT_LE(stamp.seen_ns[p], stamp.end_ns);
      }
      for (int p = world_size; p < kernels::kMaxAllReduceRanks; ++p) {
        EXPECT_EQ(stamp.seen_ns[p], 0);
      }
    }
  }
}

class AllReduceOfThree : public PlacedRanksTest {};
INSTANTIATE_TEST_SUITE_P(Placements, AllReduceOfThree, testing::ValuesIn(placements({{3, 1}})),
                         [](const auto& info) { return name_of(info.param); });

// Several packs a thread, so that push looks for later packs of the others after the late one.
TEST_P(AllReduceOfThree, RecoversADelayOfOneRankInTheOthersWait) {
  const kernels::AllReduceKernel kernel = GetParam().kernel;
  constexpr int kCalls = 20;
  constexpr int kLate = 1;
  constexpr std::int64_t kDelayNs = 2'000'000;  // longer than a host may need to launch all
  AllReduceRanks ranks(3, 262'144, kCalls);
  kernels::SpinArgs spin;
  spin.duration_ns = kDelayNs;
  for (int call = 0; call < kCalls; ++call) {
    check_cuda(kernels::launch_spin(spin, ranks[kLate].stream.get()));
    ranks.launch_all(kernel, call, call % 2 == 0 ? 5'760 : 262'144);
    ranks.synchronize_all();
  }
  const auto late = download(ranks[kLate].stamps.data(), kCalls);
  for (const int r : {0, 2}) {
    const auto early = download(ranks[r].stamps.data(), kCalls);
    std::vector<std::int64_t> errors;
    for (int call = 0; call < kCalls; ++call) {
      // One GPU, one clock: the wait seen is the difference of arrivals and the flag's flight.
      const std::int64_t gap = late[call].own_ns - early[call].own_ns;
      const std::int64_t wait = early[call].seen_ns[kLate] - early[call].own_ns;
      errors.push_back(wait - gap);
      EXPECT_EQ(early[call].waited >> kLate & 1, 1u);
      EXPECT_GE(wait, kDelayNs / 2);
      EXPECT_LT(early[call].seen_ns[2 - r], early[call].seen_ns[kLate]) << "the late one is last";
      EXPECT_EQ(late[call].waited, 0u) << "the early ranks' flags were there long ago";
    }
    std::sort(errors.begin(), errors.end());
    EXPECT_GE(errors.front(), -64) << "two steps of the clock";
    EXPECT_LE(errors[kCalls / 2], 20'000);
  }
}

TEST_P(AllReduceOfThree, CountsThroughTheWrapOf32Bits) {
  CheckedRanks checked(2, 5'760);
  constexpr std::uint32_t kBeforeWrap = 0xffff'fff0u;
  for (int r = 0; r < 2; ++r) {
    AllReduceRank& rank = checked.ranks[r];
    for (const auto& words : {rank.flags, rank.epochs, rank.push_epochs}) {
      upload(words.data(), std::vector<std::uint32_t>(words.size(), kBeforeWrap));
    }
  }
  for (int call = 0; call < 64; ++call) {
    for (int r = 0; r < 2; ++r) checked.enqueue(GetParam().kernel, r, call, 5'760);
  }
  checked.ranks.synchronize_all();
  EXPECT_EQ(checked.mismatches(), 0u);
  const auto counted = download(checked.ranks[0].epochs.data(), 1)[0] - kBeforeWrap +
                       download(checked.ranks[0].push_epochs.data(), 1)[0] - kBeforeWrap;
  EXPECT_EQ(counted, GetParam().kernel.name == "two_shot" ? 128u : 64u);
}

TEST_P(AllReduceOfThree, NamesTheDeadPeerAndReleasesEveryone) {
  const kernels::AllReduceKernel kernel = GetParam().kernel;
  constexpr std::uint32_t kCallsBefore = 4;
  const std::uint32_t epochs = kernel.name == "two_shot" ? 2 : 1;  // of a call
  AllReduceRanks ranks(3, 5'760);
  for (std::uint32_t call = 0; call < kCallsBefore; ++call) ranks.launch_all(kernel, call, 5'760);
  ranks.synchronize_all();
  constexpr int kNode = 70;
  for (const int r : {0, 1}) {  // rank 2 never comes
    AllReduceArgs args = ranks.args(r, kNode, 5'760);
    args.guard.deadline_ns = 20'000'000;
    check_cuda(kernel.launch(args, ranks[r].stream.get()));
  }
  synchronize(ranks[0].stream.get());
  synchronize(ranks[1].stream.get());
  int reports = 0;
  for (const int r : {0, 1}) {
    const kernels::DeviceFault& fault = ranks[r].fault[0];
    if (fault.written == 0) continue;  // released by the other's report
    ++reports;
    EXPECT_EQ(fault.rank, r);
    EXPECT_EQ(fault.peer, 2);
    EXPECT_EQ(fault.ordinal, kNode);
    EXPECT_EQ(fault.expected, kCallsBefore * epochs + 1);
    EXPECT_EQ(fault.seen, kCallsBefore * epochs);
  }
  EXPECT_GE(reports, 1);
  for (int r = 0; r < 3; ++r) EXPECT_EQ(download(ranks[r].abort.data(), 1)[0], 1u) << "rank " << r;

  // Later launches return at once: they take no part and wait for nobody, whatever the deadline.
  AllReduceArgs late = ranks.args(2, kNode + 1, 5'760);
  late.guard.deadline_ns = 3'600'000'000'000;
  for (int i = 0; i < 100; ++i) check_cuda(kernel.launch(late, ranks[2].stream.get()));
  synchronize(ranks[2].stream.get());
  EXPECT_EQ(download(ranks[2].epochs.data(), 1)[0] + download(ranks[2].push_epochs.data(), 1)[0],
            kCallsBefore * epochs);
  EXPECT_EQ(ranks[2].fault[0].written, 0u);
}

TEST_P(AllReduceOfThree, SendsNothingOnceAborted) {
  AllReduceRanks ranks(3, 5'760);
  upload(ranks[0].inputs[0].data(), std::vector<std::uint16_t>(2'880, 0x3f80));
  upload(ranks[0].abort.data(), std::vector<std::uint32_t>{1});
  check_cuda(GetParam().kernel.launch(ranks.args(0, 0, 5'760), ranks[0].stream.get()));
  synchronize(ranks[0].stream.get());
  for (const int peer : {1, 2}) {
    for (const std::span<std::uint32_t> part : {ranks[peer].flags, ranks[peer].slots}) {
      const std::vector<std::uint32_t> words = download(part.data(), part.size());
      EXPECT_EQ(std::count(words.begin(), words.end(), 0u), std::ssize(words)) << "rank " << peer;
    }
  }
}

TEST_P(AllReduceOfThree, EndsAWaitWithoutDeadlineWhenTheHostAborts) {
  AllReduceRanks ranks(3, 5'760);
  const Stream side = make_stream();
  PinnedBuffer<std::uint32_t> one(1);
  one[0] = 1;
  AllReduceArgs args = ranks.args(0, 0, 5'760);
  args.guard.deadline_ns = 3'600'000'000'000;
  check_cuda(GetParam().kernel.launch(args, ranks[0].stream.get()));
  EXPECT_EQ(cudaStreamQuery(ranks[0].stream.get()), cudaErrorNotReady);
  check_cuda(cudaMemcpyAsync(ranks[0].abort.data(), one.data(), sizeof(std::uint32_t),
                             cudaMemcpyHostToDevice, side.get()));
  synchronize(ranks[0].stream.get());
  EXPECT_EQ(ranks[0].fault[0].written, 0u);
}

TEST_P(AllReduceOfThree, RefusesArgumentsOutOfRange) {
  AllReduceRanks ranks(3, 5'760);
  const auto status_with = [&](auto change) {
    AllReduceArgs args = ranks.args(0, 0, 5'760);
    change(args);
    return GetParam().kernel.launch(args, ranks[0].stream.get());
  };
  EXPECT_EQ(status_with([](AllReduceArgs& a) { a.bytes = 24; }), cudaErrorInvalidValue);
  EXPECT_EQ(status_with([](AllReduceArgs& a) { a.bytes = 0; }), cudaErrorInvalidValue);
  EXPECT_EQ(status_with([](AllReduceArgs& a) { a.bytes = 5'776; }), cudaErrorInvalidValue);
  EXPECT_EQ(status_with([](AllReduceArgs& a) { a.arena.world_size = 9; }), cudaErrorInvalidValue);
  EXPECT_EQ(status_with([](AllReduceArgs& a) { a.rank = 3; }), cudaErrorInvalidValue);
  EXPECT_EQ(status_with([](AllReduceArgs& a) { a.max_blocks = 129; }), cudaErrorInvalidValue);
  EXPECT_EQ(status_with([](AllReduceArgs& a) { a.threads = 48; }), cudaErrorInvalidValue);
  EXPECT_EQ(status_with([](AllReduceArgs& a) { a.threads = 1024; }), cudaErrorInvalidValue);
  const bool warp_per_peer = GetParam().kernel.name != "one_shot_push";
  if (warp_per_peer) {
    EXPECT_EQ(status_with([](AllReduceArgs& a) { a.threads = 64; }), cudaErrorInvalidValue);
  }
}

using AllReduceChoice = AllRanksTest;
TEST_F(AllReduceChoice, TakesTwoShotsFromTheThresholdOn) {
  const auto name = [](std::string_view kind, int world_size, std::int64_t bytes) {
    const auto* kernel = kernels::find_all_reduce(kind, world_size, bytes);
    return kernel == nullptr ? std::string_view() : kernel->name;
  };
  EXPECT_EQ(name("auto", 2, kernels::kMaxAllReduceBytes), "one_shot_push");
  EXPECT_EQ(name("auto", 4, (1 << 20) - 16), "one_shot_push");
  EXPECT_EQ(name("auto", 4, 1 << 20), "two_shot");
  EXPECT_EQ(name("auto", 8, 256 << 10), "two_shot");
  EXPECT_EQ(name("one_shot_pull", 8, kernels::kMaxAllReduceBytes), "one_shot_pull");
  EXPECT_EQ(name("nccl", 2, 16), "");
}

}  // namespace
}  // namespace tpjitter
