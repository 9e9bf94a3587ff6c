// The cases of every composition that tests run: small, with sliding windows (but for draft trees)
// and padded rows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "harness/compositions/composition.h"
#include "harness/contract/scenario.h"

namespace tpjitter::test {

// Those of every build.
inline std::vector<const char*> paths() {
  std::vector<const char*> names;
  for (const MetadataPath& path : kMetadataPaths) {
    if (!path.needs_torch) names.push_back(path.name);
  }
  return names;
}

inline CaseConfig small_case(const std::string& composition, const std::string& mode,
                             const std::string& path) {
  CaseConfig config;
  config.composition = composition;
  config.mode = mode;
  config.path = path;
  config.seq_lens_sync = true;
  config.swa = composition != kTreeComposition;
  config.batch_size = 5;
  config.capture_batch_sizes = {4, 5, 8};
  config.context_tokens = 300;
  config.page_size = 16;
  config.hidden_size = 64;
  config.layers = 5;
  config.layer_us = 1;
  if (composition == kTreeComposition) {
    config.topk = 4;
    config.draft_tokens = 8;
  }
  return config;
}

// Every case that has a meaning and is built, of all compositions and modes.
inline std::vector<CaseConfig> all_cases(const std::string& path) {
  std::vector<CaseConfig> cases;
  for (const Composition& composition : compositions()) {
    for (const char* mode : {"decode", "speculative"}) {
      for (const char* extend : {"strided", "cumsum"}) {
        CaseConfig config = small_case(composition.name, mode, path);
        config.draft_extend = extend;
        if (!composition_problem(config).empty() || !composition_gap(config).empty()) continue;
        if (config.mode == "decode" && config.draft_extend == "cumsum") continue;
        cases.push_back(config);
      }
    }
  }
  return cases;
}

inline std::string name_of(const CaseConfig& config) {
  return config.composition + ", " + config.mode + ", " + config.path + ", " + config.draft_extend;
}

}  // namespace tpjitter::test
