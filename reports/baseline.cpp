#include "reports/baseline.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "harness/contract/error.h"
#include "harness/contract/scenario.h"
#include "reports/baseline_checks.h"

namespace tpjitter {
namespace {

constexpr std::uintmax_t kMaxFileBytes = 64u << 20;

bool is_int64(const Json& value) {
  return value.is_number_integer() &&
         !(value.is_number_unsigned() && value.get<std::uint64_t>() > INT64_MAX);
}

template <class T>
Json optional_json(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

Json distribution_json(const Distribution& d) {
  return {{"n", d.n},
          {"negative", d.negative},
          {"p50", optional_json(d.p50)},
          {"p90", optional_json(d.p90)},
          {"p99", optional_json(d.p99)},
          {"p999", optional_json(d.p999)},
          {"min", optional_json(d.min)},
          {"max", optional_json(d.max)},
          {"mean", optional_json(d.mean)}};
}

// Reads keys of one object; each error says where it is.
class Reader {
 public:
  Reader(const Json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object.is_object()) throw fail("is not an object");
  }

  const Json& at(const char* key) const {
    const auto found = object_.find(key);
    if (found == object_.end()) throw fail(fmt::format("has no key `{}`", key));
    return *found;
  }
  bool has(const char* key) const { return object_.contains(key); }
  std::int64_t integer(const char* key) const {
    const Json& value = at(key);
    if (!is_int64(value)) throw wrong(key, "a 64-bit integer");
    return value.get<std::int64_t>();
  }
  std::uint64_t count(const char* key) const {
    const std::int64_t value = integer(key);
    if (value < 0) throw wrong(key, "a count");
    return static_cast<std::uint64_t>(value);
  }
  std::string text(const char* key) const {
    const Json& value = at(key);
    if (!value.is_string()) throw wrong(key, "a string");
    return value.get<std::string>();
  }
  std::optional<std::int64_t> optional_integer(const char* key) const {
    if (at(key).is_null()) return std::nullopt;
    return integer(key);
  }
  std::optional<double> optional_number(const char* key) const {
    const Json& value = at(key);
    if (value.is_null()) return std::nullopt;
    if (!value.is_number()) throw wrong(key, "a number");
    return value.get<double>();
  }
  std::optional<double> optional_duration(const char* key) const {
    const std::optional<double> value = optional_number(key);
    if (value && !(*value >= 0)) throw wrong(key, "a duration: 0 or more");
    return value;
  }
  const Json& object(const char* key) const {
    if (!at(key).is_object()) throw wrong(key, "an object");
    return at(key);
  }
  const Json& array(const char* key) const {
    if (!at(key).is_array()) throw wrong(key, "a list");
    return at(key);
  }
  RecordError wrong(const char* key, const char* what) const {
    return fail(fmt::format("key `{}` is not {}", key, what));
  }
  RecordError fail(const std::string& problem) const {
    return RecordError(fmt::format("{}: {}", where_, problem), kExitUsage);
  }
  std::string inside(const std::string& key) const { return where_ + ": " + key; }

 private:
  const Json& object_;
  std::string where_;
};

Distribution read_distribution(const Reader& in, const Metric& metric) {
  Distribution d;
  d.n = in.count("n");
  d.negative = in.count("negative");
  d.p50 = in.optional_integer("p50");
  d.p90 = in.optional_integer("p90");
  d.p99 = in.optional_integer("p99");
  d.p999 = in.optional_integer("p999");
  d.min = in.optional_integer("min");
  d.max = in.optional_integer("max");
  d.mean = in.optional_number("mean");
  if (const auto problem = distribution_problem(d, may_be_negative(metric))) {
    throw in.fail(*problem);
  }
  return d;
}

std::vector<std::int64_t> read_integers(const Reader& in, const char* key) {
  std::vector<std::int64_t> values;
  for (const Json& value : in.array(key)) {
    if (!is_int64(value)) throw in.wrong(key, "a list of 64-bit integers");
    values.push_back(value.get<std::int64_t>());
  }
  return values;
}

Json phases_json(const LaunchCase& c) {
  Json phases = Json::object();
  for (const auto& [phase, values] : c.phases) {
    for (std::size_t m = 0; m < kNumMetrics; ++m) {
      if (values[m].n > 0) phases[phase][metrics()[m].key] = distribution_json(values[m]);
    }
  }
  return phases;
}

Json case_json(const LaunchCase& c) {
  Json metrics_json = Json::object();
  for (std::size_t m = 0; m < kNumMetrics; ++m) {
    if (!metrics()[m].case_level) continue;
    Json metric = distribution_json(c.metrics[m]);
    metric["block_p50"] = c.block_p50[m];
    metrics_json[metrics()[m].key] = metric;
  }
  return {{"positions", c.positions}, {"metrics", metrics_json}, {"phases", phases_json(c)}};
}

LaunchCase read_case(const Reader& in) {
  LaunchCase c;
  for (const std::int64_t position : read_integers(in, "positions")) {
    if (position < 0 || position > INT32_MAX) throw in.wrong("positions", "a list of positions");
    c.positions.push_back(static_cast<int>(position));
  }
  const Json& all = in.object("metrics");
  for (std::size_t m = 0; m < kNumMetrics; ++m) {
    const auto found = all.find(metrics()[m].key);
    if (found == all.end()) continue;  // of a version that did not have it
    const Reader metric(*found, in.inside(metrics()[m].key));
    c.metrics[m] = read_distribution(metric, metrics()[m]);
    c.block_p50[m] = read_integers(metric, "block_p50");
    if (const auto problem = block_problem(c.block_p50[m], may_be_negative(metrics()[m]))) {
      throw metric.fail(*problem);
    }
  }
  if (!in.has("phases")) return c;  // a version that did not keep them apart
  for (const auto& [phase, values] : in.object("phases").items()) {
    const Reader by_metric(values, in.inside(phase));
    for (std::size_t m = 0; m < kNumMetrics; ++m) {
      const char* key = metrics()[m].key;
      if (!by_metric.has(key)) continue;
      const Reader metric(by_metric.at(key), by_metric.inside(key));
      c.phases[phase][m] = read_distribution(metric, metrics()[m]);
    }
  }
  return c;
}

Json launch_json(const LaunchResult& launch) {
  const LaunchControl& control = launch.control;
  Json cases = Json::object();
  for (const auto& [name, c] : launch.cases) cases[name] = case_json(c);
  return {{"source", launch.source},
          {"launch", launch.launch},
          {"git_revision", launch.git_revision},
          {"began_ns", optional_json(launch.began_ns)},
          {"controls",
           {{"empty_graph_launch_before_ns", optional_json(control.empty_graph_launch_before)},
            {"empty_graph_launch_after_ns", optional_json(control.empty_graph_launch_after)},
            {"zero_skew_before_ns", optional_json(control.zero_skew_before)},
            {"zero_skew_after_ns", optional_json(control.zero_skew_after)}}},
          {"cases", cases}};
}

LaunchResult read_launch(const Reader& in) {
  LaunchResult launch;
  launch.source = in.text("source");
  const std::int64_t number = in.integer("launch");
  if (number < 0 || number > INT32_MAX) throw in.wrong("launch", "a launch from 0 on");
  launch.launch = static_cast<int>(number);
  if (in.has("git_revision")) launch.git_revision = in.text("git_revision");
  launch.began_ns = in.optional_integer("began_ns");
  const Reader control(in.at("controls"), in.inside("controls"));
  launch.control.empty_graph_launch_before =
      control.optional_duration("empty_graph_launch_before_ns");
  launch.control.empty_graph_launch_after =
      control.optional_duration("empty_graph_launch_after_ns");
  launch.control.zero_skew_before = control.optional_duration("zero_skew_before_ns");
  launch.control.zero_skew_after = control.optional_duration("zero_skew_after_ns");
  for (const auto& [name, c] : in.object("cases").items()) {
    launch.cases[name] = read_case(Reader(c, in.inside(name)));
  }
  return launch;
}

}  // namespace

Json launch_set_to_json(const LaunchSet& set) {
  Json values = Json::object();
  for (const auto& [name, keys] : set.case_values) values[name] = keys;
  Json launches = Json::array();
  for (const LaunchResult& launch : set.launches) launches.push_back(launch_json(launch));
  return {{"schema", kBaselineSchema},
          {"scenario", set.scenario},
          {"backend", set.backend},
          {"world_size", set.world_size},
          {"git_revision", set.git_revision},
          {"clock_bound_ns", optional_json(set.clock_bound_ns)},
          {"rows", set.rows},
          {"environment", set.environment},
          {"versions", set.versions},
          {"cases", values},
          {"launches", launches}};
}

LaunchSet launch_set_from_json(const Json& document, const std::string& file) {
  const Reader in(document, file);
  if (in.text("schema") != kBaselineSchema) {
    throw in.fail(
        fmt::format("schema is \"{}\", where \"{}\" belongs", in.text("schema"), kBaselineSchema));
  }
  LaunchSet set;
  set.scenario = in.text("scenario");
  set.backend = in.text("backend");
  const std::int64_t world_size = in.integer("world_size");
  if (world_size < 1 || world_size > kMaxWorldSize) throw in.wrong("world_size", "a world size");
  set.world_size = static_cast<int>(world_size);
  set.git_revision = in.text("git_revision");
  if (in.has("clock_bound_ns")) set.clock_bound_ns = in.optional_integer("clock_bound_ns");
  if (set.clock_bound_ns && *set.clock_bound_ns < 0) {
    throw in.wrong("clock_bound_ns", "a bound: 0 or more");
  }
  set.rows = in.count("rows");
  set.environment = in.object("environment");
  set.versions = in.object("versions");
  for (const auto& [name, values] : in.object("cases").items()) {
    try {  // as read_launches does: a key that an older file does not have gets its default
      set.case_values[name] = case_to_json(case_from_json(values));
    } catch (const std::exception& problem) {
      throw in.fail(fmt::format("case {}: {}", name, problem.what()));
    }
  }
  const Json& launches = in.array("launches");
  for (std::size_t i = 0; i < launches.size(); ++i) {
    set.launches.push_back(
        read_launch(Reader(launches[i], in.inside(fmt::format("launches[{}]", i)))));
    LaunchResult& launch = set.launches.back();
    if (launch.git_revision.empty()) launch.git_revision = set.git_revision;  // an older file
    for (std::size_t k = 0; k < i; ++k) {
      if (set.launches[k].source != launch.source || set.launches[k].launch != launch.launch)
        continue;
      throw in.fail(
          fmt::format("launches[{}] and [{}] are the same launch {} of {}: a launch counts "
                      "once",
                      k, i, launch.launch, launch.source));
    }
  }
  if (set.launches.empty()) throw in.fail("holds no launches");
  return set;
}

LaunchSet launch_set_from_text(const std::string& text, const std::string& file) {
  Json document;
  try {
    document = parse_strict_json(text, file);
  } catch (const RecordError& problem) {
    throw RecordError(problem.what(), kExitUsage);
  }
  return launch_set_from_json(document, file);
}

LaunchSet read_side(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return read_launches(path);
  if (std::filesystem::file_size(path, error) > kMaxFileBytes) {
    throw RecordError(fmt::format("{}: is too large for a baseline", path.string()), kExitUsage);
  }
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  if (!stream) throw RecordError(fmt::format("{}: cannot be read", path.string()), kExitUsage);
  return launch_set_from_text(text.str(), path.string());
}

LaunchSet read_sides(const std::vector<std::filesystem::path>& paths) {
  LaunchSet side = read_side(paths.front());
  for (std::size_t i = 1; i < paths.size(); ++i) merge(&side, read_side(paths[i]));
  return side;
}

}  // namespace tpjitter
