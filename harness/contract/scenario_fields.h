// The field table of scenarios: what each key is, what it may be, and which member holds it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "harness/contract/error.h"
#include "harness/contract/scenario.h"

namespace tpjitter {

// One value of a key. The alternative is the key's type: integer, number, boolean, string or
// integer list, as the member that holds it says; an OpOverhead's is integer or string.
using FieldValue = std::variant<std::int64_t, double, bool, std::string, std::vector<std::int64_t>>;

// Keys of a case may be axes; keys of the scenario hold for all its cases and may not.
using FieldMember =
    std::variant<std::int64_t CaseConfig::*, double CaseConfig::*, bool CaseConfig::*,
                 std::string CaseConfig::*, std::vector<std::int64_t> CaseConfig::*,
                 OpOverhead CaseConfig::*, int Scenario::*, std::string Scenario::*>;

struct IntegerLimits {  // also of each element of an integer list
  std::int64_t min;
  std::int64_t max;
  std::int64_t multiple_of = 1;
  bool power_of_two = false;
};
struct NumberLimits {  // finite
  double min;
  double max;
};
struct Choices {
  std::array<const char*, 12> values;  // ends at the first null
};
struct IntegerOrName {  // the names are also the labels of such values
  IntegerLimits integer;
  Choices names;
};
struct OneLine {};  // text that is not empty, on one line
using FieldLimits =
    std::variant<std::monostate, IntegerLimits, NumberLimits, Choices, IntegerOrName, OneLine>;

struct ScenarioField {
  const char* key;         // "shape.batch_size"
  const char* short_name;  // label in case names: "bs" + 8; "" = the bare value
  const char* unit;        // "tokens", "us"; "" = none
  FieldMember member;
  FieldLimits limits;  // monostate: every value of the type
  const char* help;    // one sentence
  bool required = false;
};

// In the order of case names and of the README.
std::span<const ScenarioField> scenario_fields();
const ScenarioField* find_scenario_field(std::string_view key);  // null: no such key

// For people, all derived from the row.
bool field_is_axis(const ScenarioField& field);         // may a list value make cases?
const char* field_type(const ScenarioField& field);     // "integer", "integer list", ...
std::string field_allowed(const ScenarioField& field);  // "1..4096 tokens", "true, false"
std::string field_default(const ScenarioField& field);  // as it would stand in TOML
std::string field_label(const ScenarioField& field, const FieldValue& value);  // "bs8", "no_swa"
std::string field_text(const FieldValue& value);                               // as in TOML

// What is wrong with a value of the right type, or nothing.
std::optional<std::string> field_problem(const ScenarioField& field, const FieldValue& value);

// Whether the field lives in CaseConfig (or in Scenario), and access to it there. The value must
// have the field's type.
bool field_in_case(const ScenarioField& field);
FieldValue get_field(const ScenarioField& field, const CaseConfig& config);
void set_field(const ScenarioField& field, const FieldValue& value, CaseConfig& config);
void set_field(const ScenarioField& field, const FieldValue& value, Scenario& scenario);

// "PLACE: key `KEY`: PROBLEM; allowed: ALLOWED", control characters escaped so that it stays one
// line whatever the file holds. An empty key or allowed set is left out.
ConfigError scenario_error(std::string_view place, std::string_view key, std::string_view problem,
                           std::string_view allowed);

// Of `candidates`, the one that `word` was probably meant to be; empty when none is near.
std::string nearest_word(std::string_view word, std::span<const std::string> candidates);

}  // namespace tpjitter
