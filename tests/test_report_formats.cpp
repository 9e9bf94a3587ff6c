// Every format from generated records: golden files, the schemas, and what must hold for any record. `test_report_formats --update-golden` rewrites the golden files.
#include <gtest/gtest.h>

#include <algorithm>
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
  bool large = false;          // JSON and trace too: a few are enough
  int removed_rank_file = -1;  // deleted after the record is written
};

GeneratedRun many_ranks() {
  GeneratorConfig config;
  config.world_size = 72;
  config.steps = 30;
  config.noise_ns = 500;
  config.cases[0].late_stage = LateStage::kDispatch;
  config.cases[0].late_rank = 71;
  config.cases[0].late_ns = 9'000;
  return generate_run(config);
}

// From a nanosecond to half an hour.
GeneratedRun extreme_values() {
  GeneratorConfig config;
  config.steps = 42;
  config.block_steps = 21;
  config.inputs_ns = 1;
  config.graph_launch_ns = 1;
  config.cases[0].name = "tiny";
  config.cases[0].dispatch_ns = 1;
  GeneratedCase huge;
  huge.name = "huge";
  huge.dispatch_ns = 1'800'000'000'000;
  huge.late_stage = LateStage::kDispatch;
  huge.late_rank = 1;
  huge.late_ns = 600'000'000'000;
  config.cases.push_back(huge);
  return generate_run(config);
}

std::vector<Golden> golden_runs() {
  GeneratorConfig one_rank;
  one_rank.world_size = 1;
  GeneratorConfig one_sample;
  one_sample.steps = 2;
  GeneratorConfig no_all_reduce;
  no_all_reduce.cases[0].all_reduce = "none";
  return {{"two_paths", generate_run(two_paths()), true},
          {"speculative_on_gpus", speculative_on_gpus()},
          {"incomplete", incomplete()},
          {"markup", markup()},
          {"one_rank", generate_run(one_rank)},
          {"one_sample", generate_run(one_sample), true},
          {"many_ranks", many_ranks()},
          {"missing_rank", generate_run(GeneratorConfig{}), false, 1},
          {"no_all_reduce", generate_run(no_all_reduce)},
          {"extreme_values", extreme_values()}};
}

// Of a page what is made from the record: its sections, without assets and the data of the charts.
std::string golden_part(const std::string& format, const std::string& text) {
  if (format != "html") return text;
  const std::size_t begin = text.find("<main>"), end = text.find("</main>");
  EXPECT_LT(begin, end);
  return text.substr(begin, end - begin);
}

void expect_golden(const std::filesystem::path& run, const std::string& name, bool large) {
  for (const Exporter& exporter : exporters()) {
    const std::string format = exporter.format;
    if ((format == "json" || format == "perfetto") && !large) continue;
    if (format == "perfetto" && name != "one_sample") continue;  // the others by their validator
    const std::filesystem::path file = kSource / "tests/golden/reports" / (name + "." + format);
    const std::string text = golden_part(format, rendered(run, format));
    if (update_golden) {
      std::filesystem::create_directories(file.parent_path());
      std::ofstream(file, std::ios::binary) << text;
    }
    // Not EXPECT_EQ: a difference in a page of one long file would print all of it.
    const std::string golden = read_file(file);
    const auto [made, kept] = std::mismatch(text.begin(), text.end(), golden.begin(), golden.end());
    const std::size_t at = static_cast<std::size_t>(made - text.begin());
    EXPECT_TRUE(text == golden)
        << file << " differs at byte " << at << ":\n  made   "
        << text.substr(at - std::min<std::size_t>(at, 40), 120) << "\n  golden "
        << golden.substr(at - std::min<std::size_t>(at, 40), 120)
        << "\nif the change is meant, run test_report_formats --update-golden and read the diff";
  }
}

TEST(ReportFormats, GoldenFilesAreReproduced) {
  for (const Golden& golden : golden_runs()) {
    const RunDirectory directory(golden.run);
    if (golden.removed_rank_file >= 0) {
      std::filesystem::remove(directory.path() /
                              ("rank" + std::to_string(golden.removed_rank_file) + ".phases.npy"));
    }
    expect_golden(directory.path(), golden.name, golden.large);
  }
}

// Records of real runs, kept whole: what an earlier version measured stays readable.
TEST(ReportFormats, RecordsOfRealRunsAreReproduced) {
  const std::filesystem::path records = kSource / "tests/golden/records";
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(records)) {
    if (std::filesystem::exists(entry.path() / "run.json"))
      names.push_back(entry.path().filename());
  }
  EXPECT_FALSE(names.empty());
  for (const std::string& name : names) expect_golden(records / name, name, true);
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
  // Of a step, once the record says what recording all of one costs.
  const Json summary = directory.summary().document;
  const auto step_ns = summary["cases"][0]["metrics"]["step_ns"]["p50"].get<double>();
  run.info.overhead["ranks"][1]["recording_ns"] = step_ns / 100;
  std::string text = rendered(RunDirectory(run).path(), "md");
  std::erase(text, '\\');
  EXPECT_NE(text.find(" ns, 1 % of a step (largest over ranks)"), std::string::npos) << text;
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

}  // namespace
}  // namespace tpjitter

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]) == "--update-golden") tpjitter::update_golden = true;
  }
  return RUN_ALL_TESTS();
}
