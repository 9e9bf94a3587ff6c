#include "reports/record_consistency.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "harness/contract/scenario_fields.h"

namespace tpjitter {
namespace {

constexpr const char* kModelledDevice = "modelled device";

// A list of `object` that holds something; null: there is none.
const Json* filled_list(const Json& object, const char* key) {
  if (!object.is_object() || !object.contains(key)) return nullptr;
  const Json& list = object[key];
  return list.is_array() && !list.empty() ? &list : nullptr;
}

bool has_type(const ScenarioField& field, const Json& value) {
  const std::string_view type = field_type(field);
  if (type == "integer") return value.is_number_integer();
  if (type == "number") return value.is_number();
  if (type == "boolean") return value.is_boolean();
  if (type == "string") return value.is_string();
  if (type == "integer or name") return value.is_number_integer() || value.is_string();
  return value.is_array() && std::all_of(value.begin(), value.end(),
                                         [](const Json& v) { return v.is_number_integer(); });
}

// Keys of another version, and ranges, are its own affair.
std::optional<std::string> values_problem(const Json& values) {
  if (!values.is_object()) return std::nullopt;  // null, of a record made by hand
  for (const ScenarioField& field : scenario_fields()) {
    const std::string_view key(field.key);
    const std::size_t dot = key.find('.');
    if (!field_in_case(field) || dot == std::string_view::npos) continue;
    const auto table = values.find(std::string(key.substr(0, dot)));
    if (table == values.end() || table->is_null()) continue;
    if (!table->is_object()) return fmt::format("`values.{}` is not an object", key.substr(0, dot));
    const auto value = table->find(std::string(key.substr(dot + 1)));
    if (value == table->end() || value->is_null() || has_type(field, *value)) continue;
    return fmt::format("`values.{}` is not of type {}", key, field_type(field));
  }
  return std::nullopt;
}

std::size_t rows_of(const Run& run, std::size_t case_index) {
  std::size_t rows = 0;
  for (const RankRows& rank : run.ranks) {
    if (case_index < rank.rows_of_case.size()) rows += rank.rows_of_case[case_index].size();
  }
  return rows;
}

std::optional<std::string> case_problem(const Run& run, const RunCase& c) {
  if (c.steps_checked < 0) return fmt::format("`steps_checked` is {}", c.steps_checked);
  if (c.checksum_failures < 0) return fmt::format("`checksum_failures` is {}", c.checksum_failures);
  if (c.skip_reason) {
    const std::size_t rows = rows_of(run, static_cast<std::size_t>(c.index));
    if (rows > 0) return fmt::format("it was skipped, but {} rows are of it; left out", rows);
  }
  return values_problem(c.values);
}

bool first_row_is_modelled(const RankRows& rank) {
  const auto row = std::find_if(rank.rows.begin(), rank.rows.end(),
                                [](const PhaseRow& r) { return r.sequence > 0; });
  return row != rank.rows.end() && (row->flags & kFlagModelledDevice) != 0;
}

}  // namespace

std::vector<std::string> proofs_of_gpus(const RunInfo& info) {
  std::vector<std::string> proofs;
  const auto rank = std::find_if(info.ranks.begin(), info.ranks.end(),
                                 [](const RunRank& r) { return r.uuid.starts_with("GPU-"); });
  if (rank != info.ranks.end()) {
    proofs.push_back(fmt::format("rank {} ran on {}", rank->rank, rank->uuid));
  }
  if (const Json* points = filled_list(info.clock, "points")) {
    proofs.push_back(
        fmt::format("clock.points holds {} comparisons with clocks of GPUs", points->size()));
  }
  return proofs;
}

std::vector<std::string> proofs_of_modelled_device(const Run& run) {
  std::vector<std::string> proofs;
  const RunInfo& info = run.info;
  if (info.model.is_object() && !info.model.empty()) {
    proofs.push_back("`model` holds constants of the modelled device");
  }
  const auto named = std::find_if(info.ranks.begin(), info.ranks.end(),
                                  [](const RunRank& r) { return r.device == kModelledDevice; });
  if (named != info.ranks.end()) {
    proofs.push_back(fmt::format("the device of rank {} is \"{}\"", named->rank, kModelledDevice));
  }
  for (std::size_t rank = 0; rank < run.ranks.size(); ++rank) {
    if (!first_row_is_modelled(run.ranks[rank])) continue;
    proofs.push_back(
        fmt::format("rows of rank{}.phases.npy carry the flag of the modelled device", rank));
    break;
  }
  return proofs;
}

bool keeps_host_clock(const RunInfo& info) {
  return info.backend == "host" && proofs_of_gpus(info).empty();
}

void check_cases(Run* run) {
  for (const RunCase& c : run->info.cases) {
    if (const auto problem = case_problem(*run, c)) {
      run->problems.push_back(
          {"damaged_case", fmt::format("run.json: case {}: {}", c.name, *problem), std::nullopt});
    }
  }
}

void check_backend(Run* run) {
  const std::string& backend = run->info.backend;
  if (backend != "host" && backend != "cuda") {
    run->problems.push_back(
        {"unknown_backend",
         fmt::format("run.json says backend \"{}\"; there are host and cuda", backend),
         std::nullopt});
  }
  std::vector<std::string> proofs;
  if (backend == "host") proofs = proofs_of_gpus(run->info);
  if (backend == "cuda") proofs = proofs_of_modelled_device(*run);
  if (proofs.empty()) return;
  run->problems.push_back(
      {"contradicting_backend",
       fmt::format("run.json says backend {}, but {}: it was edited, or files of two runs were "
                   "mixed",
                   backend, fmt::join(proofs, "; ")),
       std::nullopt});
}

}  // namespace tpjitter
