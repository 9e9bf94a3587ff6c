// Host time: CLOCK_MONOTONIC_RAW in integer nanoseconds, one clock for all ranks of a host.
#pragma once

#include <time.h>

#include <cstdint>

namespace tpjitter {

// One stamp: 27 to 34 ns on a virtual machine with an H200 (2026-11); bench_launch prints it.
inline std::int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC_RAW, &t);
  return t.tv_sec * std::int64_t{1'000'000'000} + t.tv_nsec;
}

// Burns CPU until `until_ns`; for injected delays and modelled launch costs, where a sleep would
// hand the core to another rank and measure the scheduler instead. Returns the time that ended it:
// reading the clock once more would add a stamp's cost to the delay.
inline std::int64_t spin_until_ns(std::int64_t until_ns) {
  for (;;) {
    if (const std::int64_t now = now_ns(); now >= until_ns) return now;
  }
}

// Every wait has one of these. A deadline scale (--deadline-scale) stretches all of them at once
// for sanitizer builds.
struct Deadlines {
  std::int64_t device_ns = 2'000'000'000;     // inside a device wait (all-reduce, modelled or real)
  std::int64_t launcher_ns = 10'000'000'000;  // a rank in a block that makes no progress
  std::int64_t prepare_ns = 120'000'000'000;  // context creation, capture, NCCL init

  static Deadlines scaled(double scale) {
    Deadlines d;
    d.device_ns = static_cast<std::int64_t>(static_cast<double>(d.device_ns) * scale);
    d.launcher_ns = static_cast<std::int64_t>(static_cast<double>(d.launcher_ns) * scale);
    d.prepare_ns = static_cast<std::int64_t>(static_cast<double>(d.prepare_ns) * scale);
    return d;
  }
};

}  // namespace tpjitter
