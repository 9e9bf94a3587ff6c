#include "harness/contract/dispatch_profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "harness/contract/dispatch_profile_files.h"
#include "harness/contract/error.h"

namespace tpjitter {
namespace {

constexpr const char* kSchema = "tpjitter.dispatch_profile/1";
constexpr std::size_t kKernelKind = 2;  // of kDispatchCallKinds

DispatchProfile::Quantiles quantiles_of(const Json& values, const std::string& place) {
  const auto fail = [&](const char* problem) {
    throw ConfigError(fmt::format("{}: {}; allowed: ascending integers, 1..{}", place, problem,
                                  std::numeric_limits<std::int32_t>::max()));
  };
  if (!values.is_array() || values.empty()) fail("no list of quantiles");
  DispatchProfile::Quantiles quantiles;
  for (const Json& value : values) {
    if (!value.is_number_integer()) fail("a quantile is no integer");
    const auto ns = value.get<std::int64_t>();
    if (ns < 1 || ns > std::numeric_limits<std::int32_t>::max()) fail("out of range");
    if (!quantiles.empty() && ns < quantiles.back()) fail("a quantile is below the one before");
    quantiles.push_back(static_cast<std::int32_t>(ns));
  }
  return quantiles;
}

}  // namespace

std::string DispatchProfile::summary() const {
  const Json measured = document.value("measured", Json::object());
  std::string text;
  for (const char* key : {"gpu", "cpu", "pytorch", "date"}) {
    if (!measured.contains(key) || !measured[key].is_string()) continue;
    text += fmt::format("{}{}{}", text.empty() ? "" : ", ",
                        key == std::string_view("pytorch") ? "PyTorch " : "",
                        measured[key].get<std::string>());
  }
  return text;
}

DispatchProfile dispatch_profile_from_json(const Json& document, std::string_view place) {
  const std::string where(place);
  if (!document.is_object() || !document.contains("schema") || document["schema"] != kSchema ||
      !document.contains("quantiles_ns") || !document["quantiles_ns"].is_object()) {
    throw ConfigError(
        fmt::format("{}: no dispatch profile; allowed: an object with schema \"{}\" "
                    "and quantiles_ns, as scripts/calibrate_dispatch.py writes it",
                    where, kSchema));
  }
  const Json& tables = document["quantiles_ns"];
  for (const auto& [name, values] : tables.items()) {
    if (std::find(kDispatchCallKinds.begin(), kDispatchCallKinds.end(), name) ==
        kDispatchCallKinds.end()) {
      throw ConfigError(fmt::format("{}: quantiles_ns.{}: no kind of call; allowed: {}", where,
                                    name, fmt::join(kDispatchCallKinds, ", ")));
    }
  }
  DispatchProfile profile;
  profile.document = document;
  const auto read = [&](const char* kind) {
    return quantiles_of(tables.value(kind, Json()),
                        fmt::format("{}: quantiles_ns.{}", where, kind));
  };
  const char* kernel = kDispatchCallKinds[kKernelKind];
  for (std::size_t i = 0; i < kDispatchCallKinds.size(); ++i) {
    const char* kind = kDispatchCallKinds[i];
    profile.kinds[i] = read(tables.contains(kind) ? kind : kernel);
  }
  profile.rebuild_permille = quantiles_of(document.value("rebuild_permille", Json::array({1000})),
                                          where + ": rebuild_permille");
  return profile;
}

DispatchProfile built_in_dispatch_profile(const std::string& name) {
  for (const DispatchProfileFile& file : dispatch_profile_files()) {
    if (name != file.name) continue;
    return dispatch_profile_from_json(Json::parse(file.text, nullptr, false),
                                      fmt::format("dispatch profile `{}`", name));
  }
  throw ConfigError(fmt::format(
      "step.op_overhead_ns: profile `{}` has no measured table in this build; measure one with "
      "scripts/calibrate_dispatch.py on a GPU machine with PyTorch, put it in "
      "harness/contract/dispatch_profiles/{}.json and build again, or give a number of ns",
      name, name));
}

}  // namespace tpjitter
