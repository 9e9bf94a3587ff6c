#include "harness/contract/thresholds.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fnmatch.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <sstream>

#include "harness/contract/error.h"
#include "harness/contract/phase_row.h"
#include "harness/contract/scenario_fields.h"

// See scenario_toml.cpp.
#undef NDEBUG
#define TOML_ASSERT(expr) static_assert(true)
#include <toml++/toml.h>

namespace tpjitter {
namespace {

constexpr std::size_t kMaxFileBytes = 1 << 20;
constexpr std::size_t kRequiredByDefault = 6;
constexpr double kDefaultFloorNs = 2'000, kDefaultFloorHostNs = 20'000;
constexpr double kMaxRelativeLimit = 2;
constexpr std::array<const char*, 6> kStatisticNames = {"p50", "p90", "p99", "p999", "max", "mean"};

std::string place_of(const std::string& source, const toml::node& node) {
  return fmt::format("{}:{}:{}", source, node.source().begin.line, node.source().begin.column);
}

// Reads the keys of one [[rule]] or [[waiver]]; every key must be asked for, the rest is unknown.
class Entry {
 public:
  Entry(const toml::table& table, const std::string& source) : table_(table), source_(source) {}

  std::string place() const { return place_of(source_, table_); }

  std::optional<std::string> text(const char* key) {
    const toml::node* node = find(key);
    if (node == nullptr) return std::nullopt;
    if (!node->is_string() || node->as_string()->get().empty()) {
      throw fail(*node, key, "is not a text", "a non-empty string");
    }
    return node->as_string()->get();
  }
  std::optional<double> number(const char* key) {
    const toml::node* node = find(key);
    if (node == nullptr) return std::nullopt;
    const std::optional<double> value = node->value<double>();
    if (!(node->is_integer() || node->is_floating_point()) || !value) {
      throw fail(*node, key, "is not a number", "a number from 0");
    }
    if (!std::isfinite(*value) || *value < 0) {
      throw fail(*node, key, fmt::format("{} is out of range", *value), "a number from 0");
    }
    return value;
  }
  std::optional<bool> boolean(const char* key) {
    const toml::node* node = find(key);
    if (node == nullptr) return std::nullopt;
    if (!node->is_boolean()) throw fail(*node, key, "is not a boolean", "true, false");
    return node->as_boolean()->get();
  }
  std::string choice(const char* key, const std::vector<std::string>& allowed,
                     std::optional<std::string> fallback) {
    const std::optional<std::string> value = text(key);
    if (!value && fallback) return *fallback;
    if (!value) throw missing(key);
    for (const std::string& name : allowed) {
      if (*value == name) return *value;
    }
    const std::string near = nearest_word(*value, allowed);
    throw fail(*find(key), key,
               near.empty()
                   ? fmt::format("\"{}\" is not one of them", *value)
                   : fmt::format("\"{}\" is not one of them (did you mean \"{}\"?)", *value, near),
               fmt::format("{}", fmt::join(allowed, ", ")));
  }
  ConfigError missing(const char* key) const {
    return scenario_error(place(), key, "is missing", "");
  }
  ConfigError fail(const toml::node& node, const char* key, const std::string& problem,
                   const std::string& allowed) const {
    return scenario_error(place_of(source_, node), key, problem, allowed);
  }
  const toml::node* find(const char* key) {
    asked_.emplace_back(key);
    return table_.get(key);
  }
  void refuse_unknown() const {
    for (const auto& [key, node] : table_) {
      const std::string name(key.str());
      if (std::find(asked_.begin(), asked_.end(), name) != asked_.end()) continue;
      throw scenario_error(place_of(source_, node), name, "unknown key",
                           fmt::format("{}", fmt::join(asked_, ", ")));
    }
  }

 private:
  const toml::table& table_;
  const std::string& source_;
  std::vector<std::string> asked_;
};

bool is_date(const std::string& text) {
  int year = 0, month = 0, day = 0, used = 0;
  if (std::sscanf(text.c_str(), "%4d-%2d-%2d%n", &year, &month, &day, &used) != 3) return false;
  return used == 10 && text.size() == 10 &&
         std::chrono::year_month_day(std::chrono::year(year),
                                     std::chrono::month(static_cast<unsigned>(month)),
                                     std::chrono::day(static_cast<unsigned>(day)))
             .ok();
}

std::vector<std::string> phase_names() {
  std::vector<std::string> names{"*"};
  for (int phase = 0; phase < kNumPhases; ++phase) {
    names.emplace_back(phase_name(static_cast<Phase>(phase)));
  }
  return names;
}

ThresholdRule read_rule(Entry entry, const std::vector<std::string>& metrics) {
  ThresholdRule rule;
  rule.place = entry.place();
  rule.metric = entry.choice("metric", metrics, std::nullopt);
  rule.statistic =
      entry.choice("statistic", {kStatisticNames.begin(), kStatisticNames.end()}, rule.statistic);
  rule.cases = entry.text("cases").value_or(rule.cases);
  rule.phase = entry.choice("phase", phase_names(), std::string());
  rule.lower_is_better = entry.choice("direction", {"lower_is_better", "higher_is_better"},
                                      "lower_is_better") == "lower_is_better";
  const std::optional<double> relative = entry.number("relative_limit");
  rule.relative_limit = relative.value_or(rule.relative_limit);
  if (rule.relative_limit > kMaxRelativeLimit) {
    throw entry.fail(*entry.find("relative_limit"), "relative_limit",
                     fmt::format("{} is a share of the baseline: 0.10 is 10 %", *relative),
                     fmt::format("0..{}", kMaxRelativeLimit));
  }
  rule.absolute_floor_ns = entry.number("absolute_floor_ns");
  rule.noise_ns = entry.number("noise_ns").value_or(rule.noise_ns);
  rule.max_ns = entry.number("max_ns");
  rule.ratio_to_path = entry.text("ratio_to_path");
  rule.max_ratio = entry.number("max_ratio");
  rule.required = entry.boolean("required").value_or(rule.required);
  if (rule.ratio_to_path && !rule.max_ratio) throw entry.missing("max_ratio");
  if (rule.max_ratio && !rule.ratio_to_path) throw entry.missing("ratio_to_path");
  entry.refuse_unknown();
  if ((rule.max_ns || rule.ratio_to_path) &&
      (relative || rule.absolute_floor_ns || rule.noise_ns > 0)) {
    throw scenario_error(rule.place, "",
                         "limits of a change stand beside a budget or a ratio, which is no change",
                         "two rules: one with relative_limit, one with max_ns or ratio_to_path");
  }
  return rule;
}

ThresholdWaiver read_waiver(Entry entry, const std::vector<std::string>& metrics) {
  ThresholdWaiver waiver;
  waiver.place = entry.place();
  waiver.metric = entry.choice("metric", metrics, std::nullopt);
  waiver.cases = entry.text("cases").value_or(waiver.cases);
  const auto reason = entry.text("reason");
  if (!reason) throw entry.missing("reason");
  waiver.reason = *reason;
  const toml::node* expires = entry.find("expires");
  if (expires == nullptr) throw entry.missing("expires");
  if (expires->is_date()) {
    const toml::date& date = expires->as_date()->get();
    waiver.expires = fmt::format("{:04}-{:02}-{:02}", date.year, date.month, date.day);
  } else if (expires->is_string()) {
    waiver.expires = expires->as_string()->get();
  }
  if (!is_date(waiver.expires)) {
    throw entry.fail(*expires, "expires", "is not a date", "YYYY-MM-DD");
  }
  entry.refuse_unknown();
  return waiver;
}

void for_each_entry(const toml::table& document, const std::string& source, const char* key,
                    const std::function<void(const toml::table&)>& read) {
  const toml::node* node = document.get(key);
  if (node == nullptr) return;
  if (!node->is_array_of_tables()) {
    throw scenario_error(place_of(source, *node), key, "is not a list of tables",
                         fmt::format("[[{}]]", key));
  }
  for (const toml::node& element : *node->as_array()) read(*element.as_table());
}

}  // namespace

double default_floor_ns(const std::string& backend) {
  return backend == "host" ? kDefaultFloorHostNs : kDefaultFloorNs;
}

Thresholds default_thresholds(const std::vector<std::string>& metrics, const std::string& backend) {
  Thresholds thresholds;
  for (const std::string& metric : metrics) {
    ThresholdRule rule;
    rule.metric = metric;
    rule.absolute_floor_ns = default_floor_ns(backend);
    rule.required = thresholds.rules.size() < kRequiredByDefault;
    rule.place = "built in";
    thresholds.rules.push_back(rule);
  }
  return thresholds;
}

Thresholds parse_thresholds(const std::string& text, const std::string& source,
                            const std::vector<std::string>& metrics) {
  toml::table document;
  try {
    document = toml::parse(text, source);
  } catch (const toml::parse_error& error) {
    throw scenario_error(
        fmt::format("{}:{}:{}", source, error.source().begin.line, error.source().begin.column), "",
        std::string(error.description()), "");
  }
  Thresholds thresholds;
  thresholds.file = source;
  const toml::node* schema = document.get("schema");
  if (schema == nullptr || !schema->is_string() ||
      schema->as_string()->get() != kThresholdsSchema) {
    throw scenario_error(schema == nullptr ? source + ":1:1" : place_of(source, *schema), "schema",
                         schema == nullptr ? "is missing" : "is another schema",
                         fmt::format("\"{}\"", kThresholdsSchema));
  }
  for (const auto& [key, node] : document) {
    const std::string name(key.str());
    if (name == "schema" || name == "rule" || name == "waiver") continue;
    throw scenario_error(place_of(source, node), name, "unknown key",
                         "schema, [[rule]], [[waiver]]");
  }
  for_each_entry(document, source, "rule", [&](const toml::table& table) {
    thresholds.rules.push_back(read_rule(Entry(table, source), metrics));
  });
  for_each_entry(document, source, "waiver", [&](const toml::table& table) {
    thresholds.waivers.push_back(read_waiver(Entry(table, source), metrics));
  });
  if (thresholds.rules.empty()) {
    throw scenario_error(source + ":1:1", "rule", "there is none, so nothing would be checked",
                         "at least one [[rule]]");
  }
  return thresholds;
}

Thresholds load_thresholds(const std::filesystem::path& file,
                           const std::vector<std::string>& metrics) {
  std::ifstream stream(file, std::ios::binary);
  std::error_code error;
  if (!stream || std::filesystem::is_directory(file, error)) {
    throw ConfigError(fmt::format("{}: cannot be read: {}", file.string(),
                                  stream ? "is a directory" : std::strerror(errno)));
  }
  std::string text(kMaxFileBytes + 1, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(stream.gcount()));
  if (text.size() > kMaxFileBytes) {
    throw ConfigError(fmt::format("{}: is larger than {} bytes: no thresholds file", file.string(),
                                  kMaxFileBytes));
  }
  return parse_thresholds(text, file.string(), metrics);
}

std::string thresholds_text(const Thresholds& thresholds, const std::string& comment) {
  std::ostringstream out;
  std::istringstream lines(comment);
  for (std::string line; std::getline(lines, line);) out << "# " << line << "\n";
  out << fmt::format("schema = \"{}\"\n", kThresholdsSchema);
  const auto quoted = [](const std::string& text) {
    std::ostringstream stream;
    stream << toml::value<std::string>(text);
    return stream.str();
  };
  for (const ThresholdRule& rule : thresholds.rules) {
    out << "\n[[rule]]\n";
    out << fmt::format("metric = {}\nstatistic = {}\ncases = {}\n", quoted(rule.metric),
                       quoted(rule.statistic), quoted(rule.cases));
    if (!rule.phase.empty()) out << fmt::format("phase = {}\n", quoted(rule.phase));
    if (!rule.lower_is_better) out << "direction = \"higher_is_better\"\n";
    const bool is_change = !rule.max_ns && !rule.ratio_to_path;
    if (is_change) out << fmt::format("relative_limit = {}\n", rule.relative_limit);
    if (is_change && rule.absolute_floor_ns) {
      out << fmt::format("absolute_floor_ns = {}\n", *rule.absolute_floor_ns);
    }
    if (is_change && rule.noise_ns > 0) out << fmt::format("noise_ns = {}\n", rule.noise_ns);
    if (rule.max_ns) out << fmt::format("max_ns = {}\n", *rule.max_ns);
    if (rule.ratio_to_path) {
      out << fmt::format("ratio_to_path = {}\nmax_ratio = {}\n", quoted(*rule.ratio_to_path),
                         *rule.max_ratio);
    }
    out << fmt::format("required = {}\n", rule.required);
  }
  for (const ThresholdWaiver& waiver : thresholds.waivers) {
    out << fmt::format("\n[[waiver]]\nmetric = {}\ncases = {}\nreason = {}\nexpires = {}\n",
                       quoted(waiver.metric), quoted(waiver.cases), quoted(waiver.reason),
                       quoted(waiver.expires));
  }
  return out.str();
}

bool glob_matches(const std::string& glob, const std::string& name) {
  return fnmatch(glob.c_str(), name.c_str(), 0) == 0;
}

}  // namespace tpjitter
