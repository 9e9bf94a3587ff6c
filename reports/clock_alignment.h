// Two clocks compared by messages that go there and back. Pure functions over stamps: no time is
// read here. An exchange bounds the offset between the clocks whatever its way there and back cost:
// with no message faster than light the true offset lies within half the round trip of the middle,
// so the bound stands for the asymmetry that nobody can see. What does not fit together gives no
// value, and the reason.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tpjitter {

// A message from a to b and one back, each stamped by the clock it is named for. ns.
struct ClockExchange {
  std::int64_t send_a_ns = 0;
  std::int64_t receive_b_ns = 0;
  std::int64_t send_b_ns = 0;
  std::int64_t receive_a_ns = 0;
};

// Time on the way there and back, without what b held it for.
std::int64_t round_trip_ns(const ClockExchange& exchange);
// Middle of b's clock minus a's that the exchange allows; off by half the round trip at most.
std::int64_t middle_offset_ns(const ClockExchange& exchange);
// Can clocks and messages give these stamps at all?
bool possible(const ClockExchange& exchange);

inline constexpr std::size_t kOffsetExchanges = 5;  // the fastest, of which an offset is the median
inline constexpr std::size_t kMinPoints = 3;        // with two, drift cannot be told from a step
inline constexpr double kMaxDrift = 200e-6;         // oscillators are within 100 ppm each
// globaltimer's step on Hopper: each stamp is early by less than this.
inline constexpr std::int64_t kClockResolutionNs = 32;

// b's clock minus a's at one time. Without a reason the true one lies within offset +- bound.
struct ClockOffset {
  std::int64_t at_a_ns = 0;  // a's clock
  std::int64_t offset_ns = 0;
  std::int64_t bound_ns = 0;       // half the largest round trip used, and the clocks' resolution
  std::int64_t round_trip_ns = 0;  // the smallest
  std::uint64_t rejected = 0;      // exchanges: impossible, or contradicted by three quarters
  std::string reason;              // why there is no offset
};

// From exchanges so close in time that the clocks did not drift apart: the median of the
// kOffsetExchanges fastest, so that two stamps may lie without moving it beyond the bound.
ClockOffset estimate_offset(std::span<const ClockExchange> exchanges,
                            std::int64_t resolution_ns = kClockResolutionNs);

struct AlignedOffset {
  std::int64_t offset_ns = 0;
  std::int64_t bound_ns = 0;
};

// The offset over time: linear between the points of calibration, nothing beyond them.
struct ClockLine {
  struct Interval {
    std::int64_t deviation_ns = 0;  // of its change from what the others' drift makes of it
    std::int64_t bound_ns = 0;
  };
  std::vector<ClockOffset> points;  // in time order, without the rejected
  std::vector<Interval> intervals;  // between them
  double drift = 0;                 // b's clock gains this much on a's, ns per ns
  std::int64_t bound_ns = 0;        // the largest
  std::int64_t residual_ns = 0;     // the largest deviation
  std::uint64_t rejected_points = 0;
  std::uint64_t steps = 0;  // intervals in which one clock was set
  std::string reason;       // why there is no alignment

  bool aligned() const { return reason.empty(); }
  std::optional<AlignedOffset> at(std::int64_t a_ns) const;
};

// Points of one pair in any order. A point without an offset, or one that contradicts its
// neighbours while they agree, is rejected; a step ends the alignment. Assumes that a clock's rate
// holds for a launch, and what the two ways of the fastest message differ by: what the rate wanders,
// or an undetected step moves, is in the bound.
ClockLine align_points(std::vector<ClockOffset> points);

// a to b, b to c against a to c. Clocks that are right agree within the sum of the bounds.
struct ClockClosure {
  int a = 0, b = 0, c = 0;
  std::uint64_t points = 0;
  std::int64_t error_ns = 0;  // the largest
  std::int64_t bound_ns = 0;  // there
  bool within = false;
};
ClockClosure close_triangle(const ClockLine& ab, const ClockLine& bc, const ClockLine& ac);

// Exchanges of another source (the run's own all-reduces) against an alignment.
struct ExchangeCheck {
  std::uint64_t exchanges = 0;       // within the calibrated time
  std::uint64_t outside = 0;         // before the first point or after the last
  std::uint64_t contradictions = 0;  // further off than both bounds together, or impossible
  std::vector<std::int64_t> residuals_ns;

  void add(const ClockExchange& exchange, const std::optional<AlignedOffset>& offset,
           std::int64_t resolution_ns);
  // A stamp in a hundred may be damaged without the clocks being wrong.
  bool consistent() const { return contradictions * 100 <= exchanges; }
};

// The clocks' step as the stamps show it: the largest number that divides all their differences,
// of the coarser clock. kClockResolutionNs if they show none.
std::int64_t stamp_resolution_ns(std::span<const ClockExchange> exchanges);

// Stamps of a 32-bit nanosecond counter (it wraps every 4.29 s) as one growing count. Each stamp of
// a clock must follow within 2.1 s of the one before; a is followed through send and receive, b
// through receive and send.
void unwrap_32_bit(std::vector<ClockExchange>* exchanges);

}  // namespace tpjitter
