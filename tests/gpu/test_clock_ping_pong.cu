// The clocks' ping-pong: with both sides as streams of one GPU there is one clock, so that the true
// offset is 0 and the bound can be checked; between two GPUs, repeatability and what two directions
// say of each other; with the host, that the offset repeats. Figures are printed, not asserted.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "harness/cuda/clock_calibration.h"
#include "kernels/clock_ping_pong.h"
#include "reports/run_clocks.h"
#include "tests/gpu/all_reduce_ranks.h"

namespace tpjitter {
namespace {

using kernels::ClockPingPongArgs;
using kernels::launch_clock_ping_pong;
using kernels::PingPongStamps;

constexpr int kExchanges = 64;

// One side: a device, a stream, a word for the other side to write, stamps.
struct Side {
  explicit Side(int on) : device(on) { check_cuda(cudaSetDevice(on)); }
  int device;
  Stream stream = make_stream();
  DeviceBuffer<std::uint32_t> word = zeroed<std::uint32_t>(1);
  DeviceBuffer<std::uint32_t> abort = zeroed<std::uint32_t>(1);
  DeviceBuffer<PingPongStamps> stamps = zeroed<PingPongStamps>(kExchanges);
  PinnedBuffer<kernels::DeviceFault> fault{1};
};

class Sides {
 public:
  Sides(int device_a, int device_b) {
    for (const int device : {device_a, device_b}) {
      sides_.emplace_back(device);
      if (device_a != device_b) {
        const cudaError_t status =
            cudaDeviceEnablePeerAccess(device == device_a ? device_b : device_a, 0);
        if (status != cudaErrorPeerAccessAlreadyEnabled) check_cuda(status);
        cudaGetLastError();
      }
      check_cuda(cudaDeviceSynchronize());
    }
  }
  ~Sides() { cudaSetDevice(0); }

  ClockPingPongArgs args(int side, int sender, std::uint32_t first_sequence) {
    ClockPingPongArgs a;
    a.own_word = sides_[side].word.data();
    a.peer_word = sides_[1 - side].word.data();
    a.stamps = sides_[sender].stamps.data();
    a.first_sequence = first_sequence;
    a.exchanges = kExchanges;
    a.rank = side;
    a.peer = 1 - side;
    a.sender = side == sender;
    a.guard.abort = sides_[side].abort.data();
    for (int p = 0; p < 2; ++p) a.guard.peer_abort[p] = sides_[p].abort.data();
    a.guard.fault = sides_[side].fault.data();
    return a;
  }
  // b's clock against a's, a the sender.
  std::vector<ClockExchange> exchange(int sender, std::uint32_t first_sequence) {
    for (const int side : {1 - sender, sender}) {
      check_cuda(cudaSetDevice(sides_[side].device));
      check_cuda(
          launch_clock_ping_pong(args(side, sender, first_sequence), sides_[side].stream.get()));
    }
    for (Side& side : sides_) synchronize(side.stream.get());
    std::vector<ClockExchange> exchanges;
    for (const PingPongStamps& s : download(sides_[sender].stamps.data(), kExchanges)) {
      exchanges.push_back({s.send_ns, s.receive_ns, s.answer_ns, s.back_ns});
    }
    return exchanges;
  }
  Side& operator[](int side) { return sides_[side]; }

 private:
  std::vector<Side> sides_;
};

void print(const char* what, const ClockOffset& offset) {
  std::printf("%s: offset %lld ns, bound %lld ns, round trip %lld ns, %llu of %d rejected\n", what,
              static_cast<long long>(offset.offset_ns), static_cast<long long>(offset.bound_ns),
              static_cast<long long>(offset.round_trip_ns),
              static_cast<unsigned long long>(offset.rejected), kExchanges);
}

using ClockPingPong = AllRanksTest;

TEST_F(ClockPingPong, OneClockHasNoOffsetToItselfWithinTheBound) {
  Sides sides(0, 0);
  for (std::uint32_t round = 0; round < 4; ++round) {
    const auto exchanges = sides.exchange(0, round * (kExchanges + 1));
    for (const ClockExchange& e : exchanges) {
      ASSERT_TRUE(possible(e));
      EXPECT_LE(e.send_a_ns, e.receive_b_ns);  // the same clock, in this order
      EXPECT_LE(e.receive_b_ns, e.send_b_ns);
      EXPECT_LE(e.send_b_ns, e.receive_a_ns);
    }
    const ClockOffset offset = estimate_offset(exchanges);
    ASSERT_EQ(offset.reason, "");
    print("one GPU", offset);
    EXPECT_LE(std::abs(offset.offset_ns), offset.bound_ns);
  }
}

TEST_F(ClockPingPong, SequencesWrap) {
  Sides sides(0, 0);
  const std::uint32_t first = 0u - kExchanges / 2;
  upload(sides[0].word.data(), std::vector<std::uint32_t>{first});
  upload(sides[1].word.data(), std::vector<std::uint32_t>{first});
  const ClockOffset offset = estimate_offset(sides.exchange(1, first));
  EXPECT_EQ(offset.reason, "");
  EXPECT_LE(std::abs(offset.offset_ns), offset.bound_ns);
}

TEST_F(ClockPingPong, APeerThatNeverAnswersEndsAtTheDeadlineAndIsNamed) {
  Sides sides(0, 0);
  ClockPingPongArgs args = sides.args(0, 0, 0);
  args.guard.deadline_ns = 20'000'000;
  check_cuda(launch_clock_ping_pong(args, sides[0].stream.get()));
  synchronize(sides[0].stream.get());
  const kernels::DeviceFault& fault = sides[0].fault[0];
  EXPECT_EQ(fault.written, 1u);
  EXPECT_EQ(fault.rank, 0);
  EXPECT_EQ(fault.peer, 1);
  EXPECT_EQ(fault.expected, 1u);
  EXPECT_EQ(fault.seen, 0u);
  EXPECT_EQ(download(sides[1].abort.data(), 1)[0], 1u);  // the peer drains too
  // And a kernel that starts after that returns at once.
  check_cuda(launch_clock_ping_pong(sides.args(1, 0, 0), sides[1].stream.get()));
  synchronize(sides[1].stream.get());
}

TEST_F(ClockPingPong, ArgumentsWithoutExchangesOrWordsAreRefused) {
  Sides sides(0, 0);
  ClockPingPongArgs args = sides.args(0, 0, 0);
  args.exchanges = 0;
  EXPECT_EQ(launch_clock_ping_pong(args, nullptr), cudaErrorInvalidValue);
  args = sides.args(0, 0, 0);
  args.peer_word = nullptr;
  EXPECT_EQ(launch_clock_ping_pong(args, nullptr), cudaErrorInvalidValue);
}

TEST_F(ClockPingPong, TwoGpusAgreeInBothDirections) {
  if (test::gpu_count() < 2) GTEST_SKIP() << "needs two GPUs";
  int reachable = 0;
  check_cuda(cudaDeviceCanAccessPeer(&reachable, 0, 1));
  if (reachable == 0) GTEST_SKIP() << "the GPUs cannot read each other's memory";
  Sides sides(0, 1);
  std::vector<std::int64_t> offsets;
  for (std::uint32_t round = 0; round < 20; ++round) {
    const auto there = estimate_offset(sides.exchange(0, 2 * round * (kExchanges + 1)));
    const auto back = estimate_offset(sides.exchange(1, (2 * round + 1) * (kExchanges + 1)));
    ASSERT_EQ(there.reason, "");
    ASSERT_EQ(back.reason, "");
    if (round == 0) {
      print("GPU 0 to 1", there);
      print("GPU 1 to 0", back);
    }
    offsets.push_back(there.offset_ns);
    // Two closed ways: the sum of both offsets is what the bounds allow, whatever the clocks.
    EXPECT_LE(std::abs(there.offset_ns + back.offset_ns), there.bound_ns + back.bound_ns);
  }
  const auto [least, most] = std::minmax_element(offsets.begin(), offsets.end());
  std::printf("GPU 0 to 1: 20 offsets within %lld ns\n", static_cast<long long>(*most - *least));
}

// The calibration of a run, of one rank: its GPU against the host, three points.
TEST_F(ClockPingPong, TheHostsClockIsFoundAgainAtEveryPoint) {
  ControlSegment control = ControlSegment::create(1, 0, 16, "{}", 1.0);
  const RankContext context{0, 1, &control};
  Communicator communicator(context);
  ClockCalibrator calibrator(context, communicator);
  const Stream stream = make_stream();
  RunInfo info;
  info.backend = "cuda";
  info.world_size = 1;
  info.clock["points"] = Json::array();
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(calibrator.measure(stream.get(), false).empty());  // nobody else
    for (Json point : calibrator.measure(stream.get(), true)) {
      point["launch"] = 0;
      info.clock["points"].push_back(point);
    }
  }
  const RunClocks clocks(info);
  ASSERT_EQ(clocks.pairs().size(), 1u);
  const ClockPair& pair = clocks.pairs()[0];
  EXPECT_EQ(pair.a, kHostClock);
  EXPECT_EQ(pair.b, 0);
  EXPECT_EQ(clocks.unreadable(), 0u);
  EXPECT_EQ(pair.line.reason, "");
  ASSERT_EQ(pair.line.points.size(), 4u);
  std::vector<std::int64_t> offsets;
  for (const ClockOffset& point : pair.line.points) offsets.push_back(point.offset_ns);
  const auto [least, most] = std::minmax_element(offsets.begin(), offsets.end());
  std::printf("host: round trip %lld ns, bound %lld ns, 4 offsets within %lld ns, step %lld ns\n",
              static_cast<long long>(pair.round_trip_ns),
              static_cast<long long>(pair.point_bound_ns), static_cast<long long>(*most - *least),
              static_cast<long long>(pair.resolution_ns));
}

}  // namespace
}  // namespace tpjitter
