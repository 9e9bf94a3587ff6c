// Sides of a gate for its tests: generated records of known truth, and launches set by hand.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "reports/gate.h"
#include "tests/record_generator.h"

namespace tpjitter {

class GateTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ =
        std::filesystem::path(::testing::TempDir()) /
        ("gate_" + std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()));
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(root_);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  // A record of six launches; dispatch in ns.
  GeneratorConfig config(std::uint64_t seed, std::int64_t dispatch_ns = 200'000,
                         int launches = 6) const {
    GeneratorConfig config;
    config.seed = seed;
    config.launches = launches;
    config.steps = 60;
    config.noise_ns = 4'000;
    config.cases[0].dispatch_ns = dispatch_ns;
    return config;
  }
  std::filesystem::path record(const GeneratorConfig& config) {
    return record(generate_run(config));
  }
  std::filesystem::path record(GeneratedRun run) {
    // The generator takes its controls before the cases only.
    const std::vector<RunControl> before = run.info.controls;
    for (RunControl control : before) {
      control.when = "after";
      run.info.controls.push_back(control);
    }
    const auto folder = root_ / ("run" + std::to_string(next_++));
    std::filesystem::create_directories(folder);
    write_run(folder, std::move(run));
    return folder;
  }
  LaunchSet side(const GeneratorConfig& config) { return read_launches(record(config)); }

  GateResult gate(const LaunchSet& baseline, const LaunchSet& contender,
                  std::vector<std::string> allow = {}) {
    GateOptions options;
    options.thresholds = default_thresholds(gate_metrics(), contender.backend);
    options.allow = std::move(allow);
    options.today = "2026-06-01";
    return evaluate_gate(&baseline, contender, options);
  }
  GateResult gate_with(const std::string& thresholds, const LaunchSet* baseline,
                       const LaunchSet& contender) {
    GateOptions options;
    options.built_in = thresholds.empty();
    options.thresholds = thresholds.empty()
                             ? default_thresholds(gate_metrics(), contender.backend)
                             : parse_thresholds("schema = \"tpjitter.thresholds/1\"\n" + thresholds,
                                                "ci/t.toml", gate_metrics());
    options.today = "2026-06-01";
    return evaluate_gate(baseline, contender, options);
  }
  static GateRow row_of(const GateResult& result, const std::string& metric) {
    for (const GateRow& row : result.rows) {
      if (row.metric == metric) return row;
    }
    throw std::runtime_error("no row of " + metric);
  }

  std::filesystem::path root_;
  int next_ = 0;
};

// Gives the launches of a side values of dispatch p50 at given times, in minutes.
inline void set_dispatch_at(LaunchSet* set, const std::vector<double>& minutes,
                            const std::vector<double>& values) {
  LaunchResult model = set->launches.front();
  set->launches.clear();
  for (std::size_t i = 0; i < values.size(); ++i) {
    LaunchResult launch = model;
    launch.launch = static_cast<int>(i);
    launch.began_ns = static_cast<std::int64_t>(minutes.at(i) * 60e9);
    for (auto& [name, c] : launch.cases) {
      c.metrics[1].p50 = static_cast<std::int64_t>(values[i]);
      ASSERT_STREQ(metrics()[1].key, "dispatch_ns");
    }
    set->launches.push_back(launch);
  }
}
// One a minute.
inline void set_dispatch(LaunchSet* set, const std::vector<double>& values, double start_s = 0) {
  std::vector<double> minutes;
  for (std::size_t i = 0; i < values.size(); ++i) {
    minutes.push_back(start_s / 60 + static_cast<double>(i));
  }
  set_dispatch_at(set, minutes, values);
}

}  // namespace tpjitter
