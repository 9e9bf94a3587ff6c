#include <gtest/gtest.h>

#include <sstream>

#include "reports/report.h"
#include "reports/text_table.h"
#include "tests/run_directory.h"

namespace tpjitter {
namespace {

std::string rendered(const std::filesystem::path& run, const std::string& format) {
  std::ostringstream out;
  report({run}, format, out);
  return out.str();
}

TEST(ReportTable, TheUnitFollowsTheLargestValue) {
  EXPECT_STREQ(choose_unit({40, std::nullopt}).name, "us");
  EXPECT_STREQ(choose_unit({99'999'999}).name, "us");
  EXPECT_STREQ(choose_unit({100'000'000}).name, "ms");
  EXPECT_STREQ(choose_unit({5, -200'000'000'000}).name, "s");
  EXPECT_STREQ(choose_unit({INT64_MIN}).name, "s");
  EXPECT_STREQ(choose_unit({}).name, "us");
}

TEST(ReportTable, NumbersHaveTwoDecimalsBelowAHundredAndOneAbove) {
  EXPECT_EQ(format_ns(2'104), "2.10 us");
  EXPECT_EQ(format_ns(99'994), "99.99 us");
  EXPECT_EQ(format_ns(99'995), "100.0 us");
  EXPECT_EQ(format_ns(1'234'567), "1234.6 us");
  EXPECT_EQ(format_ns(-1'500), "-1.50 us");
  EXPECT_EQ(format_ns(-4), "0.00 us");  // no minus before a zero
  EXPECT_EQ(format_ns(std::nullopt), "-");
  EXPECT_EQ(format_percent(-0.001), "0%");
  EXPECT_EQ(format_percent(0.125), "13%");
}

TEST(ReportTable, NamesLineUpLeftAndNumbersRight) {
  const std::string table =
      render_table({{"", {{"case", {"a", "b\u00e4r"}}}},
                    {"wait us", {{"p50", {"1.00", "10.00"}}, {"p99", {"-", "2"}}}}},
                   0);
  EXPECT_EQ(table,
            "         wait us\n"
            "case    p50  p99\n"
            "a      1.00    -\n"
            "b\u00e4r   10.00    2\n");
}

TEST(ReportTable, ANameTooLongForTheWidthStandsOnItsOwnLine) {
  const std::string name(140, 'x');
  const std::string table = render_table({{"", {{"case", {name}}}}, {"us", {{"p50", {"7"}}}}}, 0);
  EXPECT_NE(table.find(name + "\n"), std::string::npos);
  EXPECT_EQ(table.substr(table.rfind(' ') + 1), "7\n");
}

TEST(ReportTable, WrapBreaksAtSpacesAndKeepsWordsThatAreTooLong) {
  EXPECT_EQ(wrap("a b", 2, 4), "  a b\n");
  EXPECT_EQ(wrap("", 2, 4), "");
  const std::string word(60, 'w');
  EXPECT_EQ(wrap(word + " " + word, 0, 4), word + "\n    " + word + "\n");
  EXPECT_EQ(wrap(std::string(150, 'w'), 0, 4), std::string(150, 'w') + "\n");
}

TEST(ReportTable, ControlCharactersAreNotPrinted) {
  EXPECT_EQ(printable("a\x1b[1m\n\t\x7f"), "a?[1m???");
  EXPECT_EQ(display_width("b\u00e4r"), 3u);
}

TEST(TextTable, ALineNeverBreaksAtASpaceThatHoldsTogether) {
  const std::string text = wrap(std::string(95, 'x') + " rank" + kNoBreak + "3 late", 0, 2);
  EXPECT_EQ(text, std::string(95, 'x') + "\n  rank 3 late\n");
}

TEST(ReportSentences, InjectedDelaysAreSaidFirstAndTheAdviceIsToLeaveThemOut) {
  GeneratorConfig config;
  config.cases[0].late_stage = LateStage::kDispatch;
  config.cases[0].late_rank = 1;
  config.cases[0].late_ns = 500'000;
  GeneratedRun run = generate_run(config);
  run.info.cases[0].values["inject"] = Json{{"where", "before_dispatch"}, {"victim", 1}};
  for (PhaseRow& row : run.rows[1]) row.injected_ns = 500'000;
  const RunDirectory directory(run);
  const Json summary_case = directory.summary().document["cases"][0];
  const Json expected = {
      {"where", "before_dispatch"}, {"victim", 1}, {"delay_ns", 500'000}, {"replays", 38}};
  EXPECT_EQ(summary_case["injected"], expected);
  EXPECT_NE(summary_case["attribution"]["next_experiment"].dump().find("without injected delays"),
            std::string::npos);
  for (const char* format : {"text", "md"}) {
    std::string text = rendered(directory.path(), format);
    std::erase(text, '\\');
    for (std::size_t at; (at = text.find("\n  ")) != std::string::npos;) text.replace(at, 3, " ");
    const std::string sentence =
        "38 of 38 replays carry an injected delay of 500.0 us on rank 1 (inject.where "
        "before_dispatch); no rank is last more often";
    EXPECT_LT(text.find(sentence), text.find("complete")) << text;
    EXPECT_NE(text.find("injected: " + sentence), std::string::npos) << text;
  }
}

TEST(ReportSentences, ControlsAndLocalFloorsThatAreMissingHaveTheirReason) {
  GeneratorConfig config;
  config.launches = 2;
  config.cases[0].late_stage = LateStage::kDispatch;
  config.cases[0].late_rank = 1;
  config.cases[0].late_ns = 55'000;
  std::string text = rendered(RunDirectory(config).path(), "text");
  for (std::size_t at; (at = text.find("\n  ")) != std::string::npos;) text.replace(at, 3, " ");
  EXPECT_NE(text.find("- p99 needs 1000 samples, there are 120 (all controls)"), std::string::npos);
  EXPECT_NE(text.find("no local floor of rank 0:"), std::string::npos);
  EXPECT_EQ(text.find("rank 0 -"), std::string::npos);
}

}  // namespace
}  // namespace tpjitter
