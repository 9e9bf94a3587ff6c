// The `torch` path's rebuild on the CPU, bit for bit what the op-by-op path must give: every seeded
// case and known answer in each phase that can compute it.
#include <gtest/gtest.h>

#include "harness/torch/torch_rebuild.h"
#include "tests/metadata_cases.h"

namespace tpjitter {
namespace {

using kernels::DecodePhase;
using test::MetadataCase;
using test::MetadataOutputs;

std::vector<MetadataCase> all_cases() {
  std::vector<MetadataCase> cases = test::random_cases();
  for (const test::GoldenCase& golden : test::load_golden_cases()) cases.push_back(golden.inputs);
  return cases;
}

TEST(TorchRebuild, WritesWhatTheOpByOpPathMustInEveryWord) {
  int rebuilds = 0;
  for (const MetadataCase& given : all_cases()) {
    const MetadataCase c = test::fit_for_aten(given);
    for (const DecodePhase phase : test::aten_phases(c)) {
      MetadataOutputs outputs = test::poisoned_outputs(c);
      TorchRebuild rebuild(phase, test::bind_aten(c, outputs));
      rebuild.run();
      ASSERT_EQ(first_difference(outputs, test::aten_outputs(c)), "")
          << c.name << ", phase " << static_cast<int>(phase);
      ++rebuilds;
    }
  }
  EXPECT_GT(rebuilds, 100);
}

TEST(TorchRebuild, SeesNewValuesInTheSameMemory) {
  MetadataCase c = test::fit_for_aten(test::make_random_case(
      {.batch_size = 17, .page_size = 16, .max_seq_pages = 40, .swa = true}, 5));
  MetadataOutputs outputs = test::poisoned_outputs(c);
  TorchRebuild rebuild(DecodePhase::kNormalDecode, test::bind_aten(c, outputs));
  rebuild.run();
  const MetadataOutputs before = outputs;
  MetadataCase next = test::with_new_values(c, 9);
  next = test::fit_for_aten(next);
  std::copy(next.seq_lens.begin(), next.seq_lens.end(), c.seq_lens.begin());
  std::copy(next.seq_lens_cpu.begin(), next.seq_lens_cpu.end(), c.seq_lens_cpu.begin());
  rebuild.run();
  EXPECT_NE(first_difference(outputs, before), "");
}

}  // namespace
}  // namespace tpjitter
