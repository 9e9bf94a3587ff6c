// The checksum of the decode body: every live value counts, nothing else does.
#include <gtest/gtest.h>

#include <set>
#include <utility>
#include <vector>

#include "tests/decode_body_tables.h"

namespace tpjitter::kernels {
namespace {

using test::shape_of;
using test::Tables;

std::uint64_t checksum(Tables tables, bool swa = true, std::int64_t step = 7) {
  return reference_step_checksum(tables.args(), shape_of(swa), step);
}

template <class Change>
std::uint64_t changed(Change change) {
  Tables tables;
  change(tables);
  return checksum(tables);
}

TEST(DecodeBodyChecksum, ChangesWithEveryLiveValue) {
  std::set<std::uint64_t> seen{checksum(Tables{})};
  std::size_t changes = 1;
  const auto expect_new = [&](std::uint64_t sum, const char* what) {
    EXPECT_TRUE(seen.insert(sum).second) << what;
    ++changes;
  };
  for (const int row : {0, 1, 2}) {
    expect_new(changed([&](Tables& t) { t.cu_seqlens_k[row + 1] += 1; }), "cu_seqlens_k");
    expect_new(changed([&](Tables& t) { t.cu_seqlens_q[row + 1] += 1; }), "cu_seqlens_q");
    expect_new(changed([&](Tables& t) { t.cache_seqlens[row] -= 1; }), "cache_seqlens");
    expect_new(changed([&](Tables& t) { t.out_cache_loc[row] += 1; }), "out_cache_loc");
    expect_new(changed([&](Tables& t) { t.swa_out_cache_loc[row] += 2; }), "swa_out_cache_loc");
  }
  for (const int live : {0, 1, 3, 4, 6}) {
    expect_new(changed([&](Tables& t) { t.page_table[live] += 1; }), "page_table");
    expect_new(changed([&](Tables& t) { t.swa_page_table[live] += 1; }), "swa_page_table");
  }
  EXPECT_EQ(seen.size(), changes);
}

TEST(DecodeBodyChecksum, DoesNotDependOnDeadColumns) {
  for (const int dead : {2, 5, 7, 8}) {
    EXPECT_EQ(changed([&](Tables& t) { t.page_table[dead] += 1; }), checksum(Tables{}));
    EXPECT_EQ(changed([&](Tables& t) { t.swa_page_table[dead] += 1; }), checksum(Tables{}));
  }
}

TEST(DecodeBodyChecksum, NoticesTwoPagesThatTradePlaces) {
  EXPECT_NE(changed([](Tables& t) { std::swap(t.page_table[0], t.page_table[1]); }),
            checksum(Tables{}));
  EXPECT_NE(changed([](Tables& t) { std::swap(t.page_table[0], t.page_table[3]); }),
            checksum(Tables{}));
}

TEST(DecodeBodyChecksum, ReadsTheSwaTablesInSlidingLayersOnly) {
  Tables other;
  other.swa_page_table[0] += 1;
  other.swa_out_cache_loc[0] += 1;
  EXPECT_EQ(checksum(other, /*swa=*/false), checksum(Tables{}, /*swa=*/false));
  EXPECT_NE(checksum(other, /*swa=*/true), checksum(Tables{}, /*swa=*/true));
}

TEST(DecodeBodyChecksum, OfThePreviousStepsMetadataDiffers) {
  // What a decode step changes at least: lengths grow by 1 to 4, the new token has a new slot.
  Tables next;
  std::int32_t total = 0;
  for (int row = 0; row < 3; ++row) {
    next.cache_seqlens[row] += accepted_tokens(1, 7, row);
    next.cu_seqlens_k[row + 1] = total += next.cache_seqlens[row];
    next.out_cache_loc[row] += accepted_tokens(1, 7, row);
  }
  EXPECT_NE(checksum(next, true, 8), checksum(Tables{}, true, 8));
}

TEST(DecodeBodyChecksum, CountsEveryAllReduceOfEveryStep) {
  Tables tables;
  DecodeBodyShape shape = shape_of(true);
  const std::uint64_t sum = reference_step_checksum(tables.args(), shape, 7);
  EXPECT_NE(reference_step_checksum(tables.args(), shape, 8), sum);
  shape.world_size = 3;
  EXPECT_NE(reference_step_checksum(tables.args(), shape, 7), sum);
  shape.world_size = 2;
  shape.all_reduce_elements += 8;
  EXPECT_NE(reference_step_checksum(tables.args(), shape, 7), sum);
}

TEST(DecodeBodyChecksum, SumsAllReduceValuesElementByElement) {
  const DecodeMetadataArgs nothing;  // a batch of 0: only the all-reduces are left
  DecodeBodyShape shape;
  shape.world_size = 3;
  shape.all_reduce_elements = 11;  // not a multiple of the 4 that values repeat after
  std::uint64_t expected = 0;
  for (int n = 0; n < kAllReducesPerLayer; ++n) {
    for (int i = 0; i < 11; ++i) {
      for (int rank = 0; rank < 3; ++rank) {
        expected += fold_weight(n) * static_cast<std::uint64_t>(all_reduce_value(rank, 9, n, i));
      }
    }
  }
  EXPECT_EQ(reference_step_checksum(nothing, shape, 9), expected);
}

// Two forwards of a graph, the second with other tables.
struct TwoForwards {
  Tables first, second;
  int layers = 2;  // of each
  bool swa = true;
  TwoForwards() { second.page_table[0] = 40; }
  std::uint64_t checksum() {
    const GraphForward forwards[] = {{first.args(), layers, swa}, {second.args(), layers, swa}};
    return reference_graph_checksum(forwards, shape_of(swa), 7);
  }
};

TEST(GraphChecksum, OfOneForwardIsTheStepsOwn) {
  Tables tables;
  const DecodeBodyShape shape = shape_of(true);
  const GraphForward forward{tables.args(), shape.layers, shape.swa};
  EXPECT_EQ(reference_graph_checksum({&forward, 1}, shape, 7),
            reference_step_checksum(tables.args(), shape, 7));
}

TEST(GraphChecksum, OfAForwardCutInTwoIsThatOfTheWhole) {
  // Layers, their parity and all-reduce ordinals count on over the forwards.
  Tables tables;
  const DecodeBodyShape shape = shape_of(true);
  for (int cut = 0; cut <= shape.layers; ++cut) {
    const GraphForward forwards[] = {{tables.args(), cut, true},
                                     {tables.args(), shape.layers - cut, true}};
    EXPECT_EQ(reference_graph_checksum(forwards, shape, 7), checksum(tables)) << cut;
  }
}

TEST(GraphChecksum, ChangesWithTheTablesOfEveryForward) {
  std::set<std::uint64_t> seen{TwoForwards().checksum()};
  TwoForwards changed_first;
  changed_first.first.cache_seqlens[1] -= 1;
  EXPECT_TRUE(seen.insert(changed_first.checksum()).second);
  TwoForwards changed_second;
  changed_second.second.cache_seqlens[1] -= 1;
  EXPECT_TRUE(seen.insert(changed_second.checksum()).second);
}

TEST(GraphChecksum, NoticesForwardsThatTradeTables) {
  TwoForwards traded;
  std::swap(traded.first, traded.second);
  EXPECT_NE(traded.checksum(), TwoForwards().checksum());
}

TEST(GraphChecksum, ReadsTheSwaTablesByTheLayerOfTheGraph) {
  // One layer each: the graph's layer 0 slides, its layer 1 does not.
  TwoForwards graph;
  graph.layers = 1;
  const std::uint64_t sum = graph.checksum();
  graph.first.page_table[0] += 1;
  graph.second.swa_page_table[0] += 1;
  EXPECT_EQ(graph.checksum(), sum);
  graph.first.swa_page_table[0] += 1;
  EXPECT_NE(graph.checksum(), sum);
}

TEST(AllReduceValues, StayExactInBf16ForSixteenRanks) {
  for (std::int64_t step = 0; step < 64; ++step) {
    for (int i = 0; i < 4; ++i) {
      int sum = 0;
      for (int rank = 0; rank < 16; ++rank) {
        const int value = all_reduce_value(rank, step, 3, i);
        EXPECT_GE(value, 0);
        sum += value;
      }
      EXPECT_LE(sum, 256);
    }
  }
}

TEST(AllReduceValues, OfTheNextStepRankAndOrdinalDiffer) {
  EXPECT_NE(all_reduce_value(0, 5, 2, 0), all_reduce_value(0, 6, 2, 0));
  EXPECT_NE(all_reduce_value(0, 5, 2, 0), all_reduce_value(1, 5, 2, 0));
  EXPECT_NE(all_reduce_value(0, 5, 2, 0), all_reduce_value(0, 5, 3, 0));
}

TEST(AcceptedTokens, AreOneToFourAndUseAllFour) {
  std::set<std::int32_t> seen;
  for (std::int64_t step = 0; step < 100; ++step) seen.insert(accepted_tokens(3, step, 2));
  EXPECT_EQ(seen, (std::set<std::int32_t>{1, 2, 3, 4}));
}

}  // namespace
}  // namespace tpjitter::kernels
