#include "harness/cuda/clock_calibration.h"

#include <algorithm>
#include <span>
#include <vector>

#include "harness/clock.h"
#include "harness/cuda/host_wait.h"
#include "kernels/clock_ping_pong.h"

namespace tpjitter {
namespace {

using kernels::kMaxAllReduceRanks;
using kernels::PingPongStamps;

constexpr int kExchanges = 64;  // 150 us over NVLink
constexpr std::size_t kKept = 16;
constexpr int kHostRow = kMaxAllReduceRanks;  // of stamps_
constexpr std::size_t kHostWord = 32;         // 128 bytes from the GPU's

std::int64_t round_trip_ns(const PingPongStamps& s) {
  return (s.back_ns - s.send_ns) - (s.answer_ns - s.receive_ns);
}

// The fastest exchanges, in the order in which they were made.
Json point_json(const Json& sender, int answerer, std::span<const PingPongStamps> stamps) {
  std::vector<std::size_t> order(stamps.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  const std::size_t kept = std::min(kKept, order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(kept), order.end(),
                    [&](std::size_t x, std::size_t y) {
                      return round_trip_ns(stamps[x]) < round_trip_ns(stamps[y]);
                    });
  std::sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(kept));
  const PingPongStamps& first = stamps[order[0]];
  Json exchanges = Json::array();  // short, and one line of run.json: a run holds thousands
  for (std::size_t i = 0; i < kept; ++i) {
    const PingPongStamps& s = stamps[order[i]];
    for (const std::int64_t stamp : {s.send_ns - first.send_ns, s.receive_ns - first.receive_ns,
                                     s.answer_ns - first.receive_ns, s.back_ns - first.send_ns}) {
      exchanges.push_back(stamp);
    }
  }
  return Json{{"a", sender},
              {"b", answerer},
              {"made", stamps.size()},
              {"base_a_ns", first.send_ns},
              {"base_b_ns", first.receive_ns},
              {"exchanges_ns", std::move(exchanges)}};
}

}  // namespace

ClockCalibrator::ClockCalibrator(const RankContext& context, Communicator& communicator)
    : context_(context),
      communicator_(communicator),
      stamps_(static_cast<std::size_t>(kExchanges) * (kMaxAllReduceRanks + 1)),
      words_(2 * kHostWord) {}

void ClockCalibrator::enqueue_pair(int sender, int answerer, cudaStream_t stream) {
  if (!ours(sender, answerer)) return;
  const bool sends = context_.rank == sender;
  const int peer = sends ? answerer : sender;
  kernels::ClockPingPongArgs args;
  args.own_word = communicator_.ping_pong_word(context_.rank, peer);
  args.peer_word = communicator_.ping_pong_word(peer, context_.rank);
  args.stamps = communicator_.ping_pong_stamps(sender);
  args.first_sequence = sequences_[peer];
  args.exchanges = kExchanges;
  args.rank = context_.rank;
  args.peer = peer;
  args.sender = sends;
  args.guard = communicator_.guard();
  check_cuda(kernels::launch_clock_ping_pong(args, stream));
  sequences_[peer] += kExchanges + 1;
  if (!sends) return;
  // Before the next pair: its answerer writes to the same stamps, but only once this rank's kernel
  // has sent to it.
  check_cuda(cudaMemcpyAsync(stamps_.data() + std::size_t{kExchanges} * peer, args.stamps,
                             kExchanges * sizeof(PingPongStamps), cudaMemcpyDeviceToHost, stream));
}

// The host sends. Its words lie in mapped memory, which the kernel polls across the bus.
void ClockCalibrator::exchange_with_host(cudaStream_t stream) {
  PingPongStamps* const stamps = stamps_.data() + std::size_t{kExchanges} * kHostRow;
  kernels::ClockPingPongArgs args;
  args.own_word = words_.data();
  args.peer_word = words_.data() + kHostWord;
  args.stamps = stamps;
  args.first_sequence = host_sequence_;
  args.exchanges = kExchanges;
  args.rank = args.peer = context_.rank;
  args.guard = communicator_.guard();
  check_cuda(kernels::launch_clock_ping_pong(args, stream));
  volatile std::uint32_t* const to_gpu = words_.data();
  const volatile std::uint32_t* const from_gpu = words_.data() + kHostWord;
  HostWait wait(context_, context_.control->deadlines().device_ns);
  const auto wait_for = [&](std::uint32_t sequence) {
    while (static_cast<std::int32_t>(*from_gpu - sequence) < 0) wait.poll("a clock message", -1);
  };
  for (int i = 0; i < kExchanges; ++i) {
    const std::uint32_t sequence = host_sequence_ + 1 + static_cast<std::uint32_t>(i);
    const std::int64_t send_ns = now_ns();
    *to_gpu = sequence;
    wait_for(sequence);
    stamps[i].back_ns = now_ns();
    stamps[i].send_ns = send_ns;
  }
  host_sequence_ += kExchanges + 1;
}

Json ClockCalibrator::measure(cudaStream_t stream, bool with_host) {
  Json points = Json::array();
  const std::int64_t deadline_ns = 2 * context_.control->deadlines().device_ns;
  const int ranks = std::min(context_.world_size, kMaxAllReduceRanks);
  std::vector<std::pair<int, int>> pairs;
  for (int peer = 1; peer < ranks; ++peer) pairs.emplace_back(0, peer);
  for (int rank = 1; rank + 1 < ranks; ++rank) pairs.emplace_back(rank, rank + 1);
  // A rank that comes late must not cost the others their wait's deadline.
  context_.control->barrier(context_.rank, context_.control->deadlines().prepare_ns,
                            "clock calibration");
  if (context_.rank < ranks) {
    for (const auto& [sender, answerer] : pairs) enqueue_pair(sender, answerer, stream);
  }
  wait_for_stream(context_, stream, deadline_ns, "clock calibration");
  communicator_.check_fault(-1, "clock calibration");
  for (const auto& [sender, answerer] : pairs) {
    if (context_.rank != sender) continue;
    points.push_back(point_json(
        sender, answerer, stamps_.span().subspan(std::size_t{kExchanges} * answerer, kExchanges)));
  }
  if (!with_host) return points;
  exchange_with_host(stream);
  wait_for_stream(context_, stream, deadline_ns, "clock calibration with the host");
  communicator_.check_fault(-1, "clock calibration with the host");
  points.push_back(
      point_json(nullptr, context_.rank,
                 stamps_.span().subspan(std::size_t{kExchanges} * kHostRow, kExchanges)));
  return points;
}

}  // namespace tpjitter
