#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/contract/error.h"
#include "harness/contract/thresholds.h"

namespace tpjitter {
namespace {

using ::testing::HasSubstr;

const std::vector<std::string> kMetrics = {"dispatch_ns", "step_ns"};
constexpr const char* kSchema = "schema = \"tpjitter.thresholds/1\"\n";

std::string error_in(const std::string& text) {
  try {
    parse_thresholds(text, "t.toml", kMetrics);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}
std::string error_in_rule(const std::string& keys) {
  return error_in(kSchema + ("[[rule]]\n" + keys));
}

TEST(Thresholds, AFileOfEveryKeyIsRead) {
  const Thresholds t = parse_thresholds(std::string(kSchema) + R"(
[[rule]]
metric = "dispatch_ns"
statistic = "p99"
cases = "aten*"
direction = "higher_is_better"
relative_limit = 0.2
absolute_floor_ns = 500
noise_ns = 7.5
required = false
[[rule]]
metric = "dispatch_ns"
max_ns = 20000
ratio_to_path = "aten"
max_ratio = 0.2
[[waiver]]
metric = "step_ns"
reason = "driver bug"
expires = 2026-12-31
)",
                                        "t.toml", kMetrics);
  ASSERT_EQ(t.rules.size(), 2u);
  const ThresholdRule& rule = t.rules[0];
  EXPECT_EQ(rule.statistic, "p99");
  EXPECT_EQ(rule.cases, "aten*");
  EXPECT_FALSE(rule.lower_is_better);
  EXPECT_EQ(rule.relative_limit, 0.2);
  EXPECT_EQ(rule.absolute_floor_ns, 500);
  EXPECT_EQ(rule.noise_ns, 7.5);
  EXPECT_FALSE(rule.required);
  EXPECT_EQ(t.rules[1].max_ns, 20000);
  EXPECT_EQ(t.rules[1].ratio_to_path, "aten");
  EXPECT_EQ(t.rules[1].max_ratio, 0.2);
  ASSERT_EQ(t.waivers.size(), 1u);
  EXPECT_EQ(t.waivers[0].expires, "2026-12-31");
  EXPECT_EQ(t.waivers[0].cases, "*");
}

TEST(Thresholds, WhatIsWrittenIsReadBack) {
  Thresholds t = default_thresholds(kMetrics, "host");
  t.rules[0].noise_ns = 1234;
  t.rules[1].ratio_to_path = "a \"quoted\" path";
  t.rules[1].max_ratio = 0.5;
  t.waivers.push_back({"step_ns", "a*", "why", "2027-01-01", ""});
  const Thresholds read =
      parse_thresholds(thresholds_text(t, "a comment\nof two lines"), "t", kMetrics);
  ASSERT_EQ(read.rules.size(), 2u);
  EXPECT_EQ(read.rules[0].noise_ns, 1234);
  EXPECT_EQ(read.rules[0].absolute_floor_ns, 20'000);
  EXPECT_EQ(read.rules[1].ratio_to_path, t.rules[1].ratio_to_path);
  EXPECT_EQ(read.waivers.at(0).reason, "why");
}

TEST(Thresholds, TheDefaultsRequireSixMetricsAtMost) {
  const std::vector<std::string> many = {"a", "b", "c", "d", "e", "f", "g", "h"};
  int required = 0;
  for (const ThresholdRule& rule : default_thresholds(many, "cuda").rules) {
    required += rule.required;
    EXPECT_EQ(rule.absolute_floor_ns, 2'000);
    EXPECT_EQ(rule.relative_limit, 0.10);
  }
  EXPECT_EQ(required, 6);
}

TEST(Thresholds, EachMistakeIsNamedWithItsPlace) {
  EXPECT_THAT(error_in_rule("metric = \"dispatch_us\"\n"),
              HasSubstr("t.toml:3:10: key `metric`: \"dispatch_us\" is not one of them (did you "
                        "mean \"dispatch_ns\"?)"));
  EXPECT_THAT(error_in_rule("statistic = \"p50\"\n"), HasSubstr("key `metric`: is missing"));
  EXPECT_THAT(error_in_rule("metric = \"step_ns\"\nrelative_limit = -0.1\n"),
              HasSubstr("key `relative_limit`: -0.1 is out of range"));
  EXPECT_THAT(error_in_rule("metric = \"step_ns\"\nmax_ns = inf\n"), HasSubstr("out of range"));
  EXPECT_THAT(error_in_rule("metric = \"step_ns\"\nrelative_limit = 10\n"),
              HasSubstr("0.10 is 10 %"));
  EXPECT_THAT(error_in_rule("metric = \"step_ns\"\nrelative_limit = 0.1\nmax_ns = 5\n"),
              HasSubstr("which is no change"));
  EXPECT_THAT(error_in_rule("metric = \"step_ns\"\nmax_ns = \"20us\"\n"),
              HasSubstr("key `max_ns`: is not a number"));
  EXPECT_THAT(error_in_rule("metric = \"step_ns\"\nmax_us = 20\n"),
              HasSubstr("key `max_us`: unknown key"));
  EXPECT_THAT(error_in_rule("metric = \"step_ns\"\nmax_ratio = 2\n"),
              HasSubstr("key `ratio_to_path`: is missing"));
  EXPECT_THAT(error_in_rule("metric = \"step_ns\"\nstatistic = \"p95\"\n"),
              HasSubstr("allowed: p50, p90, p99"));
  EXPECT_THAT(error_in("[[rule]]\nmetric = \"step_ns\"\n"), HasSubstr("key `schema`: is missing"));
  EXPECT_THAT(error_in("schema = \"tpjitter.thresholds/9\"\n"), HasSubstr("another schema"));
  EXPECT_THAT(error_in(kSchema), HasSubstr("nothing would be checked"));
  EXPECT_THAT(error_in(std::string(kSchema) + "rule = 1\n"), HasSubstr("not a list of tables"));
  EXPECT_THAT(error_in(std::string(kSchema) + "rules = 1\n"), HasSubstr("unknown key"));
  EXPECT_THAT(error_in("schema = \n"), HasSubstr("t.toml:1:"));
  const std::string waiver = std::string(kSchema) +
                             "[[rule]]\nmetric = \"step_ns\"\n[[waiver]]\n"
                             "metric = \"step_ns\"\nreason = \"r\"\n";
  EXPECT_THAT(error_in(waiver), HasSubstr("key `expires`: is missing"));
  EXPECT_THAT(error_in(waiver + "expires = \"2026-02-30\"\n"), HasSubstr("is not a date"));
}

TEST(Thresholds, AFileThatIsNoneIsNamed) {
  EXPECT_THROW(load_thresholds("/nowhere/t.toml", kMetrics), ConfigError);
  EXPECT_THROW(load_thresholds("/", kMetrics), ConfigError);
}

}  // namespace
}  // namespace tpjitter
