// The reference of the metadata rebuild against the known answers made by the original kernel, and
// against the few rules that those cases do not reach.
#include <gtest/gtest.h>

#include "tests/metadata_cases.h"

namespace tpjitter {
namespace {

using kernels::DecodeMetadataArgs;
using kernels::PageColumns;
using test::MetadataCase;
using test::MetadataOutputs;

// The golden arrays have no stride padding; the padding must stay poisoned.
void expect_table(const std::vector<std::int32_t>& table, std::int64_t stride, std::int64_t width,
                  const std::vector<std::int32_t>& golden) {
  for (std::size_t i = 0; i < table.size(); ++i) {
    const std::int64_t row = static_cast<std::int64_t>(i) / stride;
    const std::int64_t column = static_cast<std::int64_t>(i) % stride;
    const std::int32_t expected =
        column < width ? golden[static_cast<std::size_t>(row * width + column)] : test::kPoison;
    ASSERT_EQ(table[i], expected) << "row " << row << ", column " << column;
  }
}

TEST(MetadataReference, GivesTheKnownAnswersOfTheOriginalKernel) {
  const auto cases = test::load_golden_cases();
  ASSERT_EQ(cases.size(), 19u);
  for (const test::GoldenCase& golden : cases) {
    SCOPED_TRACE(golden.inputs.name);
    const DecodeMetadataArgs& s = golden.inputs.scalars;
    const MetadataOutputs outputs = reference_outputs(golden.inputs, PageColumns::kAll);
    EXPECT_EQ(outputs.cache_seqlens, golden.cache_seqlens);
    EXPECT_EQ(outputs.cu_seqlens_k, golden.cu_seqlens_k);
    EXPECT_EQ(outputs.cu_seqlens_q, golden.cu_seqlens_q);
    EXPECT_EQ(outputs.swa_out_cache_loc, golden.swa_out_cache_loc);
    expect_table(outputs.page_table, s.page_table_stride, s.max_seq_pages, golden.page_table);
    expect_table(outputs.swa_page_table, s.swa_page_table_stride, s.max_seq_pages,
                 golden.swa_page_table);
  }
}

TEST(MetadataReference, LiveColumnsEqualAllColumnsAndTheRestIsUntouched) {
  for (const MetadataCase& c : test::random_cases()) {
    SCOPED_TRACE(c.name);
    const DecodeMetadataArgs& s = c.scalars;
    const MetadataOutputs all = reference_outputs(c, PageColumns::kAll);
    MetadataOutputs expected = all;
    for (std::int64_t row = 0; row < s.batch_size; ++row) {
      const std::int64_t live = (all.cache_seqlens[row] + s.page_size - 1) / s.page_size;
      for (std::int64_t column = live; column < s.max_seq_pages; ++column) {
        expected.page_table[row * s.page_table_stride + column] = test::kPoison;
        if (c.has_swa()) {
          expected.swa_page_table[row * s.swa_page_table_stride + column] = test::kPoison;
        }
      }
    }
    ASSERT_EQ(first_difference(reference_outputs(c, PageColumns::kLive), expected), "");
  }
}

TEST(MetadataReference, AnEmptyBatchWritesNothing) {
  MetadataCase c = test::make_random_case({.batch_size = 0, .swa = true}, 5);
  ASSERT_GT(c.scalars.swa_out_len, 0);
  EXPECT_EQ(first_difference(reference_outputs(c, PageColumns::kAll), poisoned_outputs(c)), "");
}

TEST(MetadataReference, NegativeSlotsTruncateToPageZeroAndAreMinusOneInTheSwaTable) {
  MetadataCase c = test::make_random_case({.batch_size = 1, .page_size = 64, .swa = true}, 6);
  for (std::int32_t& slot : c.req_to_token) slot = -1;
  MetadataOutputs outputs = reference_outputs(c, PageColumns::kAll);
  EXPECT_EQ(outputs.page_table[0], 0);
  EXPECT_EQ(outputs.swa_page_table[0], -1);
  for (std::int32_t& slot : c.req_to_token) slot = -130;
  outputs = reference_outputs(c, PageColumns::kAll);
  EXPECT_EQ(outputs.page_table[0], -2);
  EXPECT_EQ(outputs.swa_page_table[0], -1);
}

TEST(MetadataReference, SwaOutKeepsTheSentinelAndZeroesPastTheLivePrefix) {
  MetadataCase c = test::make_random_case({.batch_size = 2, .swa = true}, 7);
  c.scalars.swa_out_len = 4;
  c.scalars.num_out_tokens = 2;
  c.has_out_cache_loc = true;
  c.out_cache_loc = {-1, 3};
  c.full_to_swa[3] = 77;
  EXPECT_EQ(reference_outputs(c, PageColumns::kAll).swa_out_cache_loc,
            (std::vector<std::int64_t>{-1, 77, 0, 0}));
  c.has_out_cache_loc = false;
  EXPECT_EQ(reference_outputs(c, PageColumns::kAll).swa_out_cache_loc,
            (std::vector<std::int64_t>{0, 0, 0, 0}));
}

}  // namespace
}  // namespace tpjitter
