// What a row of the field table says about a value: its type and limits, its text, its member.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <type_traits>

#include "harness/contract/scenario_fields.h"

namespace tpjitter {
namespace {

template <class Owner, class Value>
Value value_type_of(Value Owner::*);

// The alternative of FieldValue that a member holds.
template <class Member>
using ValueOf =
    std::conditional_t<std::is_same_v<decltype(value_type_of(std::declval<Member>())), int>,
                       std::int64_t, decltype(value_type_of(std::declval<Member>()))>;

template <class Member>
constexpr bool kInCase =
    std::is_member_object_pointer_v<Member>&& std::is_invocable_v<Member, const CaseConfig&>;

std::string in_quotes(std::string_view text) { return fmt::format("\"{}\"", text); }

template <class Limits>
const Limits* limits_of(const ScenarioField& field) {
  return std::get_if<Limits>(&field.limits);
}

const IntegerLimits& integer_limits(const ScenarioField& field) {
  const auto* either = limits_of<IntegerOrName>(field);
  return either != nullptr ? either->integer : std::get<IntegerLimits>(field.limits);
}

const Choices* choices_of(const ScenarioField& field) {
  const auto* either = limits_of<IntegerOrName>(field);
  return either != nullptr ? &either->names : limits_of<Choices>(field);
}

std::optional<std::string> integer_problem(const IntegerLimits& limits, std::int64_t value) {
  if (value < limits.min || value > limits.max) return fmt::format("{} is out of range", value);
  if (limits.power_of_two && !std::has_single_bit(static_cast<std::uint64_t>(value))) {
    return fmt::format("{} is not a power of two", value);
  }
  if (value % limits.multiple_of != 0) {
    return fmt::format("{} is not a multiple of {}", value, limits.multiple_of);
  }
  return std::nullopt;
}

std::optional<std::string> list_problem(const IntegerLimits& limits,
                                        const std::vector<std::int64_t>& values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (const auto problem = integer_problem(limits, values[i])) return problem;
    if (i > 0 && values[i] <= values[i - 1]) {
      return fmt::format("{} comes after {}", values[i], values[i - 1]);
    }
  }
  return std::nullopt;
}

std::vector<std::string> choice_names(const Choices& choices) {
  const auto end = std::find(choices.values.begin(), choices.values.end(), nullptr);
  return {choices.values.begin(), end};
}

std::optional<std::string> text_problem(const ScenarioField& field, const std::string& text) {
  if (const auto* choices = choices_of(field)) {
    const std::vector<std::string> names = choice_names(*choices);
    if (std::find(names.begin(), names.end(), text) != names.end()) return std::nullopt;
    const std::string near = nearest_word(text, names);
    if (near.empty()) return fmt::format("{} is not one of them", in_quotes(text));
    return fmt::format("{} is not one of them (did you mean \"{}\"?)", in_quotes(text), near);
  }
  if (text.find_first_not_of(" \t") == std::string::npos) return "the text is empty";
  if (std::any_of(text.begin(), text.end(),
                  [](char c) { return (c >= 0 && c < ' ' && c != '\t') || c == '\x7f'; })) {
    return "the text has a line break or a control character";
  }
  return std::nullopt;
}

}  // namespace

bool field_in_case(const ScenarioField& field) {
  return std::visit([](auto member) { return kInCase<decltype(member)>; }, field.member);
}

bool field_is_axis(const ScenarioField& field) {
  return field_in_case(field) &&
         !std::holds_alternative<std::vector<std::int64_t> CaseConfig::*>(field.member);
}

const char* field_type(const ScenarioField& field) {
  return std::visit(
      [](auto member) -> const char* {
        using Value = ValueOf<decltype(member)>;
        if constexpr (std::is_same_v<Value, std::int64_t>) return "integer";
        if constexpr (std::is_same_v<Value, double>) return "number";
        if constexpr (std::is_same_v<Value, bool>) return "boolean";
        if constexpr (std::is_same_v<Value, std::string>) return "string";
        if constexpr (std::is_same_v<Value, OpOverhead>) return "integer or name";
        return "integer list";
      },
      field.member);
}

std::string field_allowed(const ScenarioField& field) {
  const std::string unit = *field.unit == '\0' ? "" : fmt::format(" {}", field.unit);
  if (const auto* limits = limits_of<IntegerLimits>(field)) {
    std::string text = fmt::format("{}..{}{}", limits->min, limits->max, unit);
    if (limits->power_of_two) text = "a power of two, " + text;
    if (limits->multiple_of > 1)
      text = fmt::format("a multiple of {}, ", limits->multiple_of) + text;
    return field_type(field) == std::string_view("integer list") ? "increasing integers, " + text
                                                                 : text;
  }
  if (const auto* limits = limits_of<NumberLimits>(field)) {
    return fmt::format("{}..{}{}", limits->min, limits->max, unit);
  }
  if (const auto* choices = limits_of<Choices>(field)) {
    return fmt::format("{}", fmt::join(choice_names(*choices), ", "));
  }
  if (const auto* either = limits_of<IntegerOrName>(field)) {
    return fmt::format("{}..{}{}, {}", either->integer.min, either->integer.max, unit,
                       fmt::join(choice_names(either->names), ", "));
  }
  return limits_of<OneLine>(field) != nullptr ? "one line of text" : "true, false";
}

std::string field_text(const FieldValue& value) {
  return std::visit(
      [](const auto& v) -> std::string {
        using Value = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<Value, std::string>) return in_quotes(v);
        if constexpr (std::is_same_v<Value, std::vector<std::int64_t>>) {
          return fmt::format("[{}]", fmt::join(v, ", "));
        } else {
          return fmt::format("{}", v);
        }
      },
      value);
}

std::string field_default(const ScenarioField& field) {
  if (field.required) return "required";
  if (field_in_case(field)) return field_text(get_field(field, CaseConfig{}));
  const Scenario scenario;
  if (const auto* member = std::get_if<int Scenario::*>(&field.member)) {
    return field_text(std::int64_t{scenario.**member});
  }
  return field_text(scenario.*std::get<std::string Scenario::*>(field.member));
}

std::string field_label(const ScenarioField& field, const FieldValue& value) {
  if (const auto* flag = std::get_if<bool>(&value)) {
    return fmt::format("{}{}", *flag ? "" : "no_", field.short_name);
  }
  if (const auto* text = std::get_if<std::string>(&value)) {
    return limits_of<IntegerOrName>(field) != nullptr
               ? *text
               : fmt::format("{}{}", field.short_name, *text);
  }
  return fmt::format("{}{}", field.short_name, field_text(value));
}

std::optional<std::string> field_problem(const ScenarioField& field, const FieldValue& value) {
  if (const auto* integer = std::get_if<std::int64_t>(&value)) {
    return integer_problem(integer_limits(field), *integer);
  }
  if (const auto* list = std::get_if<std::vector<std::int64_t>>(&value)) {
    return list_problem(std::get<IntegerLimits>(field.limits), *list);
  }
  if (const auto* number = std::get_if<double>(&value)) {
    const auto& limits = std::get<NumberLimits>(field.limits);
    if (!std::isfinite(*number)) return fmt::format("{} is not a finite number", *number);
    if (*number < limits.min || *number > limits.max) {
      return fmt::format("{} is out of range", *number);
    }
    return std::nullopt;
  }
  if (const auto* text = std::get_if<std::string>(&value)) return text_problem(field, *text);
  return std::nullopt;
}

FieldValue get_field(const ScenarioField& field, const CaseConfig& config) {
  return std::visit(
      [&](auto member) -> FieldValue {
        if constexpr (std::is_same_v<decltype(member), OpOverhead CaseConfig::*>) {
          return std::visit([](const auto& held) { return FieldValue(held); }, config.*member);
        } else if constexpr (kInCase<decltype(member)>) {
          return config.*member;
        }
        throw std::logic_error(fmt::format("{} is no key of a case", field.key));
      },
      field.member);
}

void set_field(const ScenarioField& field, const FieldValue& value, CaseConfig& config) {
  std::visit(
      [&](auto member) {
        using Member = decltype(member);
        if constexpr (std::is_same_v<Member, OpOverhead CaseConfig::*>) {
          if (const auto* name = std::get_if<std::string>(&value)) {
            config.*member = *name;
          } else {
            config.*member = std::get<std::int64_t>(value);
          }
        } else if constexpr (kInCase<Member>) {
          config.*member = std::get<ValueOf<Member>>(value);
        }
      },
      field.member);
}

void set_field(const ScenarioField& field, const FieldValue& value, Scenario& scenario) {
  if (const auto* member = std::get_if<int Scenario::*>(&field.member)) {
    scenario.** member = static_cast<int>(std::get<std::int64_t>(value));
  } else if (const auto* text = std::get_if<std::string Scenario::*>(&field.member)) {
    scenario.** text = std::get<std::string>(value);
  }
}

ConfigError scenario_error(std::string_view place, std::string_view key, std::string_view problem,
                           std::string_view allowed) {
  const auto shortened = [](std::string_view part) {
    constexpr std::size_t kMost = 200;
    if (part.size() <= kMost) return std::string(part);
    return fmt::format("{}...", part.substr(0, kMost));
  };
  std::string text(place);
  if (!key.empty()) text += fmt::format(": key `{}`", shortened(key));
  text += fmt::format(": {}", shortened(problem));
  if (!allowed.empty()) text += fmt::format("; allowed: {}", allowed);
  std::string line;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      line += fmt::format("\\x{:02x}", byte);
    } else {
      line += c;
    }
  }
  return ConfigError(line);
}

std::string nearest_word(std::string_view word, std::span<const std::string> candidates) {
  if (word.size() > 64) return {};
  // More than half of a short word changed is another word.
  const std::size_t limit = std::min(std::max<std::size_t>(2, word.size() / 3), word.size() / 2);
  std::string best;
  std::size_t best_distance = limit + 1;
  for (const std::string& candidate : candidates) {
    // Levenshtein distance, one row at a time.
    std::vector<std::size_t> row(candidate.size() + 1);
    for (std::size_t j = 0; j < row.size(); ++j) row[j] = j;
    for (std::size_t i = 0; i < word.size(); ++i) {
      std::size_t diagonal = row[0];
      row[0] = i + 1;
      for (std::size_t j = 0; j < candidate.size(); ++j) {
        const std::size_t replace = diagonal + (word[i] == candidate[j] ? 0 : 1);
        diagonal = row[j + 1];
        row[j + 1] = std::min({row[j] + 1, row[j + 1] + 1, replace});
      }
    }
    if (row.back() < best_distance) {
      best = candidate;
      best_distance = row.back();
    }
  }
  return best;
}

}  // namespace tpjitter
