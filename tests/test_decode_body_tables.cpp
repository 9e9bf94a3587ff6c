// The checksum over every kind of attention tables: each live value of each table counts, in the
// layers that read it, and nothing else does.
#include <gtest/gtest.h>

#include <cstddef>
#include <set>
#include <vector>

#include "tests/decode_body_tables.h"

namespace tpjitter::kernels {
namespace {

using test::AllTables;
using test::shape_of;
using test::Tables;

constexpr TableKind kKinds[] = {TableKind::kPaged, TableKind::kKvIndices, TableKind::kHybridLinear,
                                TableKind::kTwoBatch, TableKind::kTopk};

// Every value of an array changed in turn: how many of them change the checksum.
template <class Array>
int live_values(TableKind kind, Array AllTables::*array, bool swa = true) {
  int live = 0;
  const std::uint64_t before = AllTables().checksum(kind, swa);
  const std::size_t size = (AllTables().*array).size();
  for (std::size_t i = 0; i < size; ++i) {
    AllTables changed_tables;
    (changed_tables.*array)[i] += 1;
    live += changed_tables.checksum(kind, swa) != before ? 1 : 0;
  }
  return live;
}

TEST(TablesChecksum, GivesEveryKindAnotherSumAndPagedTheOldOne) {
  std::set<std::uint64_t> seen;
  for (const TableKind kind : kKinds) seen.insert(AllTables().checksum(kind));
  EXPECT_EQ(seen.size(), 5u);
  Tables tables;
  DecodeBodyShape shape = shape_of(true);
  shape.layers = 4;
  EXPECT_EQ(AllTables().checksum(TableKind::kPaged),
            reference_step_checksum(tables.args(), shape, 7));
}

TEST(TablesChecksum, OfPagedTablesIsTheOneOfEarlierVersions) {
  // Records keep checksums: this one was computed before other kinds of tables existed.
  Tables tables;
  EXPECT_EQ(reference_step_checksum(tables.args(), shape_of(true), 7), 15356617619752532133ull);
}

TEST(TablesChecksum, ReadsAllLiveEntriesOfTheIndexLists) {
  constexpr TableKind kKv = TableKind::kKvIndices;
  EXPECT_EQ(live_values(kKv, &AllTables::kv_indices), 14);  // not the one past the last sum
  EXPECT_EQ(live_values(kKv, &AllTables::swa_kv_indices), 5);
  EXPECT_EQ(live_values(kKv, &AllTables::kv_indptr), 3);  // entry 0 is preset
  EXPECT_EQ(live_values(kKv, &AllTables::swa_kv_indptr), 3);
  EXPECT_EQ(live_values(kKv, &AllTables::qo_indptr), 3);
  EXPECT_EQ(live_values(kKv, &AllTables::swa_qo_indptr), 3);
  EXPECT_EQ(live_values(kKv, &AllTables::last_page_len), 3);
  EXPECT_EQ(live_values(kKv, &AllTables::swa_last_page_len), 3);
  EXPECT_EQ(live_values(kKv, &AllTables::swa_kv_indices, /*swa=*/false), 0);
  EXPECT_EQ(live_values(kKv, &AllTables::state_indices), 0);
}

TEST(TablesChecksum, ReadsIndexListsNoFurtherThanTheirCapacity) {
  AllTables wild;
  wild.kv_indptr[3] = 1 << 30;  // a broken sum must not make the reader run away
  EXPECT_NE(wild.checksum(TableKind::kKvIndices), AllTables().checksum(TableKind::kKvIndices));
}

TEST(TablesChecksum, ReadsLinearStateInThreeLayersOfFour) {
  constexpr TableKind kLinear = TableKind::kHybridLinear;
  EXPECT_EQ(live_values(kLinear, &AllTables::state_indices), 3);
  EXPECT_EQ(live_values(kLinear, &AllTables::query_start_loc), 4);  // written whole, entry 0 too
  AllTables other;
  other.metadata.page_table[0] += 1;
  EXPECT_NE(other.checksum(kLinear), AllTables().checksum(kLinear));
  other = AllTables();
  other.metadata.swa_page_table[0] += 1;  // such a model has no window
  EXPECT_EQ(other.checksum(kLinear), AllTables().checksum(kLinear));
  int full = 0;
  for (int layer = 0; layer < 48; ++layer) {
    full += layer_kind(kLinear, true, layer) == LayerKind::kFull ? 1 : 0;
  }
  EXPECT_EQ(full, 12);
  EXPECT_EQ(layer_kind(kLinear, false, 3), LayerKind::kFull);
}

TEST(TablesChecksum, ReadsBothHalvesOfATwoBatchForward) {
  constexpr TableKind kTwo = TableKind::kTwoBatch;
  const std::uint64_t before = AllTables().checksum(kTwo);
  AllTables other;
  other.left.page_table[0] += 1;
  EXPECT_NE(other.checksum(kTwo), before);
  other = AllTables();
  other.right.swa_out_cache_loc[1] += 1;
  EXPECT_NE(other.checksum(kTwo), before);
  other = AllTables();
  other.left.page_table[3] += 1;  // a row that the left half does not have
  EXPECT_EQ(other.checksum(kTwo), before);
  other = AllTables();
  other.metadata.page_table[0] += 1;  // the parent's tables are nobody's
  EXPECT_EQ(other.checksum(kTwo), before);
  other = AllTables();
  other.left.out_cache_loc[0] = 8;
  other.right.out_cache_loc[0] = 19;
  AllTables traded;
  traded.left.out_cache_loc[0] = 19;
  traded.right.out_cache_loc[0] = 8;
  EXPECT_NE(other.checksum(kTwo), traded.checksum(kTwo)) << "the halves have tags of their own";
}

TEST(TablesChecksum, ReadsBothObjectsOfATree) {
  constexpr TableKind kTree = TableKind::kTopk;
  EXPECT_EQ(live_values(kTree, &AllTables::expand_table), 10);  // two rows have one token
  EXPECT_EQ(live_values(kTree, &AllTables::expand_cache_seqlens), 6);
  EXPECT_EQ(live_values(kTree, &AllTables::expand_cu_k), 6);
  EXPECT_EQ(live_values(kTree, &AllTables::expand_cu_q), 6);
  AllTables other;
  other.metadata.page_table[0] += 1;
  EXPECT_NE(other.checksum(kTree), AllTables().checksum(kTree));
}

TEST(TwoBatchHalves, AreRowsOfTheParentWithLocationsOfTheirOwnAndTablesOfTheirOwn) {
  Tables parent_tables, child_tables;
  const std::vector<std::int64_t> requests{7, 8, 9}, q_lens{1, 2, 3};
  const std::vector<std::int32_t> lens{5, 8, 1};
  DecodeMetadataArgs parent = parent_tables.args();
  parent.req_pool_indices = requests.data();
  parent.seq_lens = lens.data();
  parent.q_lens = q_lens.data();
  parent.q_lens_type = IntType::kInt64;
  parent.num_out_tokens = 5;  // two tokens a row; the last row's second one is padding
  EXPECT_EQ(batch_half(3, 0).rows, 1);
  EXPECT_EQ(batch_half(3, 1).first_row, 1);
  EXPECT_EQ(batch_half(3, 1).rows, 2);
  EXPECT_EQ(batch_half(1, 0).rows, 0);
  const DecodeMetadataArgs right =
      half_args(parent, child_tables.args(), batch_half(3, 1), /*tokens_per_row=*/2);
  EXPECT_EQ(*static_cast<const std::int64_t*>(right.req_pool_indices), 8);
  EXPECT_EQ(*static_cast<const std::int32_t*>(right.seq_lens), 8);
  EXPECT_EQ(*static_cast<const std::int64_t*>(right.q_lens), 2);
  EXPECT_EQ(right.out_cache_loc, parent.out_cache_loc + 2);
  EXPECT_EQ(right.num_out_tokens, 3);
  EXPECT_EQ(right.batch_size, 2);
  EXPECT_EQ(right.cache_seqlens, child_tables.cache_seqlens.data());
  EXPECT_EQ(right.page_size, parent.page_size);
  const DecodeMetadataArgs left =
      half_args(parent, child_tables.args(), batch_half(3, 0), /*tokens_per_row=*/2);
  EXPECT_EQ(left.num_out_tokens, 2);
  parent.num_out_tokens = 1;
  EXPECT_EQ(half_args(parent, child_tables.args(), batch_half(3, 1), 2).num_out_tokens, 0);
}

}  // namespace
}  // namespace tpjitter::kernels
