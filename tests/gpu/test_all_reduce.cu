// The one-shot pull all-reduce against exact sums, with all ranks on one GPU and, where there are
// more, across them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "kernels/spin.h"
#include "tests/gpu/all_reduce_ranks.h"

namespace tpjitter {
namespace {

using kernels::AllReduceArgs;
using kernels::AllReduceStamp;
using kernels::launch_one_shot_pull;

std::uint16_t to_bf16(float value) {  // exact for what these tests use
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<std::uint16_t>(bits >> 16);
}
float to_float(std::uint16_t bits) {
  const std::uint32_t word = std::uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &word, sizeof value);
  return value;
}

// Small integers: sums over 8 ranks stay below 256 and are exact in bf16.
__host__ __device__ int value_of(int rank, std::int64_t sequence, std::int64_t i) {
  return static_cast<int>((7 * rank + 3 * sequence + i) % 29) - 14;
}
int sum_of(int world_size, std::int64_t sequence, std::int64_t i) {
  int sum = 0;
  for (int rank = 0; rank < world_size; ++rank) sum += value_of(rank, sequence, i);
  return sum;
}

__global__ void fill_kernel(std::uint16_t* input, std::int64_t elements, int rank,
                            const std::int64_t* sequence) {
  for (std::int64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < elements;
       i += gridDim.x * blockDim.x) {
    const auto value = static_cast<float>(value_of(rank, *sequence, i));
    input[i] = static_cast<std::uint16_t>(__float_as_uint(value) >> 16);
  }
}

__global__ void verify_kernel(const std::uint16_t* output, std::int64_t elements, int world_size,
                              const std::int64_t* sequence, std::uint32_t* mismatches) {
  for (std::int64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < elements;
       i += gridDim.x * blockDim.x) {
    int sum = 0;
    for (int rank = 0; rank < world_size; ++rank) sum += value_of(rank, *sequence, i);
    if (output[i] != __float_as_uint(static_cast<float>(sum)) >> 16) atomicAdd(mismatches, 1u);
  }
}

__global__ void advance_kernel(std::int64_t* sequence) { ++*sequence; }

using AllReduceStamps = AllRanksTest;
using AllReduceEpochs = AllRanksTest;
using AllReduceDeadline = AllRanksTest;
using AllReduceAbort = AllRanksTest;
using AllReduceArguments = AllRanksTest;

// Values made, reduced and compared on the device, a new sequence number each time: a result that
// is one call old shows.
class CheckedRanks {
 public:
  CheckedRanks(int world_size, std::int64_t max_bytes, int devices = 1)
      : ranks(world_size, max_bytes, 0, devices) {
    for (int r = 0; r < world_size; ++r) {
      ranks.use(r);
      sequences_.push_back(zeroed<std::int64_t>(1));
      mismatches_.push_back(zeroed<std::uint32_t>(1));
    }
    ranks.synchronize_devices();
  }
  void enqueue(int r, int ordinal, std::int64_t bytes) {
    ranks.use(r);
    AllReduceRank& rank = ranks[r];
    cudaStream_t stream = rank.stream.get();
    fill_kernel<<<4, 256, 0, stream>>>(rank.inputs[ordinal % 2].data(), bytes / 2, r,
                                       sequences_[r].data());
    check_cuda(launch_one_shot_pull(ranks.args(r, ordinal, bytes), stream));
    verify_kernel<<<4, 256, 0, stream>>>(rank.output.data(), bytes / 2, ranks.world_size(),
                                         sequences_[r].data(), mismatches_[r].data());
    advance_kernel<<<1, 1, 0, stream>>>(sequences_[r].data());
    check_cuda(cudaGetLastError());
  }
  std::uint32_t mismatches() {
    std::uint32_t sum = 0;
    for (auto& counter : mismatches_) sum += download(counter.data(), 1)[0];
    return sum;
  }
  std::int64_t calls(int rank) { return download(sequences_[rank].data(), 1)[0]; }

  AllReduceRanks ranks;

 private:
  std::vector<DeviceBuffer<std::int64_t>> sequences_;
  std::vector<DeviceBuffer<std::uint32_t>> mismatches_;
};

struct Placement {
  int ranks, devices;
};

class AllReduceOfRanks : public AllRanksTest, public testing::WithParamInterface<Placement> {
 protected:
  void SetUp() override {
    AllRanksTest::SetUp();
    if (IsSkipped() || GetParam().devices == 1) return;
    int reachable = 0;
    if (test::gpu_count() < GetParam().devices) GTEST_SKIP() << "needs two GPUs";
    check_cuda(cudaDeviceCanAccessPeer(&reachable, 0, 1));
    if (reachable == 0) GTEST_SKIP() << "the GPUs cannot read each other's memory";
  }
};
INSTANTIATE_TEST_SUITE_P(Placements, AllReduceOfRanks,
                         testing::Values(Placement{1, 1}, Placement{2, 1}, Placement{3, 1},
                                         Placement{4, 1}, Placement{8, 1}, Placement{2, 2},
                                         Placement{8, 2}),
                         [](const auto& info) {
                           return "ranks" + std::to_string(info.param.ranks) + "_gpus" +
                                  std::to_string(info.param.devices);
                         });

TEST_P(AllReduceOfRanks, GivesTheExactSumAtEverySize) {
  const auto [world_size, devices] = GetParam();
  constexpr std::int64_t kMax = kernels::kMaxAllReduceBytes;
  AllReduceRanks ranks(world_size, kMax, 0, devices);
  int ordinal = 0;
  for (const std::int64_t bytes :
       {std::int64_t{16}, std::int64_t{32}, std::int64_t{528}, std::int64_t{5'760},
        std::int64_t{8'192}, std::int64_t{46'080}, std::int64_t{131'072}, std::int64_t{1'000'016},
        kMax - 16, kMax}) {
    for (int r = 0; r < world_size; ++r) {
      std::vector<std::uint16_t> input(bytes / 2);
      for (std::int64_t i = 0; i < bytes / 2; ++i) input[i] = to_bf16(value_of(r, ordinal, i));
      upload(ranks[r].inputs[ordinal % 2].data(), input);
      check_cuda(cudaMemset(ranks[r].output.data(), 0xff, ranks[r].output.size_bytes()));
    }
    ranks.synchronize_devices();
    ranks.launch_all(ordinal, bytes);
    ranks.synchronize_all();
    for (int r = 0; r < world_size; ++r) {
      const auto output = download(ranks[r].output.data(), bytes / 2);
      for (std::int64_t i = 0; i < bytes / 2; ++i) {
        ASSERT_EQ(to_float(output[i]), sum_of(world_size, ordinal, i))
            << "rank " << r << ", " << bytes << " bytes, element " << i;
      }
    }
    ++ordinal;
  }
}

TEST_P(AllReduceOfRanks, MixesSizesInOneSequence) {
  const auto [world_size, devices] = GetParam();
  CheckedRanks checked(world_size, 1 << 20, devices);
  const std::int64_t sizes[] = {1 << 20, 16, 65'536, 5'760, 512, 262'144, 16, 131'072};
  constexpr int kCalls = 200;
  for (int call = 0; call < kCalls; ++call) {
    const std::int64_t bytes = sizes[(call * 5 + call / 8) % std::size(sizes)];
    for (int r = 0; r < world_size; ++r) checked.enqueue(r, call, bytes);
  }
  checked.ranks.synchronize_all();
  EXPECT_EQ(checked.mismatches(), 0u);
  for (int r = 0; r < world_size; ++r) EXPECT_EQ(checked.calls(r), kCalls);
}

TEST_P(AllReduceOfRanks, StaysExactOverAThousandGraphReplays) {
  const auto [world_size, devices] = GetParam();
  CheckedRanks checked(world_size, 131'072, devices);
  std::vector<GraphExec> graphs;
  for (int r = 0; r < world_size; ++r) {
    checked.ranks.use(r);
    cudaStream_t stream = checked.ranks[r].stream.get();
    check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int ordinal = 0; ordinal < 4; ++ordinal) {
      checked.enqueue(r, ordinal, ordinal % 2 == 0 ? 5'760 : 131'072);
    }
    cudaGraph_t graph = nullptr;
    check_cuda(cudaStreamEndCapture(stream, &graph));
    const Graph owner(graph);
    cudaGraphExec_t exec = nullptr;
    check_cuda(cudaGraphInstantiate(&exec, graph));
    graphs.emplace_back(exec);
    check_cuda(cudaGraphUpload(exec, stream));
  }
  checked.ranks.synchronize_devices();
  constexpr int kReplays = 1000;
  for (int replay = 0; replay < kReplays; ++replay) {
    for (int r = 0; r < world_size; ++r) {
      checked.ranks.use(r);
      check_cuda(cudaGraphLaunch(graphs[r].get(), checked.ranks[r].stream.get()));
    }
  }
  checked.ranks.synchronize_all();
  EXPECT_EQ(checked.mismatches(), 0u);
  for (int r = 0; r < world_size; ++r) EXPECT_EQ(checked.calls(r), 4 * kReplays);
}

TEST_P(AllReduceOfRanks, GivesTheSameBitsWithAndWithoutStamps) {
  const auto [world_size, devices] = GetParam();
  constexpr std::int64_t kBytes = 46'080;
  std::vector<std::uint16_t> outputs[2];
  for (const int stamps : {0, 1}) {
    AllReduceRanks ranks(world_size, kBytes, stamps, devices);
    for (int r = 0; r < world_size; ++r) {
      std::vector<std::uint16_t> input(kBytes / 2);
      for (std::size_t i = 0; i < input.size(); ++i) {
        input[i] = static_cast<std::uint16_t>(0x3f00 + (i * 37 + r * 101) % 255);  // 0.5 to 2
      }
      upload(ranks[r].inputs[0].data(), input);
    }
    ranks.synchronize_devices();
    ranks.launch_all(0, kBytes);
    ranks.synchronize_all();
    outputs[stamps] = download(ranks[0].output.data(), kBytes / 2);
    EXPECT_EQ(outputs[stamps], download(ranks[world_size - 1].output.data(), kBytes / 2));
  }
  EXPECT_EQ(outputs[0], outputs[1]);
}

TEST_P(AllReduceOfRanks, StampsInOrder) {
  const auto [world_size, devices] = GetParam();
  constexpr int kCalls = 16;
  AllReduceRanks ranks(world_size, 5'760, kCalls, devices);
  for (int call = 0; call < kCalls; ++call) ranks.launch_all(call, 5'760);
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

TEST_F(AllReduceStamps, RecoverADelayOfOneRankInTheOthersWait) {
  constexpr int kCalls = 20;
  constexpr std::int64_t kDelayNs = 200'000;
  AllReduceRanks ranks(2, 5'760, kCalls);
  kernels::SpinArgs spin;
  spin.duration_ns = kDelayNs;
  for (int call = 0; call < kCalls; ++call) {
    check_cuda(kernels::launch_spin(spin, ranks[1].stream.get()));
    ranks.launch_all(call, 5'760);
    ranks.synchronize_all();
  }
  const auto early = download(ranks[0].stamps.data(), kCalls);
  const auto late = download(ranks[1].stamps.data(), kCalls);
  std::vector<std::int64_t> errors;
  int waited = 0;
  for (int call = 0; call < kCalls; ++call) {
    // One GPU, one clock: the wait seen is the difference of arrivals and the flag's flight.
    const std::int64_t gap = late[call].own_ns - early[call].own_ns;
    const std::int64_t wait = early[call].seen_ns[1] - early[call].own_ns;
    errors.push_back(wait - gap);
    waited += early[call].waited >> 1 & 1;
    EXPECT_EQ(late[call].waited, 0u) << "the early rank's flag was there long ago";
  }
  std::sort(errors.begin(), errors.end());
  EXPECT_EQ(waited, kCalls);
  EXPECT_GE(errors.front(), -64) << "two steps of the clock";
  EXPECT_LE(errors[kCalls / 2], 2'000);
  EXPECT_GE(early[kCalls / 2].seen_ns[1] - early[kCalls / 2].own_ns, kDelayNs / 2);
}

TEST_F(AllReduceEpochs, CountThroughTheWrapOf32Bits) {
  CheckedRanks checked(2, 5'760);
  for (int r = 0; r < 2; ++r) {
    const std::uint32_t before_wrap = 0xffff'fff0u;
    upload(checked.ranks[r].epochs.data(),
           std::vector<std::uint32_t>(kernels::kMaxAllReduceBlocks, before_wrap));
    upload(checked.ranks[r].flags.data(),
           std::vector<std::uint32_t>(kernels::kAllReduceFlags, before_wrap));
  }
  check_cuda(cudaDeviceSynchronize());
  for (int call = 0; call < 64; ++call) {
    for (int r = 0; r < 2; ++r) checked.enqueue(r, call, 5'760);
  }
  checked.ranks.synchronize_all();
  EXPECT_EQ(checked.mismatches(), 0u);
  EXPECT_EQ(download(checked.ranks[0].epochs.data(), 1)[0], 0xffff'fff0u + 64u);
}

TEST_F(AllReduceDeadline, NamesTheMissingPeerAndReleasesEveryone) {
  AllReduceRanks ranks(3, 5'760);
  for (const int r : {0, 1}) {  // rank 2 never comes
    AllReduceArgs args = ranks.args(r, 5, 5'760);
    args.guard.deadline_ns = 20'000'000;
    check_cuda(launch_one_shot_pull(args, ranks[r].stream.get()));
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
    EXPECT_EQ(fault.ordinal, 5);
    EXPECT_EQ(fault.expected, 1u);
    EXPECT_EQ(fault.seen, 0u);
  }
  EXPECT_GE(reports, 1);
  for (int r = 0; r < 3; ++r) EXPECT_EQ(download(ranks[r].abort.data(), 1)[0], 1u) << "rank " << r;

  // Later launches return at once: they take no part and wait for nobody, whatever the deadline.
  AllReduceArgs late = ranks.args(2, 6, 5'760);
  late.guard.deadline_ns = 3'600'000'000'000;
  for (int i = 0; i < 100; ++i) check_cuda(launch_one_shot_pull(late, ranks[2].stream.get()));
  synchronize(ranks[2].stream.get());
  EXPECT_EQ(download(ranks[2].epochs.data(), 1)[0], 0u);
  EXPECT_EQ(ranks[2].fault[0].written, 0u);
}

TEST_F(AllReduceAbort, SetByTheHostEndsAWaitThatHasNoDeadline) {
  AllReduceRanks ranks(2, 5'760);
  const Stream side = make_stream();
  PinnedBuffer<std::uint32_t> one(1);
  one[0] = 1;
  AllReduceArgs args = ranks.args(0, 0, 5'760);
  args.guard.deadline_ns = 3'600'000'000'000;
  check_cuda(launch_one_shot_pull(args, ranks[0].stream.get()));
  EXPECT_EQ(cudaStreamQuery(ranks[0].stream.get()), cudaErrorNotReady);
  check_cuda(cudaMemcpyAsync(ranks[0].abort.data(), one.data(), sizeof(std::uint32_t),
                             cudaMemcpyHostToDevice, side.get()));
  synchronize(ranks[0].stream.get());
  EXPECT_EQ(ranks[0].fault[0].written, 0u);
}

TEST_F(AllReduceArguments, OutOfRangeAreRefused) {
  AllReduceRanks ranks(2, 5'760);
  const auto status_with = [&](auto change) {
    AllReduceArgs args = ranks.args(0, 0, 5'760);
    change(args);
    return launch_one_shot_pull(args, ranks[0].stream.get());
  };
  EXPECT_EQ(status_with([](AllReduceArgs& a) { a.bytes = 24; }), cudaErrorInvalidValue);
  EXPECT_EQ(status_with([](AllReduceArgs& a) { a.bytes = 0; }), cudaErrorInvalidValue);
  EXPECT_EQ(status_with([](AllReduceArgs& a) { a.bytes = (8 << 20) + 16; }), cudaErrorInvalidValue);
  EXPECT_EQ(status_with([](AllReduceArgs& a) { a.world_size = 9; }), cudaErrorInvalidValue);
  EXPECT_EQ(status_with([](AllReduceArgs& a) { a.rank = 2; }), cudaErrorInvalidValue);
  EXPECT_EQ(status_with([](AllReduceArgs& a) { a.max_blocks = 37; }), cudaErrorInvalidValue);
  EXPECT_EQ(status_with([](AllReduceArgs& a) { a.threads = 32; }), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace tpjitter
