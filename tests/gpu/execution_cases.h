// The small cases of the tests of execution on a GPU: three layers, sliding windows, a batch that is
// captured as it is and in a larger size.
#pragma once

#include <string>

#include "harness/contract/scenario.h"

namespace tpjitter::test {

inline constexpr const char* kPaths[] = {"aten", "page_table_kernel", "glue_graph", "fused",
                                         "fused_in_graph"};

inline CaseConfig execution_case(const std::string& path, const std::string& mode) {
  CaseConfig config;
  config.path = path;
  config.mode = mode;
  config.swa = config.draft_swa = true;
  config.batch_size = 5;
  config.capture_batch_sizes = {5, 8};
  config.context_tokens = 500;
  config.page_size = 16;
  config.hidden_size = 256;
  config.layers = 3;
  config.layer_us = 5;
  config.block_steps = 50;
  config.seq_lens_sync = path == "aten" && mode == "speculative";
  return config;
}

}  // namespace tpjitter::test
