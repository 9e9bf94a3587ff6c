// The CSV tables against the summary and against truth that the generator put in.
#include <gtest/gtest.h>

#include <map>
#include <sstream>

#include "reports/metrics.h"
#include "reports/report.h"
#include "tests/run_directory.h"

namespace tpjitter {
namespace {

using Line = std::vector<std::string>;

// RFC 4180: quotes around fields that need them, doubled inside.
std::vector<Line> parse_csv(const std::string& text) {
  std::vector<Line> lines(1, Line(1));
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c != '"') {
        lines.back().back() += c;
      } else if (i + 1 < text.size() && text[i + 1] == '"') {
        lines.back().back() += text[++i];
      } else {
        quoted = false;
      }
    } else if (c == '"') {
      quoted = true;
    } else if (c == ',') {
      lines.back().emplace_back();
    } else if (c == '\n') {
      lines.push_back(Line(1));
    } else {
      lines.back().back() += c;
    }
  }
  lines.pop_back();  // after the last line's end
  return lines;
}

struct Table {
  std::map<std::string, std::size_t> column;
  std::vector<Line> rows;
  const std::string& at(const Line& row, const std::string& name) const {
    return row[column.at(name)];
  }
};

Table csv_of(const std::filesystem::path& run, const ReportOptions& options = {}) {
  std::ostringstream out;
  report({run}, "csv", out, options);
  Table table;
  table.rows = parse_csv(out.str());
  for (std::size_t i = 0; i < table.rows[0].size(); ++i) table.column[table.rows[0][i]] = i;
  table.rows.erase(table.rows.begin());
  for (const Line& row : table.rows) EXPECT_EQ(row.size(), table.column.size());
  return table;
}

std::string as_field(const Json& value) { return value.is_null() ? "" : value.dump(); }

GeneratorConfig late_dispatch() {
  GeneratorConfig config;
  config.steps = 60;
  config.cases[0].late_stage = LateStage::kDispatch;
  config.cases[0].late_rank = 1;
  config.cases[0].late_ns = 30'000;
  return config;
}

TEST(ReportCsv, RunsOfTheSameNameAreToldApart) {
  const RunDirectory a(late_dispatch()), b(late_dispatch());
  for (const bool replays : {false, true}) {
    ReportOptions options;
    options.replays = replays;
    std::ostringstream out;
    report({a.path(), b.path()}, "csv", out, options);
    std::map<std::string, std::size_t> lines;
    for (const Line& line : parse_csv(out.str())) ++lines[line[0]];
    EXPECT_EQ(lines.size(), 3u);  // with the heads
    EXPECT_GT(lines["generated (1)"], 10u);
    EXPECT_EQ(lines["generated (1)"], lines["generated (2)"]);
  }
}

TEST(ReportCsv, HasTheFiguresOfTheSummary) {
  GeneratorConfig config = late_dispatch();
  config.noise_ns = 800;
  const RunDirectory directory(config);
  const Json summary = directory.summary().document;
  const Table table = csv_of(directory.path());
  std::size_t compared = 0;
  for (const Line& row : table.rows) {
    const Json& c = summary["cases"][0];
    const std::string rank = table.at(row, "rank"), phase = table.at(row, "phase");
    const std::string metric = table.at(row, "metric");
    if (metric == "laggard_share") {
      EXPECT_EQ(table.at(row, "mean"), as_field(c["ranks"][std::stoul(rank)]["laggard_share"]));
      continue;
    }
    const Json& from = !rank.empty()    ? c["ranks"][std::stoul(rank)]["metrics"][metric]
                       : !phase.empty() ? c["phases"][phase][metric]
                                        : c["metrics"][metric];
    for (const char* key : {"n", "p50", "p90", "p99", "p999", "min", "max", "mean", "negative"}) {
      EXPECT_EQ(table.at(row, key), as_field(from[key])) << metric << " " << key;
      ++compared;
    }
    EXPECT_EQ(table.at(row, "unit"), "ns");
  }
  // Two ranks with every metric; the case and its one phase with those over ranks.
  EXPECT_EQ(compared, 9 * (2 * kNumMetrics + 2 * (kNumMetrics - 1)));
}

TEST(ReportCsv, EveryMissingFigureHasAReason) {
  GeneratorConfig config;
  config.steps = 2;
  const RunDirectory directory(config);
  const Table table = csv_of(directory.path());
  for (const Line& row : table.rows) {
    if (table.at(row, "p50").empty() && table.at(row, "metric") != "laggard_share") {
      EXPECT_NE(table.at(row, "reason"), "") << table.at(row, "metric");
    }
  }
}

TEST(ReportCsv, NamesWithSeparatorsAndQuotesSurvive) {
  GeneratorConfig config;
  config.cases[0].name = "a,\"b\"\nc";
  const RunDirectory directory(config);
  const Table table = csv_of(directory.path());
  for (const Line& row : table.rows) EXPECT_EQ(table.at(row, "case"), "a,\"b\"?c");
}

TEST(ReportCsv, ReplaysGiveTheInjectedTruthLineByLine) {
  const RunDirectory directory(late_dispatch());
  ReportOptions options;
  options.replays = true;
  const Table table = csv_of(directory.path(), options);
  // 60 steps in blocks of 20: the first of each block is out of the statistics.
  EXPECT_EQ(table.rows.size(), 2u * 57u);
  for (const Line& row : table.rows) {
    const bool late = table.at(row, "rank") == "1";
    EXPECT_EQ(table.at(row, "dispatch_ns"), late ? "50000" : "20000");
    EXPECT_EQ(table.at(row, "launch_skew_ns"), "30000");
    EXPECT_EQ(table.at(row, "launch_offset_ns"), late ? "30000" : "0");
    EXPECT_EQ(table.at(row, "first_all_reduce_excess_wait_ns"), late ? "0" : "30000");
  }
}

TEST(ReportCsv, ReplaysOfChosenCasesOnly) {
  GeneratorConfig config;
  config.cases.push_back({.name = "aten/bs8", .path = "aten"});
  const RunDirectory directory(config);
  ReportOptions options;
  options.replays = true;
  options.case_glob = "aten/*";
  const Table table = csv_of(directory.path(), options);
  EXPECT_FALSE(table.rows.empty());
  for (const Line& row : table.rows) EXPECT_EQ(table.at(row, "case"), "aten/bs8");
}

}  // namespace
}  // namespace tpjitter
