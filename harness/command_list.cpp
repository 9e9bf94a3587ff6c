// `tpjitter list`: what there is of each kind. Add a kind: a row in kLists.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "harness/compositions/composition.h"
#include "harness/contract/error.h"
#include "harness/contract/metadata_paths.h"
#include "harness/contract/scenario.h"
#include "harness/list_ops.h"
#include "harness/shipped_scenarios.h"
#include "harness/subcommands.h"
#include "harness/torch/torch_path.h"
#include "reports/html_sections.h"
#include "reports/metrics.h"

namespace tpjitter {
namespace {

Json list_scenarios() {
  Json list = Json::array();
  for (const std::filesystem::path& file : scenario_files()) {
    const Scenario scenario = load_scenario(file, {});
    list.push_back({{"name", scenario.name},
                    {"summary", scenario.summary},
                    {"file", file.string()},
                    {"world_size", scenario.world_size},
                    {"cases", scenario.cases.size()}});
  }
  return list;
}

Json list_paths() {
  Json list = Json::array();
  for (const MetadataPath& path : kMetadataPaths) {
    list.push_back({{"name", path.name},
                    {"summary", path.summary},
                    {"source", path.source},
                    {"host_work", path.host_work}});
    if (path.needs_torch && !kHasTorchPath) {
      list.back()["not_built"] = kHowToGetTorchPath;
    }
  }
  return list;
}

Json list_compositions() {
  Json list = Json::array();
  for (const Composition& composition : compositions()) {
    Json modes = Json::array();
    if (composition.decode) modes.push_back("decode");
    if (composition.speculative) modes.push_back("speculative");
    list.push_back({{"name", composition.name},
                    {"summary", composition.summary},
                    {"source", composition.source},
                    {"modes", std::move(modes)}});
  }
  return list;
}

Json list_metrics() {
  Json list = Json::array();
  for (const Metric& metric : metrics()) {
    list.push_back({{"name", metric.key}, {"unit", metric.unit}, {"summary", metric.summary}});
  }
  return list;
}

// Of the HTML page, in order.
Json list_sections() {
  Json list = Json::array();
  for (const HtmlSection& section : html_sections()) {
    list.push_back(
        {{"name", section.key}, {"title", section.title}, {"summary", section.question}});
  }
  return list;
}

struct List {
  const char* what;
  Json (*make)();  // null: `ops`, which has flags of its own
};

constexpr List kLists[] = {
    {"scenarios", list_scenarios},       {"paths", list_paths},
    {"compositions", list_compositions}, {"ops", nullptr},
    {"metrics", list_metrics},           {"sections", list_sections},
};

// One line an entry, or the JSON array.
int print_list(const Json& list, bool json) {
  if (json) {
    fmt::print("{}\n", list.dump(2));
    return kExitPass;
  }
  for (const Json& entry : list) {
    fmt::print("{:<32} {}\n", entry.at("name").get<std::string>(),
               entry.at("summary").get<std::string>());
  }
  return kExitPass;
}

struct ListRequest {
  std::string what;
  bool json = false;
  std::string ops_path, ops_phase;
  bool ops_swa = false;
};

int list_command(const ListRequest& request) {
  const List& list = *std::find_if(std::begin(kLists), std::end(kLists),
                                   [&](const List& row) { return row.what == request.what; });
  if (list.make == nullptr) {
    return print_ops(list_ops(request.ops_path, request.ops_phase, request.ops_swa), request.json);
  }
  if (!request.ops_path.empty() || !request.ops_phase.empty() || request.ops_swa) {
    throw ConfigError(fmt::format("list {}: --path, --phase and --swa go with `ops`", list.what));
  }
  return print_list(list.make(), request.json);
}

}  // namespace

void add_list_command(CLI::App& app, int& exit_code) {
  std::vector<std::string> names;
  std::string text;
  for (const List& list : kLists) {
    names.emplace_back(list.what);
    text += (text.empty() ? "" : ", ") + names.back();
  }
  auto request = std::make_shared<ListRequest>();
  CLI::App* list = app.add_subcommand("list", "What there is: " + text);
  list->add_option("what", request->what)->required()->check(CLI::IsMember(names));
  list->add_flag("--json", request->json, "As JSON");
  list->add_option("--path", request->ops_path, "Metadata path, for `list ops`");
  list->add_option("--phase", request->ops_phase, "Serving phase, for `list ops`");
  list->add_flag("--swa", request->ops_swa, "With sliding-window attention, for `list ops`");
  list->callback([request, &exit_code] { exit_code = list_command(*request); });
}

}  // namespace tpjitter
