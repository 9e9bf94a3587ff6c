// The three formats from generated records: golden files, the schemas, and what must hold for any
// record. `test_report_formats --update-golden` rewrites the golden files.
#include <gtest/gtest.h>

#include <clocale>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "harness/contract/error.h"
#include "reports/metrics.h"
#include "reports/report.h"
#include "reports/text_table.h"
#include "tests/run_directory.h"

namespace tpjitter {

bool update_golden = false;  // set by main below

namespace {

const std::filesystem::path kSource = TPJITTER_SOURCE_DIR;

std::string read_file(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

std::string rendered(const std::filesystem::path& run, const std::string& format) {
  std::ostringstream out;
  report({run}, format, out);
  return out.str();
}

bool has_python_module(const std::string& module) {
  return std::system(("/usr/bin/python3 -c 'import " + module + "' 2>/dev/null").c_str()) == 0;
}

// Two ranks, two paths, a late stage each, noise.
GeneratorConfig two_paths() {
  GeneratorConfig config;
  config.seed = 42;
  config.launches = 2;
  config.steps = 520;
  config.block_steps = 260;
  config.noise_ns = 900;
  GeneratedCase aten;
  aten.name = "aten/bs8";
  aten.path = "aten";
  aten.dispatch_ns = 230'000;
  aten.late_stage = LateStage::kDispatch;
  aten.late_rank = 1;
  aten.late_ns = 55'000;
  GeneratedCase fused;
  fused.late_stage = LateStage::kCoupling;
  fused.late_rotates = true;
  fused.late_ns = 4'000;
  config.cases = {aten, fused};
  return config;
}

GeneratedRun speculative_on_gpus() {
  GeneratorConfig config;
  config.backend = "cuda";
  config.world_size = 4;
  config.noise_ns = 700;
  config.cases[0].name = "decode_swa/fused/bs8";
  config.cases[0].speculative = true;
  config.cases[0].late_stage = LateStage::kArrival;
  config.cases[0].late_rank = 2;
  config.cases[0].late_ns = 12'000;
  GeneratedCase nccl;
  nccl.name = "nccl/bs8";
  nccl.all_reduce = "nccl";
  config.cases.push_back(nccl);
  return generate_run(config);
}

GeneratedRun incomplete() {
  GeneratorConfig config;
  config.cases.push_back({.name = "aten/bs8", .path = "aten"});
  GeneratedRun run = generate_run(config);
  for (auto& rows : run.rows) rows.resize(55);
  run.rows[1].resize(52);
  run.info.status = "incomplete";
  run.info.status_reason = "rank 1 was killed by signal 9";
  run.info.ranks[1].status = "died";
  run.info.ranks[1].ended_at = "launch 0, case aten/bs8, step 12, stage dispatch";
  run.info.warnings.push_back(
      {"cgroup_quota", "the cgroup allows 2 CPUs for 2 ranks and a launcher", std::nullopt});
  RunCase skipped;
  skipped.index = 2;
  skipped.name = "fused_in_graph/bs8";
  skipped.path = "fused_in_graph";
  skipped.skip_reason = "not measured on this backend";
  run.info.cases.push_back(skipped);
  return run;
}

GeneratedRun markup() {
  GeneratorConfig config;
  config.cases[0].name = "a|b <script>alert(1)</script> `x` [l](u) & *y* \x1b[31m\n# h";
  GeneratedRun run = generate_run(config);
  run.info.scenario_name = "</details><b>";
  run.info.warnings.push_back({"odd|code", "line one\nline two </summary>", 1});
  return run;
}

struct Golden {
  const char* name;
  GeneratedRun run;
  bool json = false;  // large: two are enough
};

std::vector<Golden> golden_runs() {
  GeneratorConfig one_rank;
  one_rank.world_size = 1;
  GeneratorConfig one_sample;
  one_sample.steps = 2;
  return {{"two_paths", generate_run(two_paths()), true},
          {"speculative_on_gpus", speculative_on_gpus()},
          {"incomplete", incomplete()},
          {"markup", markup()},
          {"one_rank", generate_run(one_rank)},
          {"one_sample", generate_run(one_sample), true}};
}

void expect_golden(const std::filesystem::path& run, const std::string& name, bool json) {
  for (const Exporter& exporter : exporters()) {
    if (exporter.format == std::string("json") && !json) continue;
    const std::filesystem::path file =
        kSource / "tests/golden/reports" / (name + "." + exporter.format);
    const std::string text = rendered(run, exporter.format);
    if (update_golden) {
      std::filesystem::create_directories(file.parent_path());
      std::ofstream(file, std::ios::binary) << text;
    }
    EXPECT_EQ(text, read_file(file)) << file << "; if the change is meant, run "
                                     << "test_report_formats --update-golden and read the diff";
  }
}

TEST(ReportFormats, GoldenFilesAreReproduced) {
  for (const Golden& golden : golden_runs()) {
    expect_golden(RunDirectory(golden.run).path(), golden.name, golden.json);
  }
}

// Records of real runs, kept whole: what an earlier version measured stays readable.
TEST(ReportFormats, RecordsOfRealRunsAreReproduced) {
  const std::filesystem::path records = kSource / "tests/golden/records";
  // One rank on an H200, 2026-11-29: speculative steps, fused and fused_in_graph.
  expect_golden(records / "h200_x1_speculative", "h200_x1_speculative", true);
}

TEST(ReportFormats, SameRecordSameBytesWhereverItLiesAndWhateverTheLocale) {
  const GeneratedRun run = generate_run(two_paths());
  const RunDirectory here(run), there(run);
  for (const Exporter& exporter : exporters()) {
    const std::string first = rendered(here.path(), exporter.format);
    const char* changed = std::setlocale(LC_ALL, "de_DE.UTF-8");  // null where it is not installed
    EXPECT_EQ(rendered(there.path(), exporter.format), first)
        << exporter.format << " " << (changed == nullptr ? "" : changed);
    std::setlocale(LC_ALL, "C");
  }
}

TEST(ReportFormats, TextStaysWithinItsWidth) {
  for (const Golden& golden : golden_runs()) {
    const RunDirectory directory(golden.run);
    std::istringstream lines(rendered(directory.path(), "text"));
    for (std::string line; std::getline(lines, line);) {
      EXPECT_LE(display_width(line), kTextWidth) << golden.name << ": " << line;
      EXPECT_EQ(line.find_first_of("\x1b\r\t"), std::string::npos) << line;
    }
  }
}

TEST(ReportFormats, HostBackendSaysThatItsDeviceIsModelled) {
  const RunDirectory host{GeneratorConfig{}};
  EXPECT_NE(rendered(host.path(), "text").find("modelled device"), std::string::npos);
  EXPECT_NE(rendered(host.path(), "md").find("modelled device"), std::string::npos);
  const RunDirectory gpu(speculative_on_gpus());
  EXPECT_EQ(rendered(gpu.path(), "text").find("modelled"), std::string::npos);
}

TEST(ReportFormats, WarningsComeFirstInText) {
  const RunDirectory directory(incomplete());
  const std::string text = rendered(directory.path(), "text");
  EXPECT_EQ(text.find("warning [cgroup_quota]"), 0u);
  EXPECT_LT(text.find("status: incomplete, rank 1 was killed"),
            text.find("Which path costs least?"));
  EXPECT_NE(text.find("launch 0, case aten/bs8, step 12, stage dispatch"), std::string::npos);
}

TEST(ReportFormats, OverheadAndLoadAverageAreReadableLines) {
  GeneratedRun run = generate_run({});
  run.info.overhead = Json{{"ranks",
                            {{{"stamp_ns", 16.6}, {"row_ns", 81.0}, {"launch", 0}, {"rank", 0}},
                             {{"stamp_ns", 14.0}, {"row_ns", 88.4}, {"launch", 0}, {"rank", 1}}}}};
  run.info.environment = Json{{"cpus", 4}, {"load_average_1min", 1.26171875}};
  const RunDirectory directory(run);
  for (const char* format : {"text", "md"}) {
    std::string text = rendered(directory.path(), format);
    std::erase(text, '\\');  // Markdown escapes
    EXPECT_NE(text.find("own overhead: a host stamp 17 ns, a phase row 88 ns (largest over ranks)"),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("environment: cpus 4, load_average_1min 1.3\n"), std::string::npos);
  }
}

TEST(ReportFormats, AReasonThatEveryCaseSharesIsSaidOnce) {
  const auto count = [](const std::string& text, const std::string& word) {
    std::size_t n = 0;
    for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1))
      ++n;
    return n;
  };
  GeneratorConfig config;
  config.cases.push_back({.name = "aten/bs8", .path = "aten"});
  const RunDirectory same(config);
  for (const char* format : {"text", "md"}) {
    const std::string text = rendered(same.path(), format);
    EXPECT_EQ(count(text, "samples, there are"), 2u);  // the other: of the controls
    EXPECT_EQ(
        count(text, "in every case, p99 needs 1000 samples, there are 36 to 38 (all metrics)"), 1u);
    EXPECT_LT(text.find("in every case"), text.find("aten/bs8: which rank"));
  }
  // The second case stops early: each says its own, and the metrics only where some lack a figure.
  const RunDirectory different(incomplete());
  const std::string text = rendered(different.path(), "text");
  EXPECT_EQ(count(text, "in every case"), 0u);
  EXPECT_EQ(count(text, "p99 needs 1000 samples, there are 36 to 38 (all metrics)"), 1u);
  EXPECT_EQ(count(text, "p50 needs 20 samples, there are 10 to 11 (all metrics)"), 1u);
}

TEST(ReportFormats, NamesCannotBreakOutOfMarkdown) {
  const RunDirectory directory(markup());
  const std::string text = rendered(directory.path(), "md");
  EXPECT_EQ(text.find("<script>"), std::string::npos);
  EXPECT_EQ(text.find("</details><b>"), std::string::npos);
  EXPECT_EQ(text.find("\n# h"), std::string::npos);
  // Every row of a table has as many cells as its head.
  std::istringstream lines(text);
  std::ptrdiff_t expected = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line[0] != '|') {
      expected = 0;
      continue;
    }
    std::ptrdiff_t cells = 0;
    for (std::size_t i = 0; i < line.size(); ++i) {
      cells += line[i] == '|' && (i == 0 || line[i - 1] != '\\') ? 1 : 0;
    }
    if (expected == 0) expected = cells;
    EXPECT_EQ(cells, expected) << line;
  }
}

TEST(ReportFormats, JsonFollowsItsSchema) {
  if (!has_python_module("jsonschema")) GTEST_SKIP() << "python3-jsonschema is not installed";
  const RunDirectory scratch;
  const auto validate = [](const std::filesystem::path& schema, const std::filesystem::path& file) {
    const std::string script =
        "import json,sys,jsonschema;"
        "jsonschema.validate(json.load(open(sys.argv[2])),json.load(open(sys.argv[1])))";
    return std::system(
        ("/usr/bin/python3 -c \"" + script + "\" " + schema.string() + " " + file.string())
            .c_str());
  };
  for (const Golden& golden : golden_runs()) {
    const RunDirectory directory(golden.run);
    EXPECT_EQ(validate(kSource / "reports/run.schema.json", directory.path() / "run.json"), 0)
        << golden.name;
    std::ofstream(scratch.path() / "summary.json") << rendered(directory.path(), "json");
    EXPECT_EQ(validate(kSource / "reports/summary.schema.json", scratch.path() / "summary.json"), 0)
        << golden.name;
  }
}

TEST(ReportFormats, JsonIsStrictAndHasEveryMetricOfEveryCaseAndRank) {
  const RunDirectory directory{two_paths()};
  const Json summary = parse_strict_json(rendered(directory.path(), "json"), "summary");
  EXPECT_EQ(summary.begin().key(), "schema");
  for (const Json& c : summary["cases"]) {
    ASSERT_EQ(c["ranks"].size(), 2u);
    for (const Metric& metric : metrics()) {
      if (metric.case_level) {
        EXPECT_GT(c["metrics"][metric.key]["n"], 0) << metric.key;
      }
      for (const Json& rank : c["ranks"]) {
        EXPECT_GT(rank["metrics"][metric.key]["n"], 0) << metric.key;
      }
    }
  }
}

TEST(ReportFormats, EveryNullFigureHasItsReason) {
  for (const Golden& golden : golden_runs()) {
    const RunDirectory directory(golden.run);
    const Json cases = directory.summary().document["cases"];
    for (const Json& c : cases) {
      for (const auto& [key, metric] : c["metrics"].items()) {
        for (const char* statistic : {"p50", "p90", "p99", "p999", "min", "max", "mean"}) {
          EXPECT_EQ(metric[statistic].is_null(), metric["reasons"].contains(statistic))
              << golden.name << " " << key << " " << statistic;
        }
      }
    }
  }
}

TEST(ReportCommand, UnknownFormatsAndMissingRunsAreUsageErrors) {
  const RunDirectory directory{GeneratorConfig{}};
  std::ostringstream out;
  EXPECT_THROW(report({directory.path()}, "pdf", out), ConfigError);
  EXPECT_THROW(report({}, "text", out), ConfigError);
  EXPECT_THROW(report({directory.path(), directory.path() / "none"}, "text", out), RecordError);
  EXPECT_EQ(out.str(), "");
}

TEST(ReportCommand, SeveralRunsGiveTheWorstExitCodeAndOneDocument) {
  const RunDirectory good{GeneratorConfig{}}, bad(incomplete());
  std::ostringstream out;
  EXPECT_EQ(report({good.path()}, "json", out), kExitPass);
  out.str("");
  EXPECT_EQ(report({good.path(), bad.path()}, "json", out), kExitRunFailed);
  EXPECT_EQ(parse_strict_json(out.str(), "summaries").size(), 2u);
}

TEST(ReportCommand, ADirectoryOfRunsStandsForAllOfThem) {
  const RunDirectory parent;
  for (const char* name : {"b", "a"}) {
    std::filesystem::create_directory(parent.path() / name);
    GeneratedRun run = generate_run({});
    run.info.scenario_name = name;
    write_run(parent.path() / name, run);
  }
  std::ostringstream out;
  EXPECT_EQ(report({parent.path()}, "json", out), kExitPass);
  const Json documents = parse_strict_json(out.str(), "summaries");
  ASSERT_EQ(documents.size(), 2u);
  EXPECT_EQ(documents[0]["scenario"]["name"], "a");
}

TEST(RecordDocument, NamesEveryFieldAndKey) {
  const std::string text = read_file(kSource / "reports/RECORD.md");
  for (const NpyField& field : phase_row_fields()) {
    EXPECT_NE(text.find("| `" + std::string(field.name) + "` |"), std::string::npos) << field.name;
  }
  const Json keys = run_info_to_json({});
  for (const auto& [key, value] : keys.items()) {
    EXPECT_NE(text.find("`" + key), std::string::npos) << key;
  }
}

TEST(RecordDocument, TheRecordMadeByHandCanBeReported) {
  if (!has_python_module("numpy")) GTEST_SKIP() << "python3-numpy is not installed";
  const std::string text = read_file(kSource / "reports/RECORD.md");
  const std::size_t begin = text.rfind("```python\n") + 10;
  const RunDirectory directory;
  std::ofstream(directory.path() / "make.py")
      << text.substr(begin, text.find("```", begin) - begin);
  ASSERT_EQ(
      std::system(("cd " + directory.path().string() + " && /usr/bin/python3 make.py").c_str()), 0);
  const Summary summary = directory.summary();
  EXPECT_EQ(summary.exit_code, kExitPass) << summary.document["status_reason"];
  const Json& c = summary.document["cases"][0];
  EXPECT_EQ(c["metrics"]["dispatch_ns"]["p50"], 25'000);
  EXPECT_EQ(c["metrics"]["launch_skew_ns"]["p50"], 5'000);
  EXPECT_EQ(c["metrics"]["step_ns"]["p50"], 1'000'000);
  EXPECT_EQ(c["ranks"][1]["laggard_share"], 1.0);
  EXPECT_EQ(c["attribution"]["class"], "inconclusive");
}

}  // namespace
}  // namespace tpjitter

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]) == "--update-golden") tpjitter::update_golden = true;
  }
  return RUN_ALL_TESTS();
}
