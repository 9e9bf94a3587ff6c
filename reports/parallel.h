// A loop over independent parts on as many threads as there are cores. What a part writes must be
// its own; sums are made afterwards and in order, so that the result does not depend on the threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace tpjitter {

// Rows below which starting threads costs more than it saves.
inline constexpr std::size_t kParallelRows = 100'000;

// Threads that the current one may use; 0: as many as there are cores.
inline thread_local std::size_t thread_budget = 0;

// Calls work(part) for each part in [0, parts). `rows`: what all of it goes through. Loops
// within a part share what cores the parts leave. The first exception is thrown again here.
template <class Work>
void parallel_for(std::size_t parts, std::size_t rows, const Work& work) {
  const std::size_t budget =
      thread_budget > 0 ? thread_budget : std::max(1u, std::thread::hardware_concurrency());
  const std::size_t threads = rows < kParallelRows ? 1 : std::min(budget, parts);
  if (threads <= 1) {
    for (std::size_t part = 0; part < parts; ++part) work(part);
    return;
  }
  std::atomic<std::size_t> next{0};
  std::exception_ptr first;
  std::mutex mutex;
  const auto run = [&] {
    const std::size_t outer = std::exchange(thread_budget, budget / threads);
    try {
      for (std::size_t part = next++; part < parts; part = next++) work(part);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!first) first = std::current_exception();
      next = parts;
    }
    thread_budget = outer;
  };
  {
    std::vector<std::jthread> others;
    for (std::size_t i = 1; i < threads; ++i) others.emplace_back(run);
    run();
  }
  if (first) std::rethrow_exception(first);
}

// Of `parts` of much the same length, how many to take at once: those that would be left for few of
// the cores come after them, one by one, and split themselves.
inline std::size_t parts_at_once(std::size_t parts) {
  const std::size_t cores = std::max(1u, std::thread::hardware_concurrency());
  return parts < cores ? parts : parts - parts % cores;
}

// The same over [0, size) in ranges of rows: work(begin, end, part).
inline constexpr std::size_t kRangeRows = 1u << 16;
inline std::size_t num_ranges(std::size_t size) { return (size + kRangeRows - 1) / kRangeRows; }
template <class Work>
void parallel_ranges(std::size_t size, const Work& work) {
  parallel_for(num_ranges(size), size, [&](std::size_t part) {
    work(part * kRangeRows, std::min((part + 1) * kRangeRows, size), part);
  });
}

}  // namespace tpjitter
