#include "harness/contract/key_effects.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <variant>

#include "harness/contract/error.h"
#include "harness/contract/metadata_paths.h"
#include "harness/contract/scenario_fields.h"

namespace tpjitter {
namespace {

using Reason = std::optional<std::string>;

Reason outside_speculative(const CaseConfig& c) {
  if (c.mode == "speculative") return std::nullopt;
  return fmt::format("step.mode is \"{}\"", c.mode);
}

Reason without_run_ahead(const CaseConfig& c) {
  if (c.loop == "run_ahead") return std::nullopt;
  return fmt::format("step.loop is \"{}\"", c.loop);
}

// Not of a path that this program does not know.
Reason without_calls(const CaseConfig& c) {
  const MetadataPath* path = find_metadata_path(c.path);
  if (path == nullptr || path->modelled_calls) return std::nullopt;
  if (path->form == RebuildForm::kTorch) {
    return fmt::format("the calls of {} are PyTorch's own", c.path);
  }
  return fmt::format("{} makes no dispatcher calls", c.path);
}

Reason without_fused_kernel(const CaseConfig& c) {
  const MetadataPath* path = find_metadata_path(c.path);
  if (path == nullptr || runs_fused_kernel(*path)) return std::nullopt;
  return fmt::format("{} does not run the fused kernel", c.path);
}

Reason without_delay(const CaseConfig& c) {
  // The delay node on the GPU is in the graph, however short.
  if (c.inject_delay_us > 0 || c.inject_where == "gpu") return std::nullopt;
  return "inject.delay_us is 0";
}

Reason without_injection(const CaseConfig& c) {
  if (c.inject_where == "none") return "inject.where is \"none\"";
  return std::nullopt;
}

Reason without_victim(const CaseConfig& c) {
  if (auto reason = without_injection(c)) return reason;
  if (c.inject_pattern == "random") return "inject.pattern is \"random\"";
  return std::nullopt;
}

Reason without_noise(const CaseConfig& c) {
  if (c.noise_kind == "none") return "noise.kind is \"none\"";
  return std::nullopt;
}

struct Effect {
  std::string_view key;
  Reason (*missing)(const CaseConfig&);
};

constexpr Effect kEffects[] = {
    {"step.draft_steps", outside_speculative},
    {"step.topk", outside_speculative},
    {"step.draft_tokens", outside_speculative},
    {"step.draft_swa", outside_speculative},
    {"step.draft_extend", outside_speculative},
    {"step.graph_layout", outside_speculative},
    {"shape.draft_layers", outside_speculative},
    {"step.run_ahead_depth", without_run_ahead},
    {"step.op_overhead_ns", without_calls},
    {"step.page_columns", without_fused_kernel},
    {"inject.where", without_delay},
    {"inject.pattern", without_injection},
    {"inject.victim", without_victim},
    {"inject.delay_us", without_injection},
    {"inject.every_steps", without_injection},
    {"noise.threads", without_noise},
};

bool differs(const ScenarioField& field, const std::vector<Scenario::Case>& cases) {
  return std::any_of(cases.begin(), cases.end(), [&](const Scenario::Case& c) {
    return get_field(field, c.config) != get_field(field, cases.front().config);
  });
}

bool has_overhead(const Scenario::Case& c) {
  const auto* ns = std::get_if<std::int64_t>(&c.config.op_overhead_ns);  // else a profile
  return ns == nullptr || *ns != 0;
}

std::string names_of(const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 4;  // of a plan of hundreds
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kMost); ++i) {
    text += (i == 0 ? "" : ", ") + names[i];
  }
  if (names.size() > kMost) text += fmt::format(" and {} more", names.size() - kMost);
  return text;
}

}  // namespace

Reason no_effect(std::string_view key, const CaseConfig& config) {
  const auto effect = std::find_if(std::begin(kEffects), std::end(kEffects),
                                   [&](const Effect& e) { return e.key == key; });
  return effect == std::end(kEffects) ? std::nullopt : effect->missing(config);
}

std::vector<std::string> effect_notes(const Scenario& scenario,
                                      const std::vector<Scenario::Case>& cases) {
  std::vector<std::string> notes;
  for (const Effect& effect : kEffects) {
    const bool overhead = effect.key == "step.op_overhead_ns";
    // Without axes there is one case, or a program chose them.
    const bool axis = !scenario.axes.empty() && differs(*find_scenario_field(effect.key), cases);
    if (!axis && !(overhead && std::any_of(cases.begin(), cases.end(), has_overhead))) continue;
    std::vector<std::pair<std::string, std::vector<std::string>>> by_reason;
    for (const Scenario::Case& c : cases) {
      const Reason missing = effect.missing(c.config);
      if (!missing || (overhead && !has_overhead(c))) continue;
      auto same = std::find_if(by_reason.begin(), by_reason.end(),
                               [&](const auto& entry) { return entry.first == *missing; });
      if (same == by_reason.end()) same = by_reason.insert(same, {*missing, {}});
      same->second.push_back(c.name);
    }
    for (const auto& [reason, names] : by_reason) {
      notes.push_back(fmt::format("{} changes nothing in case{} {}: {}", effect.key,
                                  names.size() == 1 ? "" : "s", names_of(names), reason));
    }
  }
  return notes;
}

}  // namespace tpjitter
