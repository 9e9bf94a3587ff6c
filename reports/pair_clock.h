// The clocks of two GPUs compared by the run's own all-reduces.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace tpjitter {

// Clock of rank a minus clock of rank b, from all-reduces in which one waited for the other: a flag
// seen on a less its release on b is the offset plus the flight, the other way around the offset
// minus it. Each time is judged by the all-reduces around it, never by its own.
class PairClock {
 public:
  void a_waited(std::int64_t time_ns, std::int64_t seen_a_minus_own_b) {
    forth_.push_back({time_ns, seen_a_minus_own_b});
  }
  void b_waited(std::int64_t time_ns, std::int64_t own_a_minus_seen_b) {
    back_.push_back({time_ns, own_a_minus_seen_b});
  }
  void sort();
  // Absent with too few all-reduces around `time_ns`. All times on one clock.
  std::optional<std::int64_t> at(std::int64_t time_ns) const;

 private:
  struct Point {
    std::int64_t time_ns, offset_ns;
  };
  static std::optional<std::int64_t> around(const std::vector<Point>& points, std::int64_t time_ns);
  std::vector<Point> forth_, back_;
};

}  // namespace tpjitter
