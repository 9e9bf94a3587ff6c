#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "harness/contract/error.h"
#include "reports/google_benchmark.h"

namespace tpjitter {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class GoogleBenchmarkTest : public ::testing::Test {
 protected:
  std::filesystem::path file(const std::string& text) {
    const auto path = std::filesystem::path(::testing::TempDir()) /
                      ("gb_" + std::to_string(getpid()) + "_" + std::to_string(next_++) + ".json");
    std::ofstream(path) << text;
    return path;
  }
  // Repetitions of one benchmark, in `unit`, with the aggregates that the library adds.
  std::filesystem::path of(const std::vector<double>& times, const std::string& unit = "us",
                           const std::string& name = "BM_x/8") {
    std::string list;
    for (const double time : times) {
      list += "{\"name\": \"" + name + "\", \"run_name\": \"" + name +
              "\", \"run_type\": \"iteration\", \"real_time\": " + std::to_string(time) +
              ", \"cpu_time\": 1.0, \"time_unit\": \"" + unit + "\"},";
    }
    list += "{\"name\": \"" + name + "_mean\", \"run_name\": \"" + name +
            "\", \"run_type\": \"aggregate\", \"real_time\": 999, \"cpu_time\": 1, "
            "\"time_unit\": \"" +
            unit + "\"}";
    return file("{\"context\": {\"num_cpus\": 2}, \"benchmarks\": [" + list + "]}");
  }
  static GateResult gate(const BenchmarkSide& base, const BenchmarkSide& contender) {
    GateOptions options;
    options.thresholds = default_benchmark_thresholds();
    options.today = "2026-01-01";
    return evaluate_benchmarks(base, contender, options);
  }
  std::string error_of(const std::string& text) {
    try {
      read_benchmarks({file(text)});
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), kExitUsage);
      return error.what();
    }
    return "no error";
  }
  int next_ = 0;
};

TEST_F(GoogleBenchmarkTest, RepetitionsAreUnitsInNanosecondsAndAggregatesAreLeftOut) {
  const BenchmarkSide side = read_benchmarks({of({1.5, 2, 2.5}, "us")});
  EXPECT_THAT(side.values.at("BM_x/8").at("real_time"), ElementsAre(1500, 2000, 2500));
  EXPECT_THAT(read_benchmarks({of({2}, "ms")}).values.at("BM_x/8").at("real_time"),
              ElementsAre(2e6));
}

TEST_F(GoogleBenchmarkTest, SeveralFilesAreLaunches) {
  const BenchmarkSide side = read_benchmarks({of({1, 3}), of({5, 7}), of({9})});
  EXPECT_THAT(side.values.at("BM_x/8").at("real_time"), ElementsAre(2000, 6000, 9000));
  EXPECT_TRUE(side.notes.empty());
}

TEST_F(GoogleBenchmarkTest, UnchangedPassesSlowerIsRedAndOneRepetitionIsInconclusive) {
  const auto base = read_benchmarks({of({10, 10.1, 9.9, 10})});
  EXPECT_EQ(gate(base, base).exit_code, kExitPass);
  const GateResult red = gate(base, read_benchmarks({of({12, 12.1, 11.9, 12})}));
  EXPECT_EQ(red.exit_code, kExitRegressed);
  EXPECT_THAT(red.headline, HasSubstr("BM_x/8"));
  const auto one = read_benchmarks({of({10})});
  EXPECT_EQ(gate(one, one).exit_code, kExitInconclusive);
}

TEST_F(GoogleBenchmarkTest, UnmatchedNamesAreListed) {
  const GateResult result =
      gate(read_benchmarks({of({1, 2, 3})}), read_benchmarks({of({1, 2, 3}, "us", "BM_y")}));
  EXPECT_EQ(result.exit_code, kExitIncomparable);
  EXPECT_EQ(result.incomparable.size(), 2u);
}

TEST_F(GoogleBenchmarkTest, ABenchmarkThatFailedIsNeverGreen) {
  const auto base = read_benchmarks({of({10, 10.1, 9.9})});
  const auto failed = read_benchmarks({file(
      R"({"context": {"num_cpus": 2}, "benchmarks": [{"name": "BM_x/8", "run_name": "BM_x/8",
      "run_type": "iteration", "error_occurred": true, "error_message": "no GPU"}]})")});
  const GateResult result = gate(base, failed);
  EXPECT_EQ(result.exit_code, kExitNothingMeasured);
  EXPECT_THAT(result.headline, HasSubstr("no GPU"));
}

TEST_F(GoogleBenchmarkTest, SkippedAndEmptyTimesAreNoImprovement) {
  const auto base = read_benchmarks({of({10, 10.1, 9.9})});
  const auto skipped = read_benchmarks({file(
      R"({"context": {"num_cpus": 2}, "benchmarks": [{"name": "BM_x/8", "run_name": "BM_x/8",
      "run_type": "iteration", "skipped": true, "real_time": 0, "cpu_time": 0,
      "time_unit": "ns"}]})")});
  EXPECT_EQ(gate(base, skipped).exit_code, kExitNothingMeasured);
  EXPECT_EQ(gate(base, read_benchmarks({of({0, 0, 0})})).exit_code, kExitNothingMeasured);
  EXPECT_EQ(gate(skipped, base).exit_code, kExitIncomparable);
}

TEST_F(GoogleBenchmarkTest, RulesThatDoNotFitAreRefused) {
  const auto side = read_benchmarks({of({10, 10.1, 9.9})});
  GateOptions options;
  options.thresholds = default_benchmark_thresholds();
  options.thresholds.rules[0].max_ns = 5;
  EXPECT_THROW(evaluate_benchmarks(side, side, options), ConfigError);
  options.thresholds = default_benchmark_thresholds();
  EXPECT_NO_THROW(evaluate_benchmarks(side, side, options));
  options.thresholds.rules[0].phase = "decode";
  EXPECT_THROW(evaluate_benchmarks(side, side, options), ConfigError);
  options.thresholds = default_benchmark_thresholds();
  options.thresholds.rules[0].cases = "BM_nope";
  EXPECT_THROW(evaluate_benchmarks(side, side, options), ConfigError);
}

TEST_F(GoogleBenchmarkTest, AFigureThatIsNotFiniteIsNamedWithItsBenchmark) {
  // As the library writes them.
  for (const char* value : {"NaN", "-NaN", "Infinity", "-Infinity", "1e999"}) {
    for (const char* key : {"real_time", "cpu_time", "items_per_second"}) {
      const std::string error = error_of(fmt::format(
          R"({{"context": {{}}, "benchmarks": [{{"name": "BM_y"}}, {{"name": "BM_x/8", "{}": {},
            "time_unit": "us"}}]}})",
          key, value));
      EXPECT_THAT(error, HasSubstr(fmt::format(".json:1:")));
      EXPECT_THAT(error,
                  HasSubstr(fmt::format("key `benchmarks[1].{}` (BM_x/8) is {}, not a finite "
                                        "number",
                                        key, value)));
    }
  }
  EXPECT_THAT(error_of(R"({"context": {"load_avg": [1, NaN]}, "benchmarks": []})"),
              HasSubstr("key `context.load_avg[1]` is NaN"));
  EXPECT_THAT(error_of("NaN"), HasSubstr("the document is NaN"));
}

TEST_F(GoogleBenchmarkTest, BadFilesAreNamed) {
  const auto entry = [](const std::string& keys) {
    return "{\"context\": {}, \"benchmarks\": [{\"name\": \"a\"" + keys + "}]}";
  };
  EXPECT_THAT(error_of(entry(", \"time_unit\": \"us\", \"real_time\": \"1\", \"cpu_time\": 1")),
              HasSubstr("key `real_time` is missing or no number"));
  EXPECT_THAT(error_of(entry(", \"time_unit\": \"days\", \"real_time\": 1, \"cpu_time\": 1")),
              HasSubstr("time_unit \"days\" is not known"));
  EXPECT_THAT(error_of(entry("")), HasSubstr("time_unit"));
  EXPECT_THAT(error_of("{}"), HasSubstr("has no list `benchmarks`"));
  EXPECT_THAT(error_of("[1]"), HasSubstr("has no list `benchmarks`"));
  EXPECT_THAT(error_of("{\"benchmarks\": [], \"benchmarks\": []}"), HasSubstr(".json"));
}

}  // namespace
}  // namespace tpjitter
