#include "reports/verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "reports/summary_view.h"

namespace tpjitter {
namespace {

struct Measure {
  const char* key;
  const char* does;  // after "the ranks" or alone
};
// The first that every compared case has decides.
constexpr Measure kMeasures[] = {
    {"first_all_reduce_excess_wait_ns", "excess wait in the first all-reduce"},
    {"launch_skew_ns", "launch skew"},
    {"dispatch_ns", "dispatch"}};

// The largest of a case's measure over ranks; cases without are left out.
struct Ranked {
  std::size_t number;  // of the case
  std::int64_t p50;
};
std::vector<Ranked> ranked_cases(const Json& summary, const char* key) {
  std::vector<Ranked> out;
  std::size_t number = 0;
  for (const Json& c : summary["cases"]) {
    if (const auto p50 = metric_value(c["metrics"], key, "p50")) out.push_back({number, *p50});
    ++number;
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const Ranked& a, const Ranked& b) { return a.p50 < b.p50; });
  return out;
}

// "rank 1 lags in 100% of replays, and 98% of its lateness is dispatch"
std::string blame(const Json& c) {
  const Json* most = nullptr;
  for (const Json& rank : c["ranks"]) {
    const auto share = number_or_none(rank["laggard_share"]);
    if (share && *share > 0 &&
        (most == nullptr || *share > number_or_none((*most)["laggard_share"]).value_or(0))) {
      most = &rank;
    }
  }
  if (most == nullptr) return "";
  std::string out = fmt::format("rank {} is last in {} of its replays", plain((*most)["rank"]),
                                format_percent(number_or_none((*most)["laggard_share"])));
  const Json* stage = nullptr;
  for (const Json& s : c["attribution"]["stages"]) {
    const auto share = number_or_none(s["share"]);
    if (share && (stage == nullptr || *share > number_or_none((*stage)["share"]).value_or(0))) {
      stage = &s;
    }
  }
  if (stage != nullptr) {
    // Above 100 % other stages made up for it: a share that a sentence cannot explain.
    const auto share = number_or_none((*stage)["share"]);
    out += fmt::format(", and {} of the lateness lies in {}",
                       share > 1.005 ? "most" : format_percent(share), plain((*stage)["stage"]));
  }
  return out;
}

// Names of the cases in [begin, end), which have the same figure as it is printed.
std::string names_of(const Json& summary, std::span<const Ranked> tied) {
  std::string out;
  for (std::size_t i = 0; i < tied.size(); ++i) {
    out += i == 0 ? "" : i + 1 == tied.size() ? " and " : ", ";
    out += plain(summary["cases"][tied[i].number]["name"]);
  }
  return out;
}

// Cases that print the same figure are tied.
std::string compare(const Json& summary, std::span<const Ranked> ranked, const char* measure) {
  const std::string least = format_ns(ranked.front().p50), most = format_ns(ranked.back().p50);
  if (least == most) {
    return fmt::format(
        "The {} cases are tied: the {} is {} in each (p50 of the largest over ranks)",
        ranked.size(), measure, least);
  }
  const auto tied = [&](const std::string& figure) {
    return std::count_if(ranked.begin(), ranked.end(),
                         [&](const Ranked& r) { return format_ns(r.p50) == figure; });
  };
  const auto first = static_cast<std::size_t>(tied(least));
  const auto last = static_cast<std::size_t>(tied(most));
  return fmt::format(
      "Of {} cases, {} {} the least {}, {} (p50 of the largest over ranks), and {} the most, {}",
      ranked.size(), names_of(summary, ranked.first(first)), first > 1 ? "have" : "has", measure,
      least, names_of(summary, ranked.last(last)), most);
}

bool wrong_metadata(const Json& summary) {
  return std::any_of(summary["cases"].begin(), summary["cases"].end(), [](const Json& c) {
    return c["bit_equal"] == false || c["checksum_failures"].get<std::int64_t>() > 0;
  });
}

std::string certainty_of(const Json& summary, const std::vector<CaseDetail>& details,
                         const std::vector<Ranked>& ranked, const char* key) {
  std::vector<std::string> parts;
  if (wrong_metadata(summary)) parts.push_back("none, some steps read wrong metadata");
  if (summary["status"] != "complete") {
    parts.push_back("low, the record is incomplete" +
                    (summary["status_reason"].is_null() ? std::string()
                                                        : ": " + plain(summary["status_reason"])));
  }
  if (summary["backend"] == "host")
    parts.push_back("host times are real, waits are those of a modelled device");
  if (!ranked.empty() && !details.empty()) {
    const std::size_t m = metric_index(key);
    const MedianInterval& best = details[ranked.front().number].intervals[m];
    const MedianInterval& worst = details[ranked.back().number].intervals[m];
    const std::string source = interval_note(details);
    if (!best.low_ns || !worst.low_ns) {
      parts.push_back(interval_reason(best.low_ns ? worst : best));
    } else if (ranked.size() > 1) {
      parts.push_back(fmt::format("the two intervals {} ({})",
                                  *best.high_ns < *worst.low_ns
                                      ? "do not overlap"
                                      : "overlap, so their order is not certain",
                                  source));
    } else {
      parts.push_back(fmt::format("the median lies between {} and {} ({})", format_ns(best.low_ns),
                                  format_ns(best.high_ns), source));
    }
  }
  std::string out;
  for (const std::string& part : parts) out += (out.empty() ? "" : "; ") + part;
  return out;
}

}  // namespace

std::string interval_reason(const MedianInterval& interval) {
  if (interval.launches) {
    return fmt::format("no interval: one of 90% needs {} launches, there are {}",
                       kMinIntervalGroups, interval.groups);
  }
  return fmt::format(
      "no interval: one of 90% needs {0} launches, or {0} blocks of 20 replays in the one there "
      "is; "
      "it has {1}",
      kMinIntervalGroups, interval.groups);
}

std::string interval_note(const std::vector<CaseDetail>& details) {
  double least = 1;
  std::uint64_t fewest = UINT64_MAX, most = 0;
  bool launches = false;
  for (const CaseDetail& detail : details) {
    for (const MedianInterval& interval : detail.intervals) {
      if (!interval.low_ns) continue;
      least = std::min(least, interval.coverage);
      fewest = std::min(fewest, interval.groups);
      most = std::max(most, interval.groups);
      launches = interval.launches;
    }
  }
  if (most == 0) return "";
  const std::string groups =
      fewest == most ? fmt::format("{}", most) : fmt::format("{} to {}", fewest, most);
  const std::string percent = fmt::format("{}%", static_cast<int>(least * 100));
  if (launches) {
    return fmt::format("{} intervals of the median, from the medians of {} launches", percent,
                       groups);
  }
  return fmt::format(
      "{} intervals of the median, from the medians of {} blocks of steps in one launch; another "
      "launch may differ by more",
      percent, groups);
}

Verdict make_verdict(const Json& summary, const std::vector<CaseDetail>& details) {
  Verdict verdict;
  if (summary["rows"] == 0 || summary["cases"].empty()) {
    verdict.sentence =
        "Nothing was measured" + (summary["status_reason"].is_null()
                                      ? std::string(".")
                                      : ": " + plain(summary["status_reason"]) + ".");
    return verdict;
  }
  const Measure* measure = nullptr;
  std::vector<Ranked> ranked;
  for (const Measure& each : kMeasures) {
    ranked = ranked_cases(summary, each.key);
    if (ranked.empty()) continue;
    measure = &each;
    break;
  }
  if (measure == nullptr) {
    verdict.sentence = "Too few replays for a median: no figure of this run can be relied on.";
    verdict.certainty = certainty_of(summary, details, {}, "");
    return verdict;
  }
  const Json& worst = summary["cases"][ranked.back().number];
  const std::string blamed = blame(worst);
  if (ranked.size() == 1) {
    verdict.sentence = fmt::format("{}: the {} is {} (p50 of the largest over ranks)",
                                   plain(worst["name"]), measure->does, format_ns(ranked[0].p50));
    if (!blamed.empty()) verdict.sentence += "; " + blamed;
  } else {
    verdict.sentence = compare(summary, ranked, measure->does);
    if (!blamed.empty()) {
      const bool one = format_ns(ranked[ranked.size() - 2].p50) != format_ns(ranked.back().p50);
      verdict.sentence += (one ? "; there " : "; in " + plain(worst["name"]) + " ") + blamed;
    }
  }
  verdict.sentence += '.';
  verdict.certainty = certainty_of(summary, details, ranked, measure->key);
  verdict.next = plain(worst["attribution"]["next_experiment"]);
  return verdict;
}

}  // namespace tpjitter
