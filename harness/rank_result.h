// What a rank leaves for the launcher besides its rows: checks, controls, overhead, clock pairs.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "harness/backend.h"
#include "harness/contract/run_info.h"

namespace tpjitter {

struct RankCaseResult {
  CaseChecks checks;
  Json operations = nullptr;

  void add(const CaseChecks& more);
};

struct RankResult {
  std::map<int, RankCaseResult> cases;  // by case index
  std::vector<RunControl> controls;
  Json clock_pairs = Json::array();
  Json clock_points = Json::array();  // samples of the device's clock
  Json overhead = Json::object();
  Json noise = Json::array();  // of rank 0: what was asked for and done, by case

  std::string to_text() const;
  static RankResult from_text(std::string_view text);
};

}  // namespace tpjitter
