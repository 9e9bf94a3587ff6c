// Two clocks of which everything is known, and the exchanges that a link between them gives: known
// offset, drift, steps and resolution, ways of unlike length, late messages, damaged stamps. Same
// seed, same stamps; no time of this machine is read.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <span>
#include <vector>

#include "reports/clock_alignment.h"

namespace tpjitter {

inline constexpr std::int64_t kSecond = 1'000'000'000;
using Exchanges = std::vector<ClockExchange>;

struct SyntheticClock {
  std::int64_t start_ns = 0;
  std::int64_t rate_ppb = 0;  // ns gained per second
  std::int64_t step_at_ns = INT64_MAX;
  std::int64_t step_ns = 0;
  std::int64_t resolution_ns = 32;

  std::int64_t exact(std::int64_t true_ns) const {
    return start_ns + true_ns + true_ns / 1000 * rate_ppb / 1'000'000 +
           (true_ns >= step_at_ns ? step_ns : 0);
  }
  std::int64_t read(std::int64_t true_ns) const {
    return exact(true_ns) / resolution_ns * resolution_ns;
  }
};

struct Link {
  std::int64_t there_ns = 1100, back_ns = 1100;
  std::int64_t jitter_ns = 300;    // more, each way, evenly
  int late_percent = 0;            // messages that take up to 50 us more
  int damaged_percent = 0;         // exchanges of which one stamp is any value nearby
  std::int64_t damage_ns = 5'000;  // how far off it is at most
};

class Pair {
 public:
  Pair(std::uint64_t seed, SyntheticClock clock_a, SyntheticClock clock_b, Link link = {})
      : a(clock_a), b(clock_b), link_(link), random_(seed) {}

  ClockExchange exchange(std::int64_t true_ns) {
    const std::int64_t received = true_ns + link_.there_ns + delay();
    const std::int64_t sent = received + below(100);
    const std::int64_t back = sent + link_.back_ns + delay();
    ClockExchange e = {a.read(true_ns), b.read(received), b.read(sent), a.read(back)};
    if (below(100) < link_.damaged_percent) {
      std::int64_t* stamps[] = {&e.send_a_ns, &e.receive_b_ns, &e.send_b_ns, &e.receive_a_ns};
      *stamps[below(4)] += below(2 * link_.damage_ns) - link_.damage_ns;
    }
    return e;
  }
  Exchanges exchanges(std::int64_t true_ns, int count = 64) {
    Exchanges out;
    for (int i = 0; i < count; ++i) out.push_back(exchange(true_ns + i * 4'000));
    return out;
  }
  std::vector<ClockOffset> points(std::span<const std::int64_t> times) {
    std::vector<ClockOffset> out;
    for (const std::int64_t time : times) out.push_back(estimate_offset(exchanges(time)));
    return out;
  }
  std::int64_t true_offset(std::int64_t true_ns) const {
    return b.exact(true_ns) - a.exact(true_ns);
  }
  std::int64_t below(std::int64_t limit) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(limit));
  }

  SyntheticClock a, b;

 private:
  std::int64_t delay() {
    const std::int64_t late = below(100) < link_.late_percent ? below(50'000) : 0;
    return late + (link_.jitter_ns > 0 ? below(link_.jitter_ns) : 0);
  }
  Link link_;
  std::mt19937_64 random_;
};

// Two GPUs as MEASURED on one host: 71 us apart, 0.8 us a second.
inline Pair two_gpus(std::uint64_t seed, Link link = {}) {
  return Pair(seed, {5 * kSecond}, {5 * kSecond + 71'000, 800}, link);
}

inline std::vector<std::int64_t> every(std::int64_t interval_ns, int count) {
  std::vector<std::int64_t> times;
  for (int i = 0; i < count; ++i) times.push_back((i + 1) * interval_ns);
  return times;
}

// Largest error of the alignment between two times, and whether its bound always held.
struct Errors {
  std::int64_t largest_ns = 0;
  int values = 0;
  bool bounded = true;
};
inline Errors errors_of(const ClockLine& line, const Pair& pair, std::int64_t from,
                        std::int64_t to) {
  Errors errors;
  for (int i = 0; i <= 200; ++i) {
    const std::int64_t time = from + (to - from) / 200 * i;
    const auto offset = line.at(pair.a.exact(time));
    if (!offset) continue;
    ++errors.values;
    const std::int64_t error = std::llabs(offset->offset_ns - pair.true_offset(time));
    errors.largest_ns = std::max(errors.largest_ns, error);
    errors.bounded = errors.bounded && error <= offset->bound_ns;
  }
  return errors;
}

}  // namespace tpjitter
