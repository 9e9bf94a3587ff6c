#include "reports/path_savings.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/math/distributions/students_t.hpp>
#include <cmath>

namespace tpjitter {
namespace {

constexpr double kConfidence = 0.95;  // two-sided

double mean_of(std::span<const double> values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

// With n - 1.
double covariance(std::span<const double> a, std::span<const double> b) {
  const double mean_a = mean_of(a), mean_b = mean_of(b);
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - mean_a) * (b[i] - mean_b);
  return sum / static_cast<double>(a.size() - 1);
}

Json keys_but_path(const RunCase& c) {
  Json values = c.values;
  if (values.is_object() && values.contains("step") && values["step"].is_object()) {
    values["step"].erase("path");
  }
  return values;
}

// `keys`: of each case, without the path.
const CaseLateness* base_of(std::size_t contender, const std::vector<CaseLateness>& cases,
                            const std::vector<Json>& keys) {
  const CaseLateness* first = nullptr;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    if (keys[i] != keys[contender]) continue;
    if (cases[i].run_case->path == "aten") return &cases[i];
    if (first == nullptr) first = &cases[i];
  }
  return first;
}

struct Pairs {
  std::vector<double> base, contender;  // mean ns a replay, [launch that has both]
};

Pairs pair_launches(const CaseLateness& base, const CaseLateness& contender, std::size_t stage) {
  Pairs pairs;
  for (const LaunchLateness& b : base.launches) {
    const auto c = std::find_if(contender.launches.begin(), contender.launches.end(),
                                [&](const LaunchLateness& l) { return l.launch == b.launch; });
    if (c == contender.launches.end()) continue;
    pairs.base.push_back(b.sum_ns[stage] / static_cast<double>(b.replays));
    pairs.contender.push_back(c->sum_ns[stage] / static_cast<double>(c->replays));
  }
  return pairs;
}

Json stage_json(const Pairs& pairs, std::size_t stage) {
  const auto ratio = paired_ratio(pairs.base, pairs.contender);
  const auto nullable = [](const std::optional<double>& value) {
    return value ? Json(*value) : Json(nullptr);
  };
  const std::string reason = !ratio ? "the base case has no lateness in this stage" : ratio->reason;
  return Json{{"stage", stage_name(stage)},
              {"base_mean_ns", mean_of(pairs.base)},
              {"mean_ns", mean_of(pairs.contender)},
              {"ratio", ratio ? Json(ratio->ratio) : Json(nullptr)},
              {"ratio_low", ratio ? nullable(ratio->low) : Json(nullptr)},
              {"ratio_high", ratio ? nullable(ratio->high) : Json(nullptr)},
              {"reason", reason.empty() ? Json(nullptr) : Json(reason)}};
}

}  // namespace

std::optional<PairedRatio> paired_ratio(std::span<const double> base,
                                        std::span<const double> contender) {
  const std::size_t n = std::min(base.size(), contender.size());
  if (n == 0) return std::nullopt;
  base = base.first(n);
  contender = contender.first(n);
  const double below = mean_of(base), above = mean_of(contender);
  if (!(below > 0) || !std::isfinite(below) || !std::isfinite(above)) return std::nullopt;
  PairedRatio out{.ratio = above / below, .low = {}, .high = {}, .reason = {}};
  if (n < kMinSavingsLaunches) {
    out.reason = fmt::format("{} launch{} with both cases; an interval needs {}", n,
                             n == 1 ? "" : "es", kMinSavingsLaunches);
    return out;
  }
  // All r with |above - r below| <= t s(r) / sqrt(n), where s(r) is the spread of
  // contender - r base: a quadratic in r.
  const boost::math::students_t t(static_cast<double>(n - 1));
  const double quantile = boost::math::quantile(t, 0.5 + kConfidence / 2);
  const double scale = quantile * quantile / static_cast<double>(n);
  const double a = below * below - scale * covariance(base, base);
  const double half_b = above * below - scale * covariance(base, contender);
  const double c = above * above - scale * covariance(contender, contender);
  if (a <= 0) {
    out.reason = "the base case's own lateness is not above 0 with 95 % certainty";
    return out;
  }
  const double root = std::sqrt(std::max(0.0, half_b * half_b - a * c));
  out.low = (half_b - root) / a;
  out.high = (half_b + root) / a;
  return out;
}

Json path_savings_json(const std::vector<CaseLateness>& cases) {
  std::vector<std::pair<const CaseLateness*, const CaseLateness*>> pairs;  // base, contender
  std::vector<Json> keys;
  for (const CaseLateness& c : cases) keys.push_back(keys_but_path(*c.run_case));
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const CaseLateness* base = base_of(i, cases, keys);
    if (base != nullptr && base != &cases[i]) pairs.emplace_back(base, &cases[i]);
  }
  std::sort(pairs.begin(), pairs.end());  // by base, each in the order of the cases
  Json out = Json::array();
  for (const auto& [base, contender] : pairs) {
    Json stages = Json::array();
    std::size_t launches = 0;
    for (std::size_t stage = 0; stage < kStageLaunchToArrival; ++stage) {
      const Pairs both = pair_launches(*base, *contender, stage);
      launches = both.base.size();
      if (launches > 0) stages.push_back(stage_json(both, stage));
    }
    if (launches == 0) continue;
    out.push_back({{"case", contender->run_case->name},
                   {"base", base->run_case->name},
                   {"launches", launches},
                   {"stages", std::move(stages)}});
  }
  return out;
}

}  // namespace tpjitter
