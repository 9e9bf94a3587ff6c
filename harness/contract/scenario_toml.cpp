#include "harness/contract/scenario_toml.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <tuple>

// toml++ 3.3 asserts, or lets the compiler assume, that input such as "[ =" cannot come, and then
// reports it as an error all the same. Keep the report, drop the assertion.
#undef NDEBUG
#define TOML_ASSERT(expr) static_assert(true)
#include <toml++/toml.h>

namespace tpjitter {
namespace {

constexpr std::size_t kMaxFileBytes = 1 << 20;

// Where a value stands: FILE:LINE:COLUMN, or always the same --set.
struct Places {
  std::string source;
  bool positions;
  std::string operator()(const toml::source_region& region) const {
    if (!positions) return source;
    return fmt::format("{}:{}:{}", source, region.begin.line, region.begin.column);
  }
};

const char* toml_type(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::table:
      return "a table";
    case toml::node_type::array:
      return "a list";
    case toml::node_type::string:
      return "a string";
    case toml::node_type::integer:
      return "an integer";
    case toml::node_type::floating_point:
      return "a number with a fraction";
    case toml::node_type::boolean:
      return "a boolean";
    default:
      return "a date or time";
  }
}

// A node as a value of the field's type, without its limits.
std::optional<FieldValue> typed_value(const ScenarioField& field, const toml::node& node) {
  const std::string_view type = field_type(field);
  if (type == "integer" && node.is_integer()) return **node.as_integer();
  if (type == "number" && node.is_integer()) return static_cast<double>(**node.as_integer());
  if (type == "number" && node.is_floating_point()) return **node.as_floating_point();
  if (type == "boolean" && node.is_boolean()) return **node.as_boolean();
  if (type == "string" && node.is_string()) return **node.as_string();
  if (type == "integer or name") {
    if (node.is_integer()) return **node.as_integer();
    if (node.is_string()) return **node.as_string();
  }
  if (type == "integer list" && node.is_array()) {
    std::vector<std::int64_t> list;
    for (const toml::node& element : *node.as_array()) {
      if (!element.is_integer()) return std::nullopt;
      list.push_back(**element.as_integer());
    }
    return list;
  }
  return std::nullopt;
}

PlacedValue read_value(const ScenarioField& field, const toml::node& node, const Places& places) {
  const std::string place = places(node.source());
  const auto fail = [&](const std::string& problem) {
    return scenario_error(place, field.key, problem, field_allowed(field));
  };
  const auto value = typed_value(field, node);
  if (!value) {
    if (node.is_array() && field_type(field) != std::string_view("integer list")) {
      throw fail("a list, where one value belongs");
    }
    throw fail(fmt::format("{}, where {} {} belongs", toml_type(node),
                           *field_type(field) == 'i' ? "an" : "a", field_type(field)));
  }
  if (const auto problem = field_problem(field, *value)) throw fail(*problem);
  return {*value, place};
}

GivenKey read_key(const ScenarioField& field, const toml::node& node, const Places& places) {
  const auto* list = node.as_array();
  if (list != nullptr && list->empty()) {
    throw scenario_error(places(node.source()), field.key, "an empty list", field_allowed(field));
  }
  GivenKey given;
  if (list == nullptr || !field_is_axis(field)) {
    given.values.push_back(read_value(field, node, places));
    return given;
  }
  given.axis = true;
  for (const toml::node& element : *list) {
    given.values.push_back(read_value(field, element, places));
    for (std::size_t i = 0; i + 1 < given.values.size(); ++i) {
      if (given.values[i].value == given.values.back().value) {
        throw scenario_error(given.values.back().place, field.key,
                             field_text(given.values.back().value) + " stands twice in the list",
                             field_allowed(field));
      }
    }
  }
  return given;
}

bool is_table_name(const std::string& name) {
  const auto fields = scenario_fields();
  return std::any_of(fields.begin(), fields.end(), [&](const ScenarioField& field) {
    return std::string_view(field.key).substr(0, name.size() + 1) == name + ".";
  });
}

// Keys and tables that may stand directly in `table` ("" = the top of the file).
std::vector<std::string> names_in(const std::string& table) {
  const std::string prefix = table.empty() ? "" : table + ".";
  std::vector<std::string> names;
  for (const ScenarioField& field : scenario_fields()) {
    const std::string_view key = field.key;
    if (key.substr(0, prefix.size()) != prefix) continue;
    const std::string_view rest = key.substr(prefix.size());
    const std::size_t dot = rest.find('.');
    const std::string name = dot == std::string_view::npos
                                 ? std::string(rest)
                                 : fmt::format("[{}{}]", prefix, rest.substr(0, dot));
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return names;
}

ConfigError unknown_key(const std::string& place, const std::string& table,
                        const std::string& key) {
  std::vector<std::string> keys;
  for (const ScenarioField& field : scenario_fields()) keys.push_back(field.key);
  std::string near = nearest_word(key, keys);
  if (near.empty()) {  // right name, wrong table
    const std::string name = key.substr(key.rfind('.') + 1);
    for (const std::string& candidate : keys) {
      if (nearest_word(name, std::vector{candidate.substr(candidate.rfind('.') + 1)}) != "") {
        near = candidate;
        break;
      }
    }
  }
  const std::string hint = near.empty() ? "" : fmt::format(" (did you mean `{}`?)", near);
  return scenario_error(place, key, "unknown key" + hint,
                        fmt::format("{}", fmt::join(names_in(table), ", ")));
}

struct Entry {
  const ScenarioField* field;
  const toml::node* node;
  toml::source_region key_source;
};

void collect(const toml::table& table, const std::string& prefix, const Places& places,
             std::vector<Entry>& entries) {
  // toml++ keeps keys sorted by name; the first error should be the first in the file.
  std::vector<std::tuple<toml::source_region, std::string, const toml::node*>> keys;
  for (const auto& [key, node] : table) keys.emplace_back(key.source(), key.str(), &node);
  std::sort(keys.begin(), keys.end(), [](const auto& a, const auto& b) {
    return std::get<0>(a).begin < std::get<0>(b).begin;
  });
  for (const auto& [source, name, node] : keys) {
    const std::string key = prefix.empty() ? name : prefix + "." + name;
    const bool plain = name.find('.') == std::string::npos;  // not a quoted "shape.swa"
    if (plain && is_table_name(key)) {
      if (!node->is_table()) {
        throw scenario_error(places(node->source()), key,
                             fmt::format("{}, where a table belongs", toml_type(*node)),
                             fmt::format("{}", fmt::join(names_in(key), ", ")));
      }
      collect(*node->as_table(), key, places, entries);
      continue;
    }
    const ScenarioField* field = plain ? find_scenario_field(key) : nullptr;
    if (field == nullptr) throw unknown_key(places(source), prefix, key);
    entries.push_back({field, node, source});
  }
}

std::string read_file(const std::filesystem::path& file) {
  std::error_code error;
  if (std::filesystem::is_directory(file, error)) {
    throw scenario_error(file.string(), "", "a directory, where a scenario file (TOML) belongs",
                         "");
  }
  std::ifstream stream(file, std::ios::binary);
  if (!stream) {
    throw scenario_error(file.string(), "",
                         fmt::format("the scenario cannot be read: {}", std::strerror(errno)), "");
  }
  std::string text(kMaxFileBytes + 1, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(stream.gcount()));
  if (text.size() > kMaxFileBytes) {
    throw scenario_error(file.string(), "", "larger than 1 MiB: no scenario file", "");
  }
  return text;
}

toml::table parse_toml(const std::string& text, const Places& places, const std::string& key,
                       const std::string& allowed) {
  try {
    return toml::parse(text);
  } catch (const toml::parse_error& error) {
    throw scenario_error(places(error.source()), key,
                         fmt::format("not TOML: {}", error.description()), allowed);
  }
}

// Quotes bare words, so that step.path=aten and step.path=[aten, fused] are TOML.
std::string quote_bare_words(const std::string& text) {
  const auto in_word = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || std::strchr("_.+-", c) != nullptr;
  };
  std::string result;
  for (std::size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (c == '"' || c == '\'') {  // already quoted
      const std::size_t end = text.find(c, i + 1);
      const std::size_t length = end == std::string::npos ? text.size() - i : end + 1 - i;
      result += text.substr(i, length);
      i += length;
      continue;
    }
    if (c == '\0' || !in_word(c)) {
      result += c;
      ++i;
      continue;
    }
    std::size_t end = i;
    while (end < text.size() && text[end] != '\0' && in_word(text[end])) ++end;
    const std::string word = text.substr(i, end - i);
    const bool bare = (std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_') &&
                      word != "true" && word != "false" && word != "inf" && word != "nan";
    result += bare ? '"' + word + '"' : word;
    i = end;
  }
  return result;
}

}  // namespace

GivenKeys read_scenario_toml(const std::filesystem::path& file) {
  const std::string text = read_file(file);
  const Places places{file.string(), true};
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) {
    throw scenario_error(places.source + ":1:1", "summary", "missing, the file is empty",
                         "a TOML file with `summary`, `source` and what differs from the defaults");
  }
  const toml::table table = parse_toml(text, places, "", "TOML, as in scenarios/smoke.toml");
  std::vector<Entry> entries;
  collect(table, "", places, entries);
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.key_source.begin < b.key_source.begin; });
  GivenKeys given;
  for (const Entry& entry : entries) {
    given[entry.field->key] = read_key(*entry.field, *entry.node, places);
  }
  for (const ScenarioField& field : scenario_fields()) {
    if (field.required && given.count(field.key) == 0) {
      throw scenario_error(places.source + ":1:1", field.key, "missing", field_allowed(field));
    }
  }
  return given;
}

void apply_override(const std::string& key_value, GivenKeys& given) {
  const Places places{"--set " + key_value, false};
  const std::size_t equals = key_value.find('=');
  if (equals == std::string::npos) {
    throw scenario_error(places.source, "", "no value is given", "key=value");
  }
  std::string key = key_value.substr(0, equals);
  key.erase(key.find_last_not_of(" \t") + 1);
  key.erase(0, key.find_first_not_of(" \t"));
  if (key.empty()) throw scenario_error(places.source, "", "no key is given", "key=value");
  const ScenarioField* field = find_scenario_field(key);
  if (field == nullptr) {
    const std::size_t dot = key.rfind('.');
    const std::string table = dot == std::string::npos ? "" : key.substr(0, dot);
    throw unknown_key(places.source, is_table_name(table) ? table : "", key);
  }
  const std::string text = key_value.substr(equals + 1);
  const toml::table table =
      parse_toml("value = " + quote_bare_words(text), places, key, field_allowed(*field));
  const toml::node* value = table.get("value");
  if (value == nullptr || table.size() != 1) {
    throw scenario_error(places.source, key, "more than one value", field_allowed(*field));
  }
  given[key] = read_key(*field, *value, places);
}

}  // namespace tpjitter
