// One row of the selftest: a case and one of its victims, judged by the targets of the backend.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reports/run_reader.h"
#include "reports/selftest_samples.h"

namespace tpjitter {

// Delays that stand out of what a scheduler does.
inline constexpr std::int64_t kLongDelayNs = 250'000;
inline constexpr std::uint64_t kMinJudgedReplays = 20;  // for a share

// Largest values that pass, ns; shares: smallest. Absent: not judged.
struct SelftestTargets {
  std::optional<std::int64_t> actual_error_p50_ns;         // actual against injected
  std::optional<std::int64_t> error_p50_ns, error_p95_ns;  // recovered against injected
  std::optional<std::int64_t> excess_wait_error_p50_ns;    // recovered from waits against actual
  // Excess wait against the gap between the arrivals.
  std::optional<std::int64_t> gap_error_p50_ns, gap_error_p95_ns, gap_error_max_ns;
  std::optional<std::int64_t> judged_from_ns;  // from here on every row must have judged replays
  std::int64_t ordered_from_ns = 0;            // recovered delays must grow from this one on
  double laggard_right = 0.99;
  double stage_right = 0.95;
};

// CPUs that the ranks may use; absent in a record made by hand.
std::optional<std::size_t> cpus_of(const Run& run);
bool ranks_fit_cpus(const Run& run);
SelftestTargets selftest_targets(const Run& run, bool on_gpu);

// What the case without a delay says about a victim: taken out of its other rows.
struct NaturalWaits {
  std::int64_t excess_wait_ns = 0;  // p50
  std::int64_t bound_ns = 0;        // of what the host's stamps do not show
  // p50, over all victims: what a flag's flight takes here over the controls' floor, which depends
  // on what runs before the all-reduce.
  std::int64_t flight_shift_ns = 0;
};

// Absolute errors.
class ErrorQuantiles {
 public:
  void add(std::int64_t error);
  void finish();  // after the last
  Json json() const;

  std::optional<std::int64_t> p50, p95, max;

 private:
  std::vector<std::int64_t> values_;
};

class SelftestRow {
 public:
  SelftestRow(const Run& run, const DelayCase& c, std::size_t victim, const NaturalWaits& natural);

  // Against the row of the same victim with the next smaller delay.
  void check_order(const SelftestRow& before);

  bool pass() const { return failures_.empty(); }
  std::int64_t asked_ns() const { return case_.asked_ns; }
  std::uint64_t judged() const { return judged_; }
  const std::string& place() const { return case_.config.inject_where; }
  Json json() const;

 private:
  void add(const DelaySample& s);
  std::optional<std::int64_t> recovered() const;
  std::optional<double> share(std::uint64_t right) const;
  void judge();
  void judge_errors();
  void fail(std::string reason) { failures_.push_back(std::move(reason)); }
  void at_most(const char* what, const std::optional<std::int64_t>& value,
               const std::optional<std::int64_t>& limit, bool needed);
  void at_least(const char* what, const std::optional<double>& value, double limit);

  const DelayCase& case_;
  std::size_t victim_;
  NaturalWaits natural_;
  bool on_gpu_;
  SelftestTargets targets_;
  std::vector<std::int64_t> actual_, skew_, excess_;
  ErrorQuantiles actual_error_, error_, excess_error_, gap_error_;
  std::uint64_t short_ = 0, judged_ = 0, laggard_right_ = 0, stage_right_ = 0;
  std::uint64_t not_last_ = 0;  // replays whose victim the clocks do not show as the last
  std::vector<std::string> failures_, notes_;
};

// Of at least 20 values.
std::optional<std::int64_t> supported_p50(std::vector<std::int64_t> values);
std::string microseconds(std::int64_t ns);

}  // namespace tpjitter
