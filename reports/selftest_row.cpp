#include "reports/selftest_row.h"

#include <fmt/format.h>

#include <algorithm>

#include "reports/quantiles.h"
#include "reports/stamps.h"

namespace tpjitter {
namespace {

constexpr int kP95 = 950;
constexpr std::int64_t kUs = 1000;

// A host delay is a wait for a time: it can be longer, never shorter.
constexpr std::int64_t kShortNs = 100;

// From here on waits are long enough that every replay of rotating victims can be judged.
constexpr std::int64_t kClearDelayNs = 20 * kUs;

// Of the replays above the step's own skew, with a long delay: a rank that late is the last.
constexpr double kMaxNotLast = 0.05;

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json targets_json(const SelftestTargets& t) {
  return {{"actual_error_p50_ns", or_null(t.actual_error_p50_ns)},
          {"error_p50_ns", or_null(t.error_p50_ns)},
          {"error_p95_ns", or_null(t.error_p95_ns)},
          {"excess_wait_error_p50_ns", or_null(t.excess_wait_error_p50_ns)},
          {"arrival_gap_error_p50_ns", or_null(t.gap_error_p50_ns)},
          {"arrival_gap_error_p95_ns", or_null(t.gap_error_p95_ns)},
          {"arrival_gap_error_max_ns", or_null(t.gap_error_max_ns)},
          {"laggard_right", t.laggard_right},
          {"stage_right", t.stage_right},
          {"judged_from_ns", or_null(t.judged_from_ns)},
          {"ordered_from_ns", t.ordered_from_ns}};
}

}  // namespace

std::optional<std::size_t> cpus_of(const Run& run) {
  const Json& e = run.info.environment;
  if (!e.is_object() || !e.contains("cpus_allowed") || !e["cpus_allowed"].is_array()) {
    return std::nullopt;
  }
  return e["cpus_allowed"].size();
}

bool ranks_fit_cpus(const Run& run) {
  const auto cpus = cpus_of(run);
  return !cpus || run.ranks.size() <= *cpus;
}

SelftestTargets selftest_targets(const Run& run, bool on_gpu) {
  SelftestTargets t;
  t.actual_error_p50_ns = 1 * kUs;
  t.judged_from_ns = t.ordered_from_ns = kLongDelayNs;
  if (run.info.backend == "host") {
    t.gap_error_max_ns = 0;  // one clock and no fabric: nothing may be lost
    if (ranks_fit_cpus(run)) {
      t.actual_error_p50_ns = t.error_p50_ns = t.excess_wait_error_p50_ns = 5 * kUs;
      t.ordered_from_ns = 20 * kUs;
    } else {
      // The scheduler's slices are in every delay, and longer than most.
      t.actual_error_p50_ns = t.judged_from_ns = std::nullopt;
    }
    return t;
  }
  t.ordered_from_ns = 5 * kUs;
  t.gap_error_p50_ns = 250;
  t.gap_error_p95_ns = 1 * kUs;
  if (on_gpu) {
    t.error_p50_ns = 250;
    t.error_p95_ns = 1 * kUs;
  } else {
    t.error_p95_ns = 200;
  }
  return t;
}

std::optional<std::int64_t> supported_p50(std::vector<std::int64_t> values) {
  if (!quantile_supported(values.size(), kP50)) return std::nullopt;
  return nearest_rank(values, kP50);
}

std::string microseconds(std::int64_t ns) {
  return fmt::format("{:.3f} us", static_cast<double>(ns) / 1e3);
}

void ErrorQuantiles::add(std::int64_t error) {
  values_.push_back(error < 0 ? difference_ns(0, error) : error);
}

void ErrorQuantiles::finish() {
  const auto n = static_cast<std::uint64_t>(values_.size());
  if (n == 0) return;
  max = *std::max_element(values_.begin(), values_.end());
  if (quantile_supported(n, kP50)) p50 = nearest_rank(values_, kP50);
  if (quantile_supported(n, kP95)) p95 = nearest_rank(values_, kP95);
}

Json ErrorQuantiles::json() const {
  return {{"p50", or_null(p50)}, {"p95", or_null(p95)}, {"max", or_null(max)}};
}

SelftestRow::SelftestRow(const Run& run, const DelayCase& c, std::size_t victim,
                         const NaturalWaits& natural)
    : case_(c),
      victim_(victim),
      natural_(natural),
      on_gpu_(c.config.inject_where == "gpu"),
      targets_(selftest_targets(run, on_gpu_)) {
  for (const DelaySample& s : c.samples[victim]) add(s);
  for (ErrorQuantiles* errors : {&actual_error_, &error_, &excess_error_, &gap_error_})
    errors->finish();
  judge();
}

void SelftestRow::check_order(const SelftestRow& before) {
  if (case_.asked_ns < targets_.ordered_from_ns || !recovered() || !before.recovered()) return;
  if (*recovered() > *before.recovered()) return;
  fail(fmt::format("recovered {}, not above the {} of the delay of {}", microseconds(*recovered()),
                   microseconds(*before.recovered()), microseconds(before.case_.asked_ns)));
}

Json SelftestRow::json() const {
  Json row;
  row["inject"] = case_.config.inject_where;
  row["pattern"] = case_.config.inject_pattern;
  row["victim"] = victim_;
  row["injected_ns"] = case_.asked_ns;
  row["n"] = case_.samples[victim_].size();
  row["actual_ns"] = or_null(supported_p50(actual_));
  row["recovered_ns"] = or_null(recovered());
  row["recovered_skew_ns"] = or_null(supported_p50(skew_));
  row["recovered_excess_wait_ns"] = or_null(supported_p50(excess_));
  row["actual_error_ns"] = actual_error_.json();
  row["error_ns"] = error_.json();
  row["excess_wait_error_ns"] = excess_error_.json();
  row["arrival_gap_error_ns"] = gap_error_.json();
  row["flight_shift_ns"] = natural_.flight_shift_ns;
  row["judged"] = judged_;
  row["not_last"] = not_last_;
  row["laggard_right"] = or_null(share(laggard_right_));
  row["stage_right"] = or_null(share(stage_right_));
  row["targets"] = targets_json(targets_);
  row["pass"] = pass();
  row["reasons"] = failures_;
  row["notes"] = notes_;
  return row;
}

void SelftestRow::add(const DelaySample& s) {
  actual_.push_back(s.actual_ns);
  actual_error_.add(difference_ns(s.actual_ns, case_.asked_ns));
  skew_.push_back(s.skew_ns);
  if (!on_gpu_) error_.add(difference_ns(s.skew_ns, case_.asked_ns));
  if (!on_gpu_ && difference_ns(s.actual_ns, case_.asked_ns) < -kShortNs) ++short_;
  if (s.excess_wait_ns) {
    excess_.push_back(difference_ns(*s.excess_wait_ns,
                                    on_gpu_ ? natural_.flight_shift_ns : natural_.excess_wait_ns));
    excess_error_.add(difference_ns(excess_.back(), s.actual_ns));
    if (on_gpu_) error_.add(difference_ns(excess_.back(), case_.asked_ns));
  }
  if (s.gap_error_ns) gap_error_.add(difference_ns(*s.gap_error_ns, natural_.flight_shift_ns));
  // Below the step's own skew another rank may really be the last.
  if (case_.asked_ns == 0 || s.actual_ns <= sum_ns(s.natural_ns, natural_.bound_ns)) return;
  // The bound is of the case without a delay; where another case's graphs take a rank longer to
  // start, the clocks tell who really came last. They know nothing of waits, which are judged here.
  if (s.behind_ns && *s.behind_ns <= s.behind_bound_ns) {
    ++not_last_;
    return;
  }
  ++judged_;
  laggard_right_ += s.laggard_right ? 1 : 0;
  stage_right_ += s.stage_right ? 1 : 0;
}

std::optional<std::int64_t> SelftestRow::recovered() const {
  return supported_p50(on_gpu_ ? excess_ : skew_);
}

std::optional<double> SelftestRow::share(std::uint64_t right) const {
  if (judged_ < kMinJudgedReplays) return std::nullopt;
  return static_cast<double>(right) / static_cast<double>(judged_);
}

void SelftestRow::at_most(const char* what, const std::optional<std::int64_t>& value,
                          const std::optional<std::int64_t>& limit, bool needed) {
  if (!limit) return;
  if (!value) {
    const std::string missing = fmt::format("{}: too few replays to judge it by", what);
    needed ? fail(missing) : notes_.push_back(missing);
  } else if (*value > *limit) {
    fail(fmt::format("{} {}, at most {}", what, microseconds(*value), microseconds(*limit)));
  }
}

void SelftestRow::at_least(const char* what, const std::optional<double>& value, double limit) {
  if (value && *value < limit) {
    fail(fmt::format("{} right in {:.1f} % of the judged replays, at least {:.0f} %", what,
                     100 * *value, 100 * limit));
  }
}

void SelftestRow::judge_errors() {
  // A fixed victim never waits: without a calibration nothing compares the clocks of two GPUs there.
  const bool clear = case_.asked_ns >= kClearDelayNs && case_.config.inject_pattern != "fixed";
  const SelftestTargets& t = targets_;
  at_most("actual against injected p50", actual_error_.p50, t.actual_error_p50_ns, true);
  at_most("error p50", error_.p50, t.error_p50_ns, clear);
  at_most("error p95", error_.p95, t.error_p95_ns, false);
  at_most("excess wait against the delay p50", excess_error_.p50, t.excess_wait_error_p50_ns,
          clear);
  at_most("excess wait against the arrival gap p50", gap_error_.p50, t.gap_error_p50_ns, clear);
  at_most("excess wait against the arrival gap p95", gap_error_.p95, t.gap_error_p95_ns, false);
  at_most("excess wait against the arrival gap max", gap_error_.max, t.gap_error_max_ns, clear);
}

void SelftestRow::judge() {
  const std::size_t n = case_.samples[victim_].size();
  if (!quantile_supported(n, kP50)) {
    fail(fmt::format("{} replays in which rank {} was to be delayed, at least 20", n, victim_));
    return;
  }
  if (short_ > 0) fail(fmt::format("{} of {} delays are shorter than asked", short_, n));
  judge_errors();
  at_least("laggard", share(laggard_right_), targets_.laggard_right);
  at_least("stage", share(stage_right_), targets_.stage_right);
  const std::uint64_t above = judged_ + not_last_;
  if (case_.asked_ns >= kLongDelayNs &&
      static_cast<double>(not_last_) > kMaxNotLast * static_cast<double>(above)) {
    fail(
        fmt::format("the calibrated clocks do not show the victim as the last in {} of {} replays "
                    "above the step's own skew, at most {:.0f} %",
                    not_last_, above, 100 * kMaxNotLast));
  }
  if (case_.asked_ns == 0 || judged_ >= kMinJudgedReplays) return;
  const std::string not_last =
      not_last_ == 0 ? ""
                     : fmt::format(
                           " and in {} of these the calibrated clocks do not show the "
                           "victim as the last;",
                           not_last_);
  const std::string few = fmt::format(
      "laggard and stage: the delay is above the step's own skew in {} of {} replays,{} {} are "
      "needed",
      above, n, not_last, kMinJudgedReplays);
  const bool needed = targets_.judged_from_ns && case_.asked_ns >= *targets_.judged_from_ns;
  needed ? fail(few) : notes_.push_back(few);
}

}  // namespace tpjitter
