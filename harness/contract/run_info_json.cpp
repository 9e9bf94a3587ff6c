// run.json to and from RunInfo. A reader names the key that is wrong ("cases[3].name"); unknown
// keys are ignored so that a minor addition does not break older readers.
#include <fmt/format.h>

#include <charconv>
#include <limits>

#include "harness/contract/error.h"
#include "harness/contract/run_info.h"

namespace tpjitter {
namespace {

template <class T>
Json nullable(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

// Reads one JSON object and names its keys in errors.
class ObjectReader {
 public:
  ObjectReader(const Json& object, const std::string& file, std::string where)
      : object_(object), file_(file), where_(std::move(where)) {
    if (!object.is_object()) fail("", "an object");
  }

  void read(const char* key, std::string* out, bool required = false) const {
    if (const Json* v = find(key, required)) {
      if (!v->is_string()) fail(key, "a string");
      *out = v->get<std::string>();
    }
  }
  template <class T>
  requires std::is_integral_v<T>
  void read(const char* key, T* out, bool required = false) const {
    if (const Json* v = find(key, required)) *out = integer<T>(*v, key);
  }
  template <class T>
  void read(const char* key, std::optional<T>* out) const {
    const Json* v = find(key, false);
    if (v == nullptr || v->is_null()) return;
    T value{};
    if constexpr (std::is_same_v<T, bool>) {
      if (!v->is_boolean()) fail(key, "true, false or null");
      value = v->get<bool>();
    } else {
      read(key, &value);
    }
    *out = value;
  }
  void read(const char* key, std::vector<std::string>* out) const {
    for_each(key, [&](const Json& v, const std::string& name) {
      if (!v.is_string()) fail(name, "a string");
      out->push_back(v.get<std::string>());
    });
  }
  void read(const char* key, std::vector<std::int64_t>* out) const {
    for_each(key, [&](const Json& v, const std::string& name) {
      out->push_back(integer<std::int64_t>(v, name));
    });
  }
  void read(const char* key, Json* out) const {
    if (const Json* v = find(key, false)) {
      if (!v->is_object() && !v->is_null()) fail(key, "an object or null");
      *out = *v;
    }
  }
  // Calls each(ObjectReader) for the members of an array of objects.
  template <class Each>
  void objects(const char* key, Each each, bool required = false) const {
    if (required) find(key, true);
    for_each(key, [&](const Json& v, const std::string& name) {
      each(ObjectReader(v, file_, where_ + name + "."));
    });
  }
  [[noreturn]] void fail(const std::string& key, const std::string& expected) const {
    std::string name = where_ + key;
    if (name.ends_with('.')) name.pop_back();
    throw RecordError(fmt::format("{}: key '{}': expected {}", file_, name, expected), kExitUsage);
  }

 private:
  const Json* find(const char* key, bool required) const {
    const auto it = object_.find(key);
    if (it != object_.end()) return &*it;
    if (required) {
      throw RecordError(fmt::format("{}: key '{}{}' is missing", file_, where_, key), kExitUsage);
    }
    return nullptr;
  }
  template <class T>
  T integer(const Json& v, const std::string& key) const {
    if (!v.is_number_integer()) fail(key, "an integer");
    const bool large = v.is_number_unsigned() && v.get<std::uint64_t>() > INT64_MAX;
    const bool fits =
        std::is_same_v<T, std::uint64_t>
            ? v.is_number_unsigned()
            : !large && v.get<std::int64_t>() >= std::numeric_limits<T>::min() &&
                  v.get<std::int64_t>() <= static_cast<std::int64_t>(std::numeric_limits<T>::max());
    if (!fits) fail(key, fmt::format("an integer in range, not {}", v.dump()));
    return v.get<T>();
  }
  template <class Each>
  void for_each(const char* key, Each each) const {
    const Json* v = find(key, false);
    if (v == nullptr) return;
    if (!v->is_array()) fail(key, "an array");
    for (std::size_t i = 0; i < v->size(); ++i) each((*v)[i], fmt::format("{}[{}]", key, i));
  }

  const Json& object_;
  const std::string& file_;
  std::string where_;  // "cases[3]."
};

void check_schema(const Json& document, const std::string& file) {
  constexpr std::string_view kPrefix = "tpjitter.run/";
  const auto it = document.is_object() ? document.find("schema") : document.end();
  const std::string schema =
      it != document.end() && it->is_string() ? it->get<std::string>() : std::string();
  int version = 0;
  const char* end = schema.data() + schema.size();
  if (!schema.starts_with(kPrefix) ||
      std::from_chars(schema.data() + kPrefix.size(), end, version).ptr != end || version < 1) {
    throw RecordError(
        fmt::format("{}: key 'schema' is not \"{}\", so it is no tpjitter run", file, kRunSchema),
        kExitUsage);
  }
  if (version > 1) {
    throw RecordError(fmt::format("{}: schema {} is newer than this program, which reads up to {}; "
                                  "use a newer tpjitter",
                                  file, schema, kRunSchema),
                      kExitRunFailed);
  }
}

RunCase read_case(const ObjectReader& in, int place) {
  RunCase c;
  c.index = place;
  in.read("index", &c.index);
  in.read("name", &c.name, true);
  in.read("path", &c.path);
  in.read("values", &c.values);
  in.read("skip_reason", &c.skip_reason);
  in.read("bit_equal", &c.bit_equal);
  in.read("steps_checked", &c.steps_checked);
  in.read("checksum_failures", &c.checksum_failures);
  in.read("operations", &c.operations);
  return c;
}

RunLaunch read_launch(const ObjectReader& in) {
  RunLaunch launch;
  in.read("index", &launch.index);
  in.objects("order", [&](const ObjectReader& entry) {
    RunOrderEntry order;
    entry.read("case_index", &order.case_index, true);
    entry.read("repetition", &order.repetition, true);
    launch.order.push_back(order);
  });
  in.read("status", &launch.status);
  return launch;
}

RunControl read_control(const ObjectReader& in) {
  RunControl control;
  in.read("launch", &control.launch);
  in.read("rank", &control.rank, true);
  in.read("when", &control.when);
  in.read("all_reduce", &control.all_reduce);
  in.read("all_reduce_bytes", &control.all_reduce_bytes);
  in.read("empty_graph_launch_ns", &control.empty_graph_launch_ns);
  in.read("zero_skew_all_reduce_ns", &control.zero_skew_all_reduce_ns);
  in.read("zero_skew_wait_ns", &control.zero_skew_wait_ns);
  return control;
}

RunRank read_rank(const ObjectReader& in) {
  RunRank rank;
  in.read("rank", &rank.rank, true);
  in.read("device", &rank.device);
  in.read("uuid", &rank.uuid);
  in.read("cpu", &rank.cpu);
  in.read("numa_node", &rank.numa_node);
  in.read("rows", &rank.rows);
  in.read("status", &rank.status);
  in.read("ended_at", &rank.ended_at);
  return rank;
}

RunWarning read_warning(const ObjectReader& in) {
  RunWarning warning;
  in.read("code", &warning.code, true);
  in.read("text", &warning.text, true);
  in.read("rank", &warning.rank);
  return warning;
}

Json case_json(const RunCase& c) {
  return Json{{"index", c.index},
              {"name", c.name},
              {"path", c.path},
              {"values", c.values},
              {"skip_reason", nullable(c.skip_reason)},
              {"bit_equal", nullable(c.bit_equal)},
              {"steps_checked", c.steps_checked},
              {"checksum_failures", c.checksum_failures},
              {"operations", c.operations}};
}

Json launch_json(const RunLaunch& launch) {
  Json order = Json::array();
  for (const RunOrderEntry& entry : launch.order) {
    order.push_back({{"case_index", entry.case_index}, {"repetition", entry.repetition}});
  }
  return Json{{"index", launch.index}, {"order", order}, {"status", launch.status}};
}

Json rank_json(const RunRank& rank) {
  return Json{{"rank", rank.rank},
              {"device", rank.device},
              {"uuid", rank.uuid},
              {"cpu", nullable(rank.cpu)},
              {"numa_node", nullable(rank.numa_node)},
              {"rows", rank.rows},
              {"status", rank.status},
              {"ended_at", nullable(rank.ended_at)}};
}

Json control_json(const RunControl& control) {
  return Json{{"launch", control.launch},
              {"rank", control.rank},
              {"when", control.when},
              {"all_reduce", control.all_reduce},
              {"all_reduce_bytes", control.all_reduce_bytes},
              {"empty_graph_launch_ns", control.empty_graph_launch_ns},
              {"zero_skew_all_reduce_ns", control.zero_skew_all_reduce_ns},
              {"zero_skew_wait_ns", control.zero_skew_wait_ns}};
}

Json warning_json(const RunWarning& warning) {
  return Json{{"code", warning.code}, {"text", warning.text}, {"rank", nullable(warning.rank)}};
}

template <class T>
Json array_of(const std::vector<T>& items, Json (*convert)(const T&)) {
  Json array = Json::array();
  for (const T& item : items) array.push_back(convert(item));
  return array;
}

}  // namespace

Json run_info_to_json(const RunInfo& info) {
  return Json{{"schema", kRunSchema},
              {"status", info.status},
              {"status_reason", nullable(info.status_reason)},
              {"backend", info.backend},
              {"world_size", info.world_size},
              {"scenario_name", info.scenario_name},
              {"scenario_file", info.scenario_file},
              {"summary", info.summary},
              {"source", info.source},
              {"overrides", info.overrides},
              {"command", info.command},
              {"seed", info.seed},
              {"cases", array_of(info.cases, case_json)},
              {"launches", array_of(info.launches, launch_json)},
              {"ranks", array_of(info.ranks, rank_json)},
              {"controls", array_of(info.controls, control_json)},
              {"clock", info.clock},
              {"overhead", info.overhead},
              {"model", info.model},
              {"environment", info.environment},
              {"versions", info.versions},
              {"git_revision", info.git_revision},
              {"warnings", array_of(info.warnings, warning_json)}};
}

RunInfo run_info_from_json(const Json& document, const std::string& file) {
  check_schema(document, file);
  const ObjectReader in(document, file, "");
  RunInfo info;
  in.read("status", &info.status, true);
  if (info.status != "complete" && info.status != "incomplete") {
    in.fail("status", "\"complete\" or \"incomplete\"");
  }
  in.read("status_reason", &info.status_reason);
  in.read("backend", &info.backend, true);
  in.read("world_size", &info.world_size, true);
  if (info.world_size < 1 || info.world_size > 4096) in.fail("world_size", "1..4096");
  in.read("scenario_name", &info.scenario_name);
  in.read("scenario_file", &info.scenario_file);
  in.read("summary", &info.summary);
  in.read("source", &info.source);
  in.read("overrides", &info.overrides);
  in.read("command", &info.command);
  in.read("seed", &info.seed);
  in.objects(
      "cases",
      [&](const ObjectReader& c) {
        info.cases.push_back(read_case(c, static_cast<int>(info.cases.size())));
      },
      true);
  for (std::size_t i = 0; i < info.cases.size(); ++i) {
    if (info.cases[i].index != static_cast<int>(i)) {
      in.fail(fmt::format("cases[{}].index", i), fmt::format("{}, its place in the array", i));
    }
  }
  in.objects("launches", [&](const ObjectReader& l) { info.launches.push_back(read_launch(l)); });
  in.objects("ranks", [&](const ObjectReader& r) { info.ranks.push_back(read_rank(r)); });
  in.objects("controls", [&](const ObjectReader& c) { info.controls.push_back(read_control(c)); });
  in.read("clock", &info.clock);
  in.read("overhead", &info.overhead);
  in.read("model", &info.model);
  in.read("environment", &info.environment);
  in.read("versions", &info.versions);
  in.read("git_revision", &info.git_revision);
  in.objects("warnings", [&](const ObjectReader& w) { info.warnings.push_back(read_warning(w)); });
  return info;
}

}  // namespace tpjitter
