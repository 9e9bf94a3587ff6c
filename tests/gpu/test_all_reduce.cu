// The all-reduce kernels against a host reference bit for bit, with all ranks on one GPU and, where
// there are more, across them: every size, values of every kind, sizes and kernels mixed, long
// replays, and NCCL's sums.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "tests/gpu/all_reduce_checked.cuh"
#if TPJITTER_HAS_NCCL
#include <nccl.h>
#endif

namespace tpjitter {
namespace {

using kernels::kAllReduceKernels;
using kernels::kMaxAllReduceBytes;

float to_float(std::uint16_t bits) {
  const std::uint32_t word = std::uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &word, sizeof value);
  return value;
}
// To nearest, ties to even; a NaN as the GPU's conversion makes it.
std::uint16_t to_bf16(float value) {
  if (std::isnan(value)) return 0x7fff;
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

std::uint32_t hash(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return static_cast<std::uint32_t>(x >> 32);
}

// Mostly of magnitude 0.5 to 2, with zeros of both signs (words of two are push's hard case) and
// bit patterns of any kind: NaN payloads, infinities, denormals.
std::uint16_t input_bits(int rank, std::int64_t sequence, std::int64_t i) {
  const std::uint32_t h = hash(static_cast<std::uint64_t>((sequence * 8 + rank) << 32 | i));
  const auto low = static_cast<std::uint16_t>(h);
  switch (h >> 28) {
    case 0:
    case 1:
      return 0;
    case 2:
    case 3:
      return 0x8000;
    case 4:
      return low;
    default:
      return static_cast<std::uint16_t>((low & 0x8000) | (0x3f00 + (low & 0xff)));
  }
}

std::vector<std::uint16_t> inputs_of(int rank, std::int64_t sequence, std::int64_t elements) {
  std::vector<std::uint16_t> input(elements);
  for (std::int64_t i = 0; i < elements; ++i) input[i] = input_bits(rank, sequence, i);
  return input;
}

std::vector<std::uint16_t> reference(const std::vector<std::vector<std::uint16_t>>& inputs) {
  std::vector<std::uint16_t> sums(inputs[0].size());
  for (std::size_t i = 0; i < sums.size(); ++i) {
    float sum = 0;
    for (const auto& input : inputs) sum += to_float(input[i]);
    sums[i] = to_bf16(sum);
  }
  return sums;
}

// Powers of two, odd multiples of 16, hidden sizes times tokens of the scenarios.
std::vector<std::int64_t> every_size() {
  std::vector<std::int64_t> sizes = {
      48,     80,     528,     4'112,     65'552,    131'056,
      5'760,  23'040, 46'080,  14'336,    184'320,   327'680,
      57'344, 73'728, 368'640, 1'000'016, 1'474'560, kMaxAllReduceBytes - 16};
  for (std::int64_t bytes = 16; bytes <= kMaxAllReduceBytes; bytes *= 2) sizes.push_back(bytes);
  return sizes;
}

class AllReduceOfRanks : public PlacedRanksTest {};
INSTANTIATE_TEST_SUITE_P(
    Placements, AllReduceOfRanks,
    testing::ValuesIn(placements(
        {{1, 1}, {2, 1}, {3, 1}, {4, 1}, {5, 1}, {6, 1}, {7, 1}, {8, 1}, {2, 2}, {4, 2}, {8, 2}})),
    [](const auto& info) { return name_of(info.param); });

TEST_P(AllReduceOfRanks, GivesTheBitsOfTheHostsSumAtEverySize) {
  const auto [kernel, world_size, devices] = GetParam();
  AllReduceRanks ranks(world_size, kMaxAllReduceBytes, 0, devices);
  int ordinal = 0;
  for (const std::int64_t bytes : every_size()) {
    std::vector<std::vector<std::uint16_t>> inputs;
    for (int r = 0; r < world_size; ++r) {
      inputs.push_back(inputs_of(r, ordinal, bytes / 2));
      ranks.use(r);
      upload(ranks[r].inputs[ordinal % 2].data(), inputs[r]);
      check_cuda(cudaMemset(ranks[r].output.data(), 0x5a, ranks[r].output.size_bytes()));
    }
    ranks.synchronize_devices();
    ranks.launch_all(kernel, ordinal, bytes);
    ranks.synchronize_all();
    const std::vector<std::uint16_t> expected = reference(inputs);
    for (int r = 0; r < world_size; ++r) {
      const std::int64_t written = bytes / 2 + (bytes < kMaxAllReduceBytes ? 1 : 0);
      const auto output = download(ranks[r].output.data(), written);
      const auto wrong = std::mismatch(expected.begin(), expected.end(), output.begin());
      ASSERT_TRUE(wrong.first == expected.end())
          << "rank " << r << ", " << bytes << " bytes, element " << wrong.first - expected.begin()
          << ": " << *wrong.second << " instead of " << *wrong.first;
      if (bytes < kMaxAllReduceBytes) {
        ASSERT_EQ(output[expected.size()], 0x5a5a) << "wrote past " << bytes << " bytes";
      }
    }
    ++ordinal;
  }
}

TEST_P(AllReduceOfRanks, MixesSizesInOneSequence) {
  const auto [kernel, world_size, devices] = GetParam();
  CheckedRanks checked(world_size, 1 << 20, devices);
  const std::int64_t sizes[] = {1 << 20, 16, 65'536, 5'760, 512, 262'144, 48, 131'072};
  constexpr int kCalls = 200;
  for (int call = 0; call < kCalls; ++call) {
    const std::int64_t bytes = sizes[hash(call) % std::size(sizes)];
    for (int r = 0; r < world_size; ++r) checked.enqueue(kernel, r, call, bytes);
  }
  checked.ranks.synchronize_all();
  EXPECT_EQ(checked.mismatches(), 0u);
  for (int r = 0; r < world_size; ++r) {
    EXPECT_EQ(checked.calls(r), kCalls);
    const auto slots = download(checked.ranks[r].slots.data(), checked.ranks[r].slots.size());
    EXPECT_TRUE(std::all_of(slots.begin(), slots.end(), [](auto word) { return word == 0; }))
        << "a slot was not cleared";
  }
}

TEST_P(AllReduceOfRanks, GivesTheSameBitsWithAndWithoutStamps) {
  const auto [kernel, world_size, devices] = GetParam();
  constexpr std::int64_t kBytes = 46'080;
  std::vector<std::uint16_t> outputs[2];
  for (const int stamps : {0, 1}) {
    AllReduceRanks ranks(world_size, kBytes, stamps, devices);
    for (int r = 0; r < world_size; ++r) {
      upload(ranks[r].inputs[0].data(), inputs_of(r, 0, kBytes / 2));
    }
    ranks.synchronize_devices();
    ranks.launch_all(kernel, 0, kBytes);
    ranks.synchronize_all();
    outputs[stamps] = download(ranks[0].output.data(), kBytes / 2);
    EXPECT_EQ(outputs[stamps], download(ranks[world_size - 1].output.data(), kBytes / 2));
  }
  EXPECT_EQ(outputs[0], outputs[1]);
}

class AllReduceLongRun : public PlacedRanksTest {};
INSTANTIATE_TEST_SUITE_P(Placements, AllReduceLongRun,
                         testing::ValuesIn(placements({{2, 1}, {4, 1}, {2, 2}})),
                         [](const auto& info) { return name_of(info.param); });

TEST_P(AllReduceLongRun, StaysExactOverAHundredThousandAllReducesInGraphReplays) {
  const auto [kernel, world_size, devices] = GetParam();
  CheckedRanks checked(world_size, 131'072, devices);
  const std::int64_t sizes[] = {5'760, 131'072, 512, 23'040, 16};
  constexpr int kAllReduces = 100;
  constexpr int kReplays = 1000;
  checked.replay(kReplays, [&, &k = kernel](int r) {
    for (int n = 0; n < kAllReduces; ++n) {
      checked.enqueue(k, r, n, sizes[hash(n) % std::size(sizes)]);
    }
  });
  EXPECT_EQ(checked.mismatches(), 0u);
  for (int r = 0; r < checked.ranks.world_size(); ++r) {
    EXPECT_EQ(checked.calls(r), kAllReduces * kReplays);
  }
}

// Every kernel of the chain may start before the one ahead of it has ended.
TEST_P(AllReduceLongRun, StaysExactWithProgrammaticLaunches) {
  const auto [kernel, world_size, devices] = GetParam();
  CheckedRanks checked(world_size, 131'072, devices, /*pdl=*/true);
  const std::int64_t sizes[] = {5'760, 131'072, 512, 23'040, 16};
  constexpr int kAllReduces = 100;
  constexpr int kReplays = 200;
  checked.replay(kReplays, [&, &k = kernel](int r) {
    for (int n = 0; n < kAllReduces; ++n) {
      checked.enqueue(k, r, n, sizes[hash(n) % std::size(sizes)]);
    }
  });
  EXPECT_EQ(checked.mismatches(), 0u);
  for (int r = 0; r < checked.ranks.world_size(); ++r) {
    EXPECT_EQ(checked.calls(r), kAllReduces * kReplays);
  }
}

// The placement's own kernel is not used: all of them are.
TEST_P(AllReduceLongRun, MixesKernelsOfOneCommunicatorInGraphReplays) {
  const auto [kernel, world_size, devices] = GetParam();
  if (kernel.name != kAllReduceKernels[0].name) GTEST_SKIP() << "once a placement";
  CheckedRanks checked(world_size, 131'072, devices);
  const std::int64_t sizes[] = {5'760, 131'072, 512, 23'040, 16};
  constexpr int kAllReduces = 100;
  constexpr int kReplays = 200;
  checked.replay(kReplays, [&](int r) {
    for (int n = 0; n < kAllReduces; ++n) {
      checked.enqueue(kAllReduceKernels[hash(n) % std::size(kAllReduceKernels)], r, n,
                      sizes[hash(n + 1000) % std::size(sizes)]);
    }
  });
  EXPECT_EQ(checked.mismatches(), 0u);
  for (int r = 0; r < checked.ranks.world_size(); ++r) {
    EXPECT_EQ(checked.calls(r), kAllReduces * kReplays);
  }
}

#if TPJITTER_HAS_NCCL
class AllReduceAgainstNccl : public PlacedRanksTest {};
INSTANTIATE_TEST_SUITE_P(Placements, AllReduceAgainstNccl, testing::ValuesIn(placements({{2, 2}})),
                         [](const auto& info) { return name_of(info.param); });

TEST_P(AllReduceAgainstNccl, GivesItsBitsWhereSumsAreExact) {
  const auto [kernel, world_size, devices] = GetParam();
  AllReduceRanks ranks(world_size, 1 << 20, 0, devices);
  setenv("NCCL_NVLS_ENABLE", "0", 0);
  std::vector<ncclComm_t> comms(world_size);
  ASSERT_EQ(ncclCommInitAll(comms.data(), world_size, nullptr), ncclSuccess);
  int ordinal = 0;
  for (const std::int64_t bytes : {16, 528, 5'760, 46'080, 131'072, 1 << 20}) {
    std::vector<DeviceBuffer<std::uint16_t>> sums;
    for (int r = 0; r < world_size; ++r) {
      std::vector<std::uint16_t> input(bytes / 2);
      for (std::int64_t i = 0; i < bytes / 2; ++i) {
        input[i] = to_bf16(static_cast<float>(value_of(r, ordinal, i)));
      }
      ranks.use(r);
      upload(ranks[r].inputs[ordinal % 2].data(), input);
      sums.push_back(zeroed<std::uint16_t>(bytes / 2));
    }
    ranks.synchronize_devices();
    ASSERT_EQ(ncclGroupStart(), ncclSuccess);
    for (int r = 0; r < world_size; ++r) {
      ASSERT_EQ(ncclAllReduce(ranks[r].inputs[ordinal % 2].data(), sums[r].data(), bytes / 2,
                              ncclBfloat16, ncclSum, comms[r], ranks[r].stream.get()),
                ncclSuccess);
    }
    ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
    ranks.synchronize_all();
    ranks.launch_all(kernel, ordinal, bytes);
    ranks.synchronize_all();
    for (int r = 0; r < world_size; ++r) {
      EXPECT_EQ(download(ranks[r].output.data(), bytes / 2), download(sums[r].data(), bytes / 2))
          << "rank " << r << ", " << bytes << " bytes";
    }
    ++ordinal;
  }
  for (ncclComm_t comm : comms) ncclCommDestroy(comm);
}
#endif

}  // namespace
}  // namespace tpjitter
