#include "reports/selftest.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "harness/contract/delay_ladder.h"
#include "reports/quantiles.h"
#include "reports/selftest_row.h"
#include "reports/stamps.h"

namespace tpjitter {
namespace {

constexpr std::int64_t kUs = 1000;

// By place and victim, from the rotating case without a delay.
std::map<std::pair<std::string, std::size_t>, NaturalWaits> natural_of(
    const Run& run, const std::vector<DelayCase>& cases) {
  std::map<std::pair<std::string, std::size_t>, NaturalWaits> result;
  for (const DelayCase& c : cases) {
    if (c.asked_ns != 0 || c.config.inject_pattern != "rotating") continue;
    NaturalWaits natural;
    std::vector<std::int64_t> gap_errors;
    for (const auto& samples : c.samples) {
      for (const DelaySample& s : samples) {
        if (s.gap_error_ns) gap_errors.push_back(*s.gap_error_ns);
      }
    }
    // The model's flight is a constant.
    if (run.info.backend != "host") natural.flight_shift_ns = supported_p50(gap_errors).value_or(0);
    for (std::size_t victim = 0; victim < c.samples.size(); ++victim) {
      std::vector<std::int64_t> waits;
      for (const DelaySample& s : c.samples[victim]) {
        if (s.excess_wait_ns) waits.push_back(*s.excess_wait_ns);
      }
      natural.excess_wait_ns = supported_p50(waits).value_or(0);
      for (std::int64_t& wait : waits) wait = wait < 0 ? difference_ns(0, wait) : wait;
      natural.bound_ns = nearest_rank(waits, kP99).value_or(0);
      result[{c.config.inject_where, victim}] = natural;
    }
  }
  return result;
}

// Rungs that the record must hold: every delay at every place, each rank a victim.
void check_ladder(const std::vector<DelayCase>& cases, std::vector<std::string>* problems) {
  for (const char* place : kDelayPlaces) {
    for (const std::int64_t delay_us : kDelayLadderUs) {
      const bool there = std::any_of(cases.begin(), cases.end(), [&](const DelayCase& c) {
        return c.config.inject_where == place && c.config.inject_pattern == "rotating" &&
               c.asked_ns == delay_us * kUs;
      });
      if (there) continue;
      problems->push_back(
          fmt::format("no case injects {} us {} into rotating victims", delay_us, place));
    }
  }
}

void check_record(const Run& run, const std::vector<DelayCase>& cases,
                  std::vector<std::string>* problems) {
  if (run.info.status != "complete") {
    problems->push_back(fmt::format("the run is incomplete: {}",
                                    run.info.status_reason.value_or("no reason recorded")));
  }
  for (const RunWarning& problem : run.problems) problems->push_back(problem.text);
  check_ladder(cases, problems);
  for (const DelayCase& c : cases) {
    if (c.mismatches == 0) continue;
    problems->push_back(fmt::format("case {}: {} rows carry another delay than the scenario's; {}",
                                    run.info.cases[c.case_index].name, c.mismatches,
                                    c.first_mismatch));
  }
}

// Laggard and stage must have been judged somewhere, or a pass would say nothing of them.
void check_judged(const std::vector<SelftestRow>& rows, std::vector<std::string>* problems) {
  for (const char* place : kDelayPlaces) {
    std::uint64_t judged = 0;
    for (const SelftestRow& row : rows) {
      if (row.place() == place && row.asked_ns() >= kLongDelayNs) judged += row.judged();
    }
    if (judged >= kMinJudgedReplays) continue;
    problems->push_back(
        fmt::format("{}: laggard and stage could be judged in {} replays with a delay of {} or "
                    "more, {} are needed; run fewer ranks, or on a quieter machine",
                    place, judged, microseconds(kLongDelayNs), kMinJudgedReplays));
  }
}

std::vector<SelftestRow> make_rows(const Run& run, const std::vector<DelayCase>& cases) {
  const auto natural = natural_of(run, cases);
  std::vector<SelftestRow> rows;
  using Ladder = std::tuple<std::string, std::string, std::size_t>;  // place, pattern, victim
  std::map<Ladder, std::vector<std::size_t>> ladders;
  for (const DelayCase& c : cases) {
    const bool fixed = c.config.inject_pattern == "fixed";
    for (std::size_t victim = 0; victim < c.samples.size(); ++victim) {
      if (fixed && static_cast<std::int64_t>(victim) != c.config.inject_victim) continue;
      const auto found = natural.find({c.config.inject_where, victim});
      rows.emplace_back(run, c, victim, found == natural.end() ? NaturalWaits{} : found->second);
      ladders[{c.config.inject_where, c.config.inject_pattern, victim}].push_back(rows.size() - 1);
    }
  }
  for (auto& [key, ladder] : ladders) {
    std::stable_sort(ladder.begin(), ladder.end(), [&](std::size_t x, std::size_t y) {
      return rows[x].asked_ns() < rows[y].asked_ns();
    });
    for (std::size_t i = 1; i < ladder.size(); ++i) {
      rows[ladder[i]].check_order(rows[ladder[i - 1]]);
    }
  }
  return rows;
}

Json devices_of(const RunInfo& info) {
  Json devices = Json::array();
  for (const RunRank& rank : info.ranks) devices.push_back(rank.device);
  return devices;
}

}  // namespace

Json selftest(const Run& run) {
  const std::vector<DelayCase> cases = delay_cases(run);
  const std::vector<SelftestRow> rows = make_rows(run, cases);
  std::vector<std::string> problems;
  check_record(run, cases, &problems);
  check_judged(rows, &problems);

  Json document;
  document["schema"] = kSelftestSchema;
  document["pass"] =
      problems.empty() && !rows.empty() &&
      std::all_of(rows.begin(), rows.end(), [](const SelftestRow& r) { return r.pass(); });
  document["problems"] = problems;
  document["warnings"] = Json::array();
  for (const RunWarning& warning : run.info.warnings) document["warnings"].push_back(warning.text);
  document["backend"] = run.info.backend;
  document["world_size"] = run.info.world_size;
  const auto cpus = cpus_of(run);
  document["cpus"] = cpus ? Json(*cpus) : Json(nullptr);
  document["ranks_fit_cpus"] = ranks_fit_cpus(run);
  document["devices"] = devices_of(run.info);
  document["seed"] = run.info.seed;
  document["versions"] = run.info.versions;
  document["git_revision"] = run.info.git_revision;
  document["rows"] = Json::array();
  for (const SelftestRow& row : rows) document["rows"].push_back(row.json());
  return document;
}

}  // namespace tpjitter
