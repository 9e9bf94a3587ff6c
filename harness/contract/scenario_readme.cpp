// scenarios/README.md: made from the field table and the scenario files, so that it cannot differ
// from what the program accepts.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "harness/contract/metadata_paths.h"
#include "harness/contract/scenario_fields.h"

namespace tpjitter {
namespace {

constexpr const char* kHead = R"(# Scenarios

This file is generated: `build/bin/test_scenario --update-readme` writes it, a test compares it.

A scenario is a TOML file: what each rank does in a step, and how often. Keys that are left out
have their default. A list value is an axis: the scenario's cases are the cross product of its
axes, named by their labels (`fused/bs8`); without axes the one case is named by its path.
`tpjitter plan scenarios/smoke.toml` prints the cases.

`--set key=value` changes a key for one run, and may make an axis of it: the value is TOML, and a
bare word is a string.

```
tpjitter run scenarios/smoke.toml --set sampling.steps=1000 --set 'shape.batch_size=[1, 8, 64]'
tpjitter run scenarios/smoke.toml --set step.path=fused --set world_size=4
```

To add a scenario, add a file: `summary` and `source` (where the sizes come from) are required.

## Files

| file | ranks | cases | summary | source |
|---|---|---|---|---|
)";

constexpr const char* kKeysHead = R"(
## Keys

`label` is how a value of an axis stands in case names; a key without one cannot be an axis.
)";

constexpr const char* kTableHead = R"(
| key | type | default | allowed | label | meaning |
|---|---|---|---|---|---|
)";

constexpr const char* kPathsHead = R"(
## Metadata paths

The values of `step.path`. Host work is that of one rebuild in normal decode.

| path | what | host work |
|---|---|---|
)";

std::string cell(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '|') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

std::string label_example(const ScenarioField& field) {
  if (!field_is_axis(field)) return "";
  const FieldValue value = get_field(field, CaseConfig{});
  if (!std::holds_alternative<bool>(value)) return fmt::format("`{}`", field_label(field, value));
  return fmt::format("`{}`, `{}`", field_label(field, true), field_label(field, false));
}

std::string table_of(const ScenarioField& field) {
  const std::string_view key = field.key;
  return std::string(key.substr(0, key.find('.') == std::string_view::npos ? 0 : key.find('.')));
}

std::string field_row(const ScenarioField& field) {
  const std::string default_text =
      field.required ? "required" : fmt::format("`{}`", field_default(field));
  return fmt::format("| `{}` | {} | {} | {} | {} | {} |\n", field.key, field_type(field),
                     default_text, cell(field_allowed(field)), label_example(field),
                     cell(field.help));
}

}  // namespace

std::string scenario_readme(const std::filesystem::path& directory) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.path().extension() == ".toml") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());

  std::string text = kHead;
  for (const std::filesystem::path& file : files) {
    const Scenario scenario = load_scenario(file, {});
    text +=
        fmt::format("| `{}` | {} | {} | {} | {} |\n", file.filename().string(), scenario.world_size,
                    scenario.cases.size(), cell(scenario.summary), cell(scenario.source));
  }
  text += kKeysHead;
  std::string table = "none yet";
  for (const ScenarioField& field : scenario_fields()) {
    if (table_of(field) != table) {
      table = table_of(field);
      text += table.empty() ? "\n### Top of the file\n" : fmt::format("\n### `[{}]`\n", table);
      text += kTableHead;
    }
    text += field_row(field);
  }
  text += kPathsHead;
  for (const MetadataPath& path : kMetadataPaths) {
    text += fmt::format("| `{}` | {} | {} |\n", path.name, path.summary, path.host_work);
  }
  return text;
}

}  // namespace tpjitter
