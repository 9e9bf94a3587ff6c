// Why figures of a report are null. What is the same in every case is said once: sample counts that
// differ by a few (step_ns has fewer than the others) do not make it another reason.
#include <fmt/format.h>

#include <algorithm>

#include "reports/summary_view.h"

namespace tpjitter {
namespace {

// One reason and the metrics of a case that it is true of.
struct Reason {
  std::string text;                    // without the number of samples, if it ends in that
  std::uint64_t fewest = 0, most = 0;  // samples; 0: it names none
  std::vector<std::string> metrics;
  std::size_t of_metrics = 0;  // that the case has

  bool same(const Reason& other) const {
    return text == other.text && metrics == other.metrics && (most == 0) == (other.most == 0);
  }
};

void add_metric(const std::string& key, const Json& metric, const std::string& reason,
                std::vector<Reason>* out) {
  Reason one{.text = reason, .metrics = {key}};
  const auto n = metric["n"].get<std::uint64_t>();
  const std::string number = fmt::format(" {}", n);
  if (n > 0 && reason.ends_with(number)) {
    one.text.resize(reason.size() - number.size());
    one.fewest = one.most = n;
  }
  const auto found = std::find_if(out->begin(), out->end(), [&](const Reason& r) {
    return r.text == one.text && (r.most == 0) == (one.most == 0);
  });
  if (found == out->end()) {
    out->push_back(std::move(one));
    return;
  }
  found->fewest = std::min(found->fewest, one.fewest);
  found->most = std::max(found->most, one.most);
  found->metrics.push_back(key);
}

std::vector<Reason> reasons_of(const Json& summary_case) {
  std::vector<Reason> reasons;
  for (const auto& [key, metric] : summary_case["metrics"].items()) {
    for (const char* statistic : {"p50", "p99"}) {
      if (!metric["reasons"].contains(statistic)) continue;
      add_metric(key, metric, metric["reasons"][statistic].get<std::string>(), &reasons);
      break;  // without a p50 there is no p99 either
    }
  }
  for (Reason& reason : reasons) reason.of_metrics = summary_case["metrics"].size();
  return reasons;
}

// Reasons that every case has for the same metrics; sample counts are those of all cases.
std::vector<Reason> common_reasons(const Json& summary) {
  std::vector<Reason> common;
  bool first = true;
  for (const Json& c : summary["cases"]) {
    const std::vector<Reason> own = reasons_of(c);
    if (first) common = own;
    first = false;
    std::erase_if(common, [&](Reason& reason) {
      const auto found =
          std::find_if(own.begin(), own.end(), [&](auto& o) { return o.same(reason); });
      if (found == own.end()) return true;
      reason.fewest = std::min(reason.fewest, found->fewest);
      reason.most = std::max(reason.most, found->most);
      return false;
    });
  }
  return common;
}

std::string line_of(const Reason& reason) {
  std::string line = reason.text;
  if (reason.most > 0) line += fmt::format(" {}", reason.fewest);
  if (reason.most > reason.fewest) line += fmt::format(" to {}", reason.most);
  if (reason.metrics.size() == reason.of_metrics) return line + " (all metrics)";
  return fmt::format("{} ({})", line, fmt::join(reason.metrics, ", "));
}

}  // namespace

std::vector<std::string> common_reason_lines(const Json& summary) {
  std::vector<std::string> lines;
  const char* where = summary["cases"].size() > 1 ? "in every case, " : "";
  for (const Reason& reason : common_reasons(summary)) lines.push_back(where + line_of(reason));
  return lines;
}

std::vector<std::string> control_reason_lines(const Json& summary) {
  const Json& controls = summary["controls"];
  std::vector<Reason> reasons;
  std::size_t rows = 0;
  const auto add = [&](const std::string& name, const Json& samples) {
    ++rows;
    for (const char* statistic : {"p50", "p90", "p99"}) {
      if (!samples["reasons"].contains(statistic)) continue;
      add_metric(name, samples, samples["reasons"][statistic].get<std::string>(), &reasons);
      break;
    }
  };
  add("empty graph launch", controls["empty_graph_launch_ns"]);
  for (const Json& kind : controls["by_all_reduce"]) {
    const std::string suffix =
        fmt::format(" {} {} B", plain(kind["all_reduce"]), plain(kind["all_reduce_bytes"]));
    add("zero-skew all-reduce" + suffix, kind["zero_skew_all_reduce_ns"]);
    add("zero-skew wait" + suffix, kind["zero_skew_wait_ns"]);
  }
  std::vector<std::string> lines;
  for (Reason& reason : reasons) {
    const bool all = reason.metrics.size() == rows;
    if (all) reason.metrics = {"all controls"};
    lines.push_back(line_of(reason));
  }
  return lines;
}

namespace {

// Durations below 0 that the maximum over ranks hides: two stamps of different clocks, or damage.
// An excess wait is below 0 as often as a wait is below its floor.
void append_hidden_negatives(const Json& summary_case, std::vector<std::string>* lines) {
  for (const Json& rank : summary_case["ranks"]) {
    for (const auto& [key, metric] : rank["metrics"].items()) {
      const Json& of_case = summary_case["metrics"];
      const auto negative = metric["negative"].get<std::uint64_t>();
      if (negative == 0 || key == "first_all_reduce_excess_wait_ns") continue;
      if (of_case.contains(key) && of_case[key]["negative"] != 0) continue;  // said
      lines->push_back(fmt::format(
          "rank {}: {} of {} values of {} are negative, though no maximum over ranks is; they are "
          "kept as they are",
          plain(rank["rank"]), negative, plain(metric["n"]), key));
    }
  }
}

}  // namespace

std::vector<std::string> reason_lines(const Json& summary, const Json& summary_case) {
  const std::vector<Reason> common = common_reasons(summary);
  std::vector<std::string> lines;
  for (const Reason& reason : reasons_of(summary_case)) {
    const bool said =
        std::any_of(common.begin(), common.end(), [&](auto& c) { return c.same(reason); });
    if (!said) lines.push_back(line_of(reason));
  }
  for (const auto& [key, metric] : summary_case["metrics"].items()) {
    const auto negative = metric["negative"].get<std::uint64_t>();
    if (negative > 0) {
      lines.push_back(fmt::format("{} of {} values of {} are negative; they are kept as they are",
                                  negative, plain(metric["n"]), key));
    }
  }
  append_hidden_negatives(summary_case, &lines);
  return lines;
}

}  // namespace tpjitter
