#include "harness/selftest.h"

#include <fmt/format.h>

#include <algorithm>

#include "harness/contract/delay_ladder.h"

namespace tpjitter {
namespace {

constexpr std::int64_t kMaxSteps = 4000;  // a case; many ranks take fewer delays each

CaseConfig base_case(int world_size, int delays) {
  CaseConfig config;
  config.path = "fused";
  config.batch_size = 8;
  config.context_tokens = 1024;
  config.hidden_size = 2880;
  config.layers = 2;
  config.layer_us = 10;
  config.warmup_steps = 20;
  // Full rotations, and one for the first step, which is in no statistic. One block: the first step
  // of every further one would be out, too, and always of the same rank.
  const std::int64_t turns = std::min<std::int64_t>(delays, kMaxSteps / world_size) + 1;
  config.steps = turns * world_size;
  config.block_steps = config.steps;
  return config;
}

}  // namespace

Scenario selftest_scenario(int world_size, int delays) {
  Scenario scenario;
  scenario.name = "selftest";
  scenario.file = "selftest";
  scenario.summary = "Delays injected into each rank in turn, to be found again in the record";
  scenario.source = "Width of openai/gpt-oss-120b (config.json: hidden_size 2880), two layers";
  scenario.world_size = world_size;
  const auto add = [&](const char* place, const char* pattern, std::int64_t delay_us) {
    Scenario::Case& c = scenario.cases.emplace_back();
    c.name = fmt::format("{}/{}/{}us", place, pattern, delay_us);
    c.config = base_case(world_size, delays);
    c.config.inject_where = place;
    c.config.inject_pattern = pattern;
    c.config.inject_delay_us = static_cast<double>(delay_us);
  };
  for (const char* place : kDelayPlaces) {
    for (const std::int64_t delay_us : kDelayLadderUs) add(place, "rotating", delay_us);
    add(place, "fixed", kOtherPatternsUs);
    scenario.cases.back().config.inject_victim = world_size - 1;
    add(place, "random", kOtherPatternsUs);
  }
  return scenario;
}

}  // namespace tpjitter
