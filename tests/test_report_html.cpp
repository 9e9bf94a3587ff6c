// The page without a browser: what stands in it, what may not, and its size. How it behaves in one
// is tested by test_html_browser.py.
#include <gtest/gtest.h>

#include <set>
#include <sstream>

#include "harness/contract/error.h"
#include "reports/html_sections.h"
#include "reports/html_writer.h"
#include "reports/report.h"
#include "reports/verdict.h"
#include "tests/run_directory.h"

namespace tpjitter {
namespace {

std::string page_of(const std::vector<std::filesystem::path>& runs) {
  std::ostringstream out;
  report(runs, "html", out);
  return out.str();
}

std::string between(const std::string& text, const std::string& begin, const std::string& end) {
  const std::size_t from = text.find(begin);
  if (from == std::string::npos) return "";
  const std::size_t start = from + begin.size();
  return text.substr(start, text.find(end, start) - start);
}

Json data_of(const std::string& page) {
  return parse_strict_json(
      between(page, "<script type=\"application/json\" id=\"data\">", "</script>"), "page data");
}

// A path whose ranks wait and one whose ranks do not.
GeneratorConfig two_paths() {
  GeneratorConfig config;
  config.steps = 240;
  config.block_steps = 40;
  config.noise_ns = 500;
  config.cases[0].name = "good";
  GeneratedCase bad;
  bad.name = "bad";
  bad.path = "aten";
  bad.late_stage = LateStage::kDispatch;
  bad.late_rank = 1;
  bad.late_ns = 50'000;
  config.cases.push_back(bad);
  return config;
}

TEST(ReportHtml, SectionsStandInOrderAndOpenWithTheirQuestion) {
  const RunDirectory directory(two_paths());
  const std::string page = page_of({directory.path()});
  std::size_t at = 0;
  std::set<std::string> keys;
  for (const HtmlSection& section : html_sections()) {
    EXPECT_TRUE(keys.insert(section.key).second);
    const std::size_t found = page.find("<section id=\"" + std::string(section.key) + "\"", at);
    ASSERT_NE(found, std::string::npos) << section.key;
    const std::string question(section.question);
    EXPECT_EQ(question.back(), '?');
    EXPECT_NE(page.find(">" + question + "<", found), std::string::npos);
    EXPECT_NE(page.find("href=\"#" + std::string(section.key) + "\""), std::string::npos);
    at = found;
  }
}

TEST(ReportHtml, TheVerdictNamesTheBestTheWorstTheRankAndTheStage) {
  const RunDirectory directory(two_paths());
  const std::string verdict = between(page_of({directory.path()}), "<p class=\"verdict\">", "</p>");
  EXPECT_NE(verdict.find("good has the least excess wait"), std::string::npos) << verdict;
  EXPECT_NE(verdict.find("bad the most"), std::string::npos);
  EXPECT_NE(verdict.find("rank 1 is last in 100% of its replays"), std::string::npos);
  EXPECT_NE(verdict.find("100% of the lateness lies in dispatch"), std::string::npos);
}

TEST(ReportHtml, TheVerdictNamesEveryCaseThatIsTied) {
  const auto sentence = [](const std::vector<std::int64_t>& late) {
    GeneratorConfig config = two_paths();
    config.noise_ns = 0;
    config.cases.clear();
    for (std::size_t i = 0; i < late.size(); ++i) {
      GeneratedCase& c = config.cases.emplace_back();
      c.name = "case" + std::to_string(i);
      c.late_stage = LateStage::kDispatch;
      c.late_ns = late[i];
    }
    return make_verdict(RunDirectory(config).summary().document, {}).sentence;
  };
  EXPECT_TRUE(sentence({9'000, 9'000}).starts_with("The 2 cases are tied: the excess wait"))
      << sentence({9'000, 9'000});
  EXPECT_NE(sentence({9'000, 40'000, 9'000}).find("case0 and case2 have the least"),
            std::string::npos)
      << sentence({9'000, 40'000, 9'000});
  // 40.000 and 40.002 us are printed as the same.
  const std::string most = sentence({40'002, 9'000, 40'000});
  EXPECT_NE(most.find("case1 has the least"), std::string::npos) << most;
  EXPECT_NE(most.find("case2 and case0 the most"), std::string::npos) << most;
  EXPECT_NE(most.find("in case0 rank 0 is last in 100%"), std::string::npos) << most;
}

TEST(ReportHtml, TooFewGroupsGiveNoIntervalButTheReason) {
  GeneratorConfig config = two_paths();
  config.launches = 2;
  const RunDirectory directory(config);
  const std::string page = page_of({directory.path()});
  const std::string reason = "no interval: one of 90% needs 5 launches, there are 2";
  EXPECT_NE(between(page, "<p>How sure: ", "</p>").find(reason), std::string::npos);
  EXPECT_NE(between(page, "<section id=\"paths\"", "</section>").find(reason), std::string::npos);
}

TEST(ReportHtml, CertaintySaysWhatTheRecordAllows) {
  const auto certainty = [](const GeneratedRun& run) {
    return between(page_of({RunDirectory(run).path()}), "<p>How sure: ", "</p>");
  };
  EXPECT_NE(certainty(generate_run(two_paths())).find("the two intervals do not overlap"),
            std::string::npos);
  EXPECT_NE(certainty(generate_run(two_paths())).find("blocks of steps"), std::string::npos);
  GeneratorConfig launches = two_paths();
  launches.launches = 6;
  EXPECT_NE(certainty(generate_run(launches)).find("medians of 6 launches"), std::string::npos);
  GeneratedRun wrong = generate_run(two_paths());
  wrong.info.cases[1].bit_equal = false;
  EXPECT_NE(certainty(wrong).find("none, some steps read wrong metadata"), std::string::npos);
  GeneratorConfig same = two_paths();
  same.cases[1] = same.cases[0];
  same.cases[1].name = "same";
  EXPECT_NE(certainty(generate_run(same)).find("overlap, so their order is not certain"),
            std::string::npos);
}

TEST(ReportHtml, NothingIsAskedForAndNamesStayText) {
  GeneratedRun run = generate_run(two_paths());
  const std::string evil = "</script></title><img src=\"http://x/\" onerror='a'><!--";
  run.info.scenario_name = run.info.cases[0].name = run.info.git_revision = evil;
  run.info.command = {evil};
  run.info.environment = Json{{evil, evil}};
  run.info.warnings.push_back({evil, evil, 0});
  run.info.ranks[0].device = evil;
  const RunDirectory directory(run);
  const std::string page = page_of({directory.path()});
  EXPECT_EQ(page.find("<img"), std::string::npos);
  EXPECT_EQ(page.find("<!--"), std::string::npos);
  EXPECT_NE(page.find("default-src 'none'"), std::string::npos);
  for (const char* link : {" src=", "@import", "url("}) {
    const std::string main = between(page, "<main>", "</main>");
    EXPECT_EQ(main.find("<script" + std::string(link)), std::string::npos);
    EXPECT_EQ(between(page, "<style>", "</style>").find(link), std::string::npos) << link;
  }
  EXPECT_EQ(data_of(page)["runs"][0]["cases"][0]["name"], evil);
}

TEST(ReportHtml, CurvesAreExactPointsOfTheDistribution) {
  const RunDirectory directory(two_paths());
  const Json c = data_of(page_of({directory.path()}))["runs"][0]["cases"][1];
  for (const auto& [metric, curves] : c["curves"].items()) {
    for (const Json& rank : curves["ranks"]) {
      ASSERT_LE(rank["points"].size(), kMaxCumulativePoints);
      if (rank["n"] == 0) continue;
      EXPECT_EQ(rank["points"].back()[0], rank["max"]) << metric;
      EXPECT_EQ(rank["points"].back()[1], rank["n"]);
    }
  }
  // Nobody's dispatch takes less than its 20 us, and the late rank's 50 us come on top.
  EXPECT_GE(c["curves"]["dispatch_ns"]["ranks"][0]["points"][0][0], 20'000);
  EXPECT_GE(c["curves"]["dispatch_ns"]["ranks"][1]["points"][0][0], 70'000);
}

TEST(ReportHtml, LargeRunsStaySmallPages) {
  GeneratorConfig wide;
  wide.world_size = 72;
  wide.steps = 60;
  wide.cases.resize(6, wide.cases[0]);
  for (std::size_t i = 0; i < wide.cases.size(); ++i) {
    wide.cases[i].name = "case" + std::to_string(i);
    wide.cases[i].speculative = true;
  }
  EXPECT_LT(page_of({RunDirectory(wide).path()}).size(), 5'000'000u);
  GeneratorConfig many;
  many.steps = 12;
  many.cases.resize(100, many.cases[0]);
  for (std::size_t i = 0; i < many.cases.size(); ++i) {
    many.cases[i].name = "case" + std::to_string(i);
  }
  EXPECT_LT(page_of({RunDirectory(many).path()}).size(), 5'000'000u);
}

TEST(ReportHtml, APageIsMadeOfWhateverIsThere) {
  GeneratedRun empty = generate_run(two_paths());
  for (auto& rows : empty.rows) rows.clear();
  const RunDirectory nothing(empty), damaged(two_paths());
  std::ostringstream out;
  EXPECT_EQ(report({nothing.path()}, "html", out), kExitNothingMeasured);
  EXPECT_NE(out.str().find("Nothing was measured"), std::string::npos);
  std::filesystem::resize_file(damaged.path() / "rank1.phases.npy", 20'000);
  out.str("");
  EXPECT_EQ(report({damaged.path()}, "html", out), kExitRunFailed);
  EXPECT_NE(out.str().find("rank1.phases.npy is cut off"), std::string::npos);
  EXPECT_NE(out.str().find("low, the record is incomplete"), std::string::npos);
}

TEST(MedianInterval, HoldsTheMedianAsOftenAsItSays) {
  // From four the extremes hold it with 7/8: too little to print.
  EXPECT_FALSE(median_interval({9, 4, 1, 2}, true).low_ns);
  const MedianInterval five = median_interval({9, 4, 6, 5, 8}, true);
  EXPECT_EQ(five.low_ns, 4);
  EXPECT_EQ(five.high_ns, 9);
  EXPECT_DOUBLE_EQ(five.coverage, 1 - 2.0 / 32);
  // Ten launches: the second to the ninth cover 1 - 2 (1 + 10) / 1024.
  const MedianInterval ten = median_interval({1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, true);
  EXPECT_EQ(ten.low_ns, 2);
  EXPECT_EQ(ten.high_ns, 9);
  EXPECT_DOUBLE_EQ(ten.coverage, 1 - 22.0 / 1024);
  for (int n = 5; n < 400; ++n) {
    std::vector<std::int64_t> values;
    for (int i = 0; i < n; ++i) values.push_back(i);
    const MedianInterval interval = median_interval(values, false);
    EXPECT_TRUE(n < 6 || interval.coverage >= 0.95) << n;
    EXPECT_LE(*interval.low_ns, (n - 1) / 2);
    EXPECT_GE(*interval.high_ns, n / 2);
  }
}

TEST(CumulativePoints, AreAtMostTwoHundredAndEndAtTheLargest) {
  std::vector<std::int64_t> values = {kAbsent, -5, 0, 1, 1, 7};
  const auto points_of = [](const std::vector<std::int64_t>& column) {
    ValueCounts counts;
    counts.add_column(column);
    return counts.cumulative_points();
  };
  const auto points = points_of(values);
  EXPECT_EQ(points.front().value_ns, 0);
  EXPECT_EQ(points.front().count, 2u);
  EXPECT_EQ(points.back().value_ns, 7);
  EXPECT_EQ(points.back().count, 5u);
  values.clear();
  for (std::int64_t v = 1; v < INT64_MAX / 3; v = v * 2 + 1) {
    for (int i = 0; i < 16; ++i) values.push_back(v + v / 16 * i);
  }
  values.push_back(INT64_MAX);
  const auto many = points_of(values);
  EXPECT_LE(many.size(), kMaxCumulativePoints);
  EXPECT_EQ(many.back().value_ns, INT64_MAX);
  for (const CumulativePoint& p : many) {
    const auto below = std::count_if(values.begin(), values.end(),
                                     [&](std::int64_t v) { return v <= p.value_ns; });
    EXPECT_EQ(static_cast<std::uint64_t>(below), p.count);
  }
}

TEST(CspHash, IsTheBase64OfTheDigest) {
  EXPECT_EQ(csp_hash("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
            "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='");
}

}  // namespace
}  // namespace tpjitter
