// Keys that change nothing in a case: as an axis they are refused, elsewhere they are said.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "harness/contract/key_effects.h"
#include "harness/plan.h"
#include "tests/scenario_files.h"

namespace tpjitter {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

class KeyEffectsTest : public ScenarioTest {
 protected:
  Plan plan_of(const std::string& text, const std::string& glob = "") {
    return make_plan(load(text), find_backend("host"), glob);
  }
};

TEST_F(KeyEffectsTest, AnAxisThatNoCaseTakesIsRefusedWhereItStands) {
  EXPECT_EQ(
      error_in("[step]\ndraft_steps = [3, 5]\n"),
      "4:16: key `step.draft_steps`: its values make equal cases, for it changes nothing where "
      "step.mode is \"decode\"; allowed: one value");
  const struct {
    const char* text;
    const char* reason;
  } axes[] = {
      {"[step]\ntopk = [1, 2]\n", "step.mode is \"decode\""},
      {"[step]\ndraft_tokens = [4, 8]\n", "step.mode is \"decode\""},
      {"[step]\ndraft_swa = [false, true]\n", "step.mode is \"decode\""},
      {"[step]\ndraft_extend = [\"strided\", \"cumsum\"]\n", "step.mode is \"decode\""},
      {"[step]\ngraph_layout = [\"merged\", \"per_pass\"]\n", "step.mode is \"decode\""},
      {"[shape]\ndraft_layers = [1, 2]\n", "step.mode is \"decode\""},
      {"[step]\nrun_ahead_depth = [1, 2]\n", "step.loop is \"coupled\""},
      {"[step]\npage_columns = [\"all\", \"live\"]\npath = \"aten\"\n",
       "aten does not run the fused kernel"},
      {"[step]\nop_overhead_ns = [0, 500]\n", "fused makes no dispatcher calls"},
      {"[step]\nop_overhead_ns = [0, 500]\npath = \"torch\"\n", "PyTorch's own"},
      {"[inject]\nwhere = [\"none\", \"before_launch\"]\n", "inject.delay_us is 0"},
      {"[inject]\ndelay_us = [0, 10]\n", "inject.where is \"none\""},
      {"[inject]\npattern = [\"fixed\", \"random\"]\n", "inject.where is \"none\""},
      {"[inject]\nevery_steps = [1, 2]\n", "inject.where is \"none\""},
      {"[inject]\nvictim = [0, 1]\nwhere = \"gpu\"\npattern = \"random\"\n",
       "inject.pattern is \"random\""},
      {"[noise]\nthreads = [1, 2]\n", "noise.kind is \"none\""},
  };
  for (const auto& axis : axes) EXPECT_THAT(error_in(axis.text), HasSubstr(axis.reason));
  EXPECT_THAT(error_of(write(kRequired), {"noise.threads=[1, 2]"}),
              StartsWith("--set noise.threads=[1, 2]"));
}

TEST_F(KeyEffectsTest, AnAxisThatOneCaseTakesIsNot) {
  EXPECT_EQ(
      load("[step]\nmode = [\"decode\", \"speculative\"]\ndraft_steps = [3, 5]\n").cases.size(),
      4u);
  EXPECT_EQ(load("[step]\nloop = \"run_ahead\"\nrun_ahead_depth = [1, 2]\n").cases.size(), 2u);
  EXPECT_EQ(load("[inject]\nwhere = [\"none\", \"gpu\"]\n").cases.size(), 2u);
  EXPECT_EQ(load("[inject]\nwhere = [\"none\", \"before_launch\"]\ndelay_us = 5\n").cases.size(),
            2u);
  EXPECT_EQ(load("[noise]\nkind = [\"none\", \"busy_threads\"]\nthreads = [1, 2]\n").cases.size(),
            4u);
  // One value of a list, and a key that is no axis, make no equal cases.
  EXPECT_EQ(load("[step]\ndraft_steps = [5]\ndraft_tokens = 8\n").cases.size(), 1u);
}

TEST_F(KeyEffectsTest, CasesThatDoNotTakeAnAxisAreNamed) {
  EXPECT_THAT(
      plan_of(
          "[step]\npath = [\"page_table_kernel\", \"fused\"]\npage_columns = [\"all\", \"live\"]\n")
          .notes,
      ElementsAre(
          "step.page_columns changes nothing in cases page_table_kernel/columns_all, "
          "page_table_kernel/columns_live: page_table_kernel does not run the fused kernel"));
  EXPECT_THAT(plan_of("[step]\npath = [\"aten\", \"fused\"]\n").notes, IsEmpty());
  const Plan many = plan_of(
      "[step]\nmode = [\"decode\", \"speculative\"]\npath=\"fused\"\ndraft_steps = [2, 3, 4, 5, 6, "
      "7]\n");
  EXPECT_THAT(many.notes, ElementsAre(HasSubstr("decode/steps_5 and 2 more: step.mode is")));
}

// Of the cases that are run; also of a single one, as when paths are measured one run each.
TEST_F(KeyEffectsTest, CasesThatOverheadOfDispatcherCallsDoesNotReachAreNamed) {
  for (const char* value : {"500", "\"python\""}) {
    const std::string key = std::string("op_overhead_ns = ") + value + "\n";
    for (const std::string path : {"fused", "fused_in_graph", "glue_graph"}) {
      EXPECT_THAT(plan_of("[step]\npath = \"" + path + "\"\n" + key).notes,
                  ElementsAre(HasSubstr(path + " makes no dispatcher calls")));
    }
    for (const std::string path : {"aten", "page_table_kernel"}) {
      EXPECT_THAT(plan_of("[step]\npath = \"" + path + "\"\n" + key).notes, IsEmpty());
    }
    const std::string mixed = "[step]\npath = [\"aten\", \"fused\", \"fused_in_graph\"]\n" + key;
    EXPECT_THAT(plan_of(mixed).notes,
                ElementsAre("step.op_overhead_ns changes nothing in case fused: fused makes no "
                            "dispatcher calls",
                            "step.op_overhead_ns changes nothing in case fused_in_graph: "
                            "fused_in_graph makes no dispatcher calls"));
    EXPECT_THAT(plan_of(mixed, "aten").notes, IsEmpty());
  }
  EXPECT_THAT(plan_of("[step]\npath = \"fused\"\nop_overhead_ns = 0\n").notes, IsEmpty());
}

}  // namespace
}  // namespace tpjitter
