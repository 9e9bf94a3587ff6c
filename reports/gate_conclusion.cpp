// What needs all rows of a gate: false discoveries, waivers, and the one verdict.
#include <fmt/format.h>

#include <algorithm>

#include "harness/contract/error.h"
#include "reports/gate_checks.h"

namespace tpjitter {
namespace {

// False discoveries are counted over the required rows of every kind.
void decide_rows(std::vector<GateRow>* rows) {
  std::vector<double> p_values;
  for (const GateRow& row : *rows) {
    if (row.required && row.p_value) p_values.push_back(*row.p_value);
  }
  const std::vector<double> adjusted = benjamini_hochberg(p_values);
  std::size_t next = 0;
  for (GateRow& row : *rows) {
    if (!row.p_value) continue;
    row.p_adjusted = row.required ? adjusted[next++] : *row.p_value;
    if (row.kind == CheckKind::kChange) {
      decide_change(&row);
    } else {
      decide_value(&row);
    }
  }
}

void apply_waivers(const GateOptions& options, GateResult* result) {
  for (const ThresholdWaiver& waiver : options.thresholds.waivers) {
    bool used = false;
    const bool expired = waiver.expires < options.today;
    for (GateRow& row : result->rows) {
      if (row.verdict != Verdict::kRegressed || row.metric != waiver.metric ||
          !glob_matches(waiver.cases, row.case_name)) {
        continue;
      }
      used = true;
      if (!expired) row.waived = waiver.reason;
    }
    if (expired) {
      result->notes.push_back(fmt::format("{}: the waiver of {} for {} expired on {}{}",
                                          waiver.place, waiver.metric, waiver.cases, waiver.expires,
                                          used ? "; it would have been used" : ""));
    } else if (!used) {
      result->notes.push_back(fmt::format("{}: the waiver of {} for {} waived nothing",
                                          waiver.place, waiver.metric, waiver.cases));
    }
  }
}

std::size_t count(const GateResult& result, Verdict verdict) {
  return static_cast<std::size_t>(std::count_if(
      result.rows.begin(), result.rows.end(),
      [&](const GateRow& row) { return row.required && !row.waived && row.verdict == verdict; }));
}

void finish(GateResult* result, Verdict verdict, int exit_code, std::string headline) {
  result->verdict = verdict;
  result->exit_code = exit_code;
  result->headline = std::move(headline);
}

// "dispatch_ns of aten/bs8" of the first required row with this verdict.
std::string first_of(const GateResult& result, Verdict verdict) {
  for (const GateRow& row : result.rows) {
    if (row.required && !row.waived && row.verdict == verdict) {
      return fmt::format("{}: {}", row_label(row), row.reason);
    }
  }
  return {};
}

// Precedence: incomparable, empty, incomplete, nothing measured, void, regressed, inconclusive, pass.
void conclude(const std::vector<std::string>& incomplete, bool empty, GateResult* result) {
  if (!result->incomparable.empty()) {
    return finish(result, Verdict::kIncomparable, kExitIncomparable,
                  fmt::format("incomparable: {}", result->incomparable.front()));
  }
  if (empty) {
    return finish(result, Verdict::kNothingMeasured, kExitNothingMeasured,
                  fmt::format("nothing measured: the contender has no rows{}",
                              incomplete.empty() ? "" : ": " + incomplete.front()));
  }
  if (!incomplete.empty()) {
    return finish(result, Verdict::kInconclusive, kExitRunFailed,
                  fmt::format("the contender is incomplete: {}", incomplete.front()));
  }
  if (count(*result, Verdict::kIncomparable) > 0) {
    return finish(result, Verdict::kIncomparable, kExitIncomparable,
                  "incomparable: " + first_of(*result, Verdict::kIncomparable));
  }
  const bool any = std::any_of(result->rows.begin(), result->rows.end(),
                               [](const GateRow& row) { return row.required; });
  if (!any || count(*result, Verdict::kNothingMeasured) > 0) {
    return finish(result, Verdict::kNothingMeasured, kExitNothingMeasured,
                  any ? "nothing measured: " + first_of(*result, Verdict::kNothingMeasured)
                      : "nothing measured: no required rule found a value");
  }
  if (result->is_void) {
    for (const GateControl& control : result->controls) {
      if (control.stable) continue;
      return finish(result, Verdict::kInconclusive, kExitInconclusive,
                    fmt::format("void: {}: {}", control.name, control.reason));
    }
  }
  if (const std::size_t n = count(*result, Verdict::kRegressed); n > 0) {
    return finish(result, Verdict::kRegressed, kExitRegressed,
                  fmt::format("regressed: {}{}", first_of(*result, Verdict::kRegressed),
                              n > 1 ? fmt::format(" (and {} more)", n - 1) : ""));
  }
  if (const std::size_t n = count(*result, Verdict::kInconclusive); n > 0) {
    return finish(result, Verdict::kInconclusive, kExitInconclusive,
                  fmt::format("inconclusive: {}{}", first_of(*result, Verdict::kInconclusive),
                              n > 1 ? fmt::format(" (and {} more)", n - 1) : ""));
  }
  const auto waived = std::count_if(result->rows.begin(), result->rows.end(),
                                    [](const GateRow& row) { return row.waived.has_value(); });
  if (waived > 0) {
    return finish(result, Verdict::kPass, kExitPass,
                  fmt::format("pass, but {} regressed and waived", waived));
  }
  const std::size_t better = count(*result, Verdict::kImproved);
  finish(result, better > 0 ? Verdict::kImproved : Verdict::kPass, kExitPass,
         better > 0 ? fmt::format("pass; improved: {}", first_of(*result, Verdict::kImproved))
                    : "pass: no required metric got worse by more than its limit");
}

}  // namespace

void finish_gate(const GateOptions& options, const std::vector<std::string>& incomplete, bool empty,
                 GateResult* result) {
  decide_rows(&result->rows);
  apply_waivers(options, result);
  conclude(incomplete, empty, result);
}

}  // namespace tpjitter
