#include "harness/contract/scenario.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "harness/contract/key_effects.h"
#include "harness/contract/scenario_fields.h"
#include "harness/contract/scenario_toml.h"

namespace tpjitter {
namespace {

constexpr std::size_t kMaxCases = 512;

// Checks of what keys mean together. Each error names the key to change and stands where that key,
// or else the other one of the two, was given.
class CaseChecks {
 public:
  CaseChecks(const Scenario& scenario, const GivenKeys& given)
      : scenario_(scenario), given_(given) {}

  // An axis that no case takes would measure equal cases and show their noise as a difference.
  void check_axes() const {
    for (const Scenario::Axis& axis : scenario_.axes) {
      if (axis.labels.size() < 2) continue;
      std::optional<std::string> reason;
      for (const Scenario::Case& c : scenario_.cases) {
        reason = no_effect(axis.key, c.config);
        if (!reason) break;
      }
      if (!reason) continue;
      throw scenario_error(
          given_.at(axis.key).values.front().place, axis.key,
          fmt::format("its values make equal cases, for it changes nothing where {}", *reason),
          "one value");
    }
  }

  void check(const CaseConfig& c) const {
    const auto& captured = c.capture_batch_sizes;
    const std::int64_t largest = captured.empty() ? c.batch_size : captured.back();
    if (c.batch_size > largest) {
      fail(c, "shape.batch_size", "shape.capture_batch_sizes",
           fmt::format("no graph is captured for {} requests", c.batch_size),
           fmt::format("1..{}, the largest of shape.capture_batch_sizes", largest));
    }
    if (c.max_context_tokens != 0 && c.max_context_tokens < c.context_tokens) {
      fail(c, "shape.max_context_tokens", "shape.context_tokens",
           fmt::format("{} is less than shape.context_tokens", c.max_context_tokens),
           fmt::format("0 or at least {}", c.context_tokens));
    }
    if (c.page_size > c.context_tokens) {
      fail(c, "shape.page_size", "shape.context_tokens",
           fmt::format("{} is more than shape.context_tokens", c.page_size),
           fmt::format("a power of two, 1..{}", c.context_tokens));
    }
    const std::int64_t width = std::max(c.context_tokens, c.max_context_tokens);
    constexpr std::int64_t kMaxSlots = std::numeric_limits<std::int32_t>::max();
    if (c.batch_size * width > kMaxSlots) {
      fail(c, "shape.batch_size", "shape.context_tokens",
           fmt::format("{} requests of {} tokens need more KV slots than an int32 slot id can name",
                       c.batch_size, width),
           fmt::format("at most {} slots", kMaxSlots));
    }
    if (c.inject_victim >= scenario_.world_size) {
      fail(c, "inject.victim", "world_size",
           fmt::format("{} is no rank of world_size {}", c.inject_victim, scenario_.world_size),
           fmt::format("0..{}", scenario_.world_size - 1));
    }
  }

 private:
  [[noreturn]] void fail(const CaseConfig& config, const char* key, const char* other,
                         const std::string& problem, const std::string& allowed) const {
    std::optional<std::string> place = place_of(config, key);
    if (!place) place = place_of(config, other);
    throw scenario_error(place.value_or(scenario_.file + ":1:1"), key, problem, allowed);
  }

  std::optional<std::string> place_of(const CaseConfig& config, const char* key) const {
    const auto given = given_.find(key);
    if (given == given_.end()) return std::nullopt;
    const ScenarioField& field = *find_scenario_field(key);
    for (const PlacedValue& value : given->second.values) {
      if (field_in_case(field) && value.value == get_field(field, config)) return value.place;
    }
    return given->second.values.front().place;
  }

  const Scenario& scenario_;
  const GivenKeys& given_;
};

// Sets what holds for all cases and multiplies the cases by each axis in turn.
void expand(const GivenKeys& given, Scenario& scenario) {
  scenario.cases = {Scenario::Case{}};
  for (const ScenarioField& field : scenario_fields()) {
    const auto found = given.find(field.key);
    if (found == given.end()) continue;
    const GivenKey& key = found->second;
    if (!field_in_case(field)) {
      set_field(field, key.values.front().value, scenario);
      continue;
    }
    if (scenario.cases.size() * key.values.size() > kMaxCases) {
      throw scenario_error(key.values.front().place, field.key,
                           fmt::format("the axes make {} cases up to here",
                                       scenario.cases.size() * key.values.size()),
                           fmt::format("at most {} cases", kMaxCases));
    }
    Scenario::Axis axis{field.key, {}};
    for (const PlacedValue& value : key.values)
      axis.labels.push_back(field_label(field, value.value));
    std::vector<Scenario::Case> cases;
    for (const Scenario::Case& before : scenario.cases) {
      for (std::size_t i = 0; i < key.values.size(); ++i) {
        cases.push_back(before);
        set_field(field, key.values[i].value, cases.back().config);
        if (!key.axis) continue;
        std::string& name = cases.back().name;
        name += (name.empty() ? "" : "/") + axis.labels[i];
      }
    }
    scenario.cases = std::move(cases);
    if (key.axis) scenario.axes.push_back(std::move(axis));
  }
  if (scenario.axes.empty()) scenario.cases[0].name = scenario.cases[0].config.path;
}

RecordError record_error(std::string_view key, std::string_view problem, std::string_view allowed) {
  return RecordError(
      fmt::format("values of a case: key `{}`: {}; allowed: {}", key, problem, allowed),
      kExitRunFailed);
}

bool is_int64(const Json& value) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();
  return value.is_number_integer() &&
         !(value.is_number_unsigned() && value.get<std::uint64_t>() > kMost);
}

FieldValue value_from_json(const ScenarioField& field, const Json& value) {
  const std::string_view type = field_type(field);
  if (type == "integer" && is_int64(value)) return value.get<std::int64_t>();
  if (type == "number" && value.is_number()) return value.get<double>();
  if (type == "boolean" && value.is_boolean()) return value.get<bool>();
  if (type == "string" && value.is_string()) return value.get<std::string>();
  if (type == "integer or name") {
    if (is_int64(value)) return value.get<std::int64_t>();
    if (value.is_string()) return value.get<std::string>();
  }
  if (type == "integer list" && value.is_array() &&
      std::all_of(value.begin(), value.end(), is_int64)) {
    return value.get<std::vector<std::int64_t>>();
  }
  throw record_error(field.key, fmt::format("no {}", type), field_allowed(field));
}

// "shape.batch_size" -> "/shape/batch_size"
Json::json_pointer json_pointer(const ScenarioField& field) {
  std::string path = fmt::format("/{}", field.key);
  std::replace(path.begin(), path.end(), '.', '/');
  return Json::json_pointer(path);
}

}  // namespace

Scenario load_scenario(const std::filesystem::path& file,
                       const std::vector<std::string>& overrides) {
  GivenKeys given = read_scenario_toml(file);
  for (const std::string& override_text : overrides) apply_override(override_text, given);
  Scenario scenario;
  scenario.name = file.stem().string();
  scenario.file = file.string();
  scenario.overrides = overrides;
  expand(given, scenario);
  const CaseChecks checks(scenario, given);
  for (const Scenario::Case& item : scenario.cases) checks.check(item.config);
  checks.check_axes();
  return scenario;
}

Json case_to_json(const CaseConfig& config) {
  Json values = Json::object();
  for (const ScenarioField& field : scenario_fields()) {
    if (!field_in_case(field)) continue;
    std::visit([&](const auto& value) { values[json_pointer(field)] = value; },
               get_field(field, config));
  }
  return values;
}

CaseConfig case_from_json(const Json& values) {
  CaseConfig config;
  if (!values.is_object()) throw record_error("", "no object", "an object of tables");
  for (const auto& [table, keys] : values.items()) {
    if (!keys.is_object()) throw record_error(table, "no object", "an object of keys");
  }
  for (const ScenarioField& field : scenario_fields()) {
    if (!field_in_case(field) || !values.contains(json_pointer(field))) continue;
    const FieldValue value = value_from_json(field, values[json_pointer(field)]);
    if (const auto problem = field_problem(field, value)) {
      throw record_error(field.key, *problem, field_allowed(field));
    }
    set_field(field, value, config);
  }
  return config;
}

}  // namespace tpjitter
