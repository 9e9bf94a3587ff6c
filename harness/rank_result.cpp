#include "harness/rank_result.h"

namespace tpjitter {

void RankCaseResult::add(const CaseChecks& more) {
  checks.bit_equal = checks.bit_equal && more.bit_equal;
  checks.steps_checked += more.steps_checked;
  checks.checksum_failures += more.checksum_failures;
  if (checks.first_failure.empty()) checks.first_failure = more.first_failure;
}

std::string RankResult::to_text() const {
  Json document = {
      {"clock_pairs", clock_pairs}, {"clock_points", clock_points}, {"overhead", overhead}};
  document["noise"] = noise;
  document["cases"] = Json::array();
  for (const auto& [index, c] : cases) {
    document["cases"].push_back({{"index", index},
                                 {"bit_equal", c.checks.bit_equal},
                                 {"steps_checked", c.checks.steps_checked},
                                 {"checksum_failures", c.checks.checksum_failures},
                                 {"operations", c.operations}});
  }
  document["controls"] = Json::array();
  for (const RunControl& c : controls) {
    document["controls"].push_back({{"launch", c.launch},
                                    {"rank", c.rank},
                                    {"when", c.when},
                                    {"all_reduce", c.all_reduce},
                                    {"all_reduce_bytes", c.all_reduce_bytes},
                                    {"empty_graph_launch_ns", c.empty_graph_launch_ns},
                                    {"zero_skew_all_reduce_ns", c.zero_skew_all_reduce_ns},
                                    {"zero_skew_wait_ns", c.zero_skew_wait_ns}});
  }
  return document.dump();
}

RankResult RankResult::from_text(std::string_view text) {
  const Json document = Json::parse(text);
  RankResult result;
  result.clock_pairs = document.at("clock_pairs");
  result.clock_points = document.at("clock_points");
  result.overhead = document.at("overhead");
  result.noise = document.at("noise");
  for (const Json& c : document.at("cases")) {
    RankCaseResult& out = result.cases[c.at("index").get<int>()];
    out.checks.bit_equal = c.at("bit_equal");
    out.checks.steps_checked = c.at("steps_checked");
    out.checks.checksum_failures = c.at("checksum_failures");
    out.operations = c.at("operations");
  }
  for (const Json& c : document.at("controls")) {
    RunControl& out = result.controls.emplace_back();
    out.launch = c.at("launch");
    out.rank = c.at("rank");
    out.when = c.at("when");
    out.all_reduce = c.at("all_reduce");
    out.all_reduce_bytes = c.at("all_reduce_bytes");
    c.at("empty_graph_launch_ns").get_to(out.empty_graph_launch_ns);
    c.at("zero_skew_all_reduce_ns").get_to(out.zero_skew_all_reduce_ns);
    c.at("zero_skew_wait_ns").get_to(out.zero_skew_wait_ns);
  }
  return result;
}

}  // namespace tpjitter
