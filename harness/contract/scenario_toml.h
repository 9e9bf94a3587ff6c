// A scenario file and the --set overrides as values of known keys, each with its place in the
// source. Types, ranges and axes are checked here; what keys mean together, in scenario.cpp.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "harness/contract/scenario_fields.h"

namespace tpjitter {

struct PlacedValue {
  FieldValue value;
  std::string place;  // "FILE:LINE:COLUMN" or "--set KEY=VALUE"
};

struct GivenKey {
  std::vector<PlacedValue> values;  // one, or those of an axis
  bool axis = false;                // given as a list
};

using GivenKeys = std::map<std::string, GivenKey, std::less<>>;  // by key

GivenKeys read_scenario_toml(const std::filesystem::path& file);
void apply_override(const std::string& key_value, GivenKeys& given);  // replaces what the file says

}  // namespace tpjitter
