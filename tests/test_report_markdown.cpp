// The report for a pull request comment: it fits one, whatever the run.
#include <gtest/gtest.h>

#include <sstream>

#include "reports/report.h"
#include "tests/run_directory.h"

namespace tpjitter {
namespace {

std::string markdown(const std::vector<std::filesystem::path>& runs) {
  std::ostringstream out;
  report(runs, "md", out);
  return out.str();
}

TEST(ReportMarkdown, FitsACommentWhateverTheRun) {
  GeneratorConfig config;
  config.world_size = 16;
  config.steps = 25;
  config.cases.assign(40, GeneratedCase{});
  for (std::size_t i = 0; i < config.cases.size(); ++i) {
    config.cases[i].name = "aten/bs" + std::to_string(i);
  }
  const RunDirectory directory(config);
  const std::string text = markdown({directory.path()});
  EXPECT_LE(text.size(), 60'000u);
  EXPECT_GT(text.size(), 40'000u);  // what fits is there
  EXPECT_NE(text.find("<details><summary>aten/bs0</summary>"), std::string::npos);
  EXPECT_NE(text.find(" of 40 cases are left out"), std::string::npos);
  EXPECT_NE(text.find("How it was measured"), std::string::npos);
  const auto count = [&](const std::string& word) {
    std::size_t n = 0;
    for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1))
      ++n;
    return n;
  };
  EXPECT_EQ(count("<details>"), count("</details>"));
  EXPECT_LE(markdown({directory.path(), directory.path()}).size(), 60'000u);
}

// Every list and table is long here: what has no room is counted, and each section is still there.
TEST(ReportMarkdown, FitsACommentWithLongListsToo) {
  GeneratorConfig config;
  config.world_size = 12;
  config.launches = 3;
  config.steps = 25;
  config.cases.assign(300, GeneratedCase{});
  for (std::size_t i = 0; i < config.cases.size(); ++i) {
    GeneratedCase& c = config.cases[i];
    c.path = i % 2 == 0 ? "aten" : "fused";
    c.name = "a_rather_long_name_of_a_case/" + c.path + "/bs" + std::to_string(i / 2);
    c.late_stage = LateStage::kDispatch;
    c.late_ns = 9'000;
  }
  GeneratedRun run = generate_run(config);
  for (int i = 0; i < 400; ++i) {
    RunCase skipped = run.info.cases[0];
    skipped.index = static_cast<int>(run.info.cases.size());
    skipped.name = "skipped/bs" + std::to_string(i);
    skipped.skip_reason = std::string(200, 'r');
    run.info.cases.push_back(skipped);
    run.info.warnings.push_back({"odd", std::string(200, '*'), std::nullopt});
  }
  for (std::size_t i = 0; i < 300; ++i) {
    run.info.cases[i].values["shape"]["batch_size"] = i / 2;
  }
  const RunDirectory directory(run);
  const std::string text = markdown({directory.path()});
  EXPECT_LE(text.size(), 60'000u);
  for (const char* part : {"Status: **", "What a path saves", "Controls", "How it was measured"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part;
  }
  std::size_t left_out = 0;
  for (std::size_t at = text.find(" more, left out"); at != std::string::npos;
       at = text.find(" more, left out", at + 1)) {
    ++left_out;
  }
  EXPECT_GE(left_out, 3u);  // warnings, comparison, savings
}

}  // namespace
}  // namespace tpjitter
