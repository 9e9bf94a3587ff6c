// What each mistake in a scenario file or a --set is called: one line with place, key and what is
// allowed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/scenario_files.h"

namespace tpjitter {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

using ScenarioErrorsTest = ScenarioTest;

TEST_F(ScenarioErrorsTest, AFileThatIsNotThereIsNamed) {
  const std::string message = error_of(directory_ / "absent.toml");
  EXPECT_THAT(message, HasSubstr("absent.toml: the scenario cannot be read: No such file"));
}

TEST_F(ScenarioErrorsTest, ADirectoryIsNoScenario) {
  EXPECT_THAT(error_of(directory_), HasSubstr("a directory, where a scenario file (TOML) belongs"));
}

TEST_F(ScenarioErrorsTest, AnEmptyFileIsSaidToBeEmpty) {
  EXPECT_THAT(error_of(write("")), StartsWith("1:1: key `summary`: missing, the file is empty"));
  EXPECT_THAT(error_of(write(" \n\n")), HasSubstr("the file is empty"));
}

TEST_F(ScenarioErrorsTest, TextThatIsNotTomlIsRefusedWhereItStops) {
  EXPECT_THAT(error_in("[shape\n"), StartsWith("3:"));
  EXPECT_THAT(error_in("[shape\n"), HasSubstr("not TOML: "));
  EXPECT_THAT(error_of(write("{\"shape\": {}}")), HasSubstr("1:1: not TOML: "));
  EXPECT_THAT(error_of(write(std::string("\x7f"
                                         "ELF\0\0\1",
                                         7))),
              HasSubstr("not TOML: "));
  EXPECT_THAT(error_in("world_size = 2\nworld_size = 2\n"), StartsWith("4:"));
  EXPECT_THAT(error_in("[ = 64\n"), HasSubstr("not TOML: "));
  EXPECT_THAT(error_in("a = " + std::string(100'000, '[')), HasSubstr("not TOML: "));
}

TEST_F(ScenarioErrorsTest, AFileLargerThanAnyScenarioIsRefused) {
  EXPECT_THAT(error_of(write(std::string(2 << 20, '#'))), HasSubstr("larger than 1 MiB"));
}

TEST_F(ScenarioErrorsTest, RequiredTextMustBeThereAndSaySomething) {
  EXPECT_THAT(error_of(write("source = \"x\"\n")), StartsWith("1:1: key `summary`: missing"));
  EXPECT_THAT(error_of(write("summary = \"x\"\n")), StartsWith("1:1: key `source`: missing"));
  EXPECT_THAT(error_of(write("summary = \" \"\nsource = \"x\"\n")),
              StartsWith("1:11: key `summary`: the text is empty; allowed: one line of text"));
  EXPECT_THAT(error_of(write("summary = \"a\\nb\"\nsource = \"x\"\n")),
              HasSubstr("key `summary`: the text has a line break"));
}

TEST_F(ScenarioErrorsTest, AnUnknownKeyIsNamedWithTheKeyThatWasMeant) {
  EXPECT_EQ(
      error_in("[shape]\npagesize = 64\n"),
      "4:1: key `shape.pagesize`: unknown key (did you mean `shape.page_size`?); allowed: swa, "
      "batch_size, capture_batch_sizes, context_tokens, max_context_tokens, page_size, "
      "hidden_size, layers, draft_layers");
  EXPECT_THAT(error_in("page_size = 64\n"), HasSubstr("did you mean `shape.page_size`?"));
  EXPECT_THAT(error_in("[shapes]\n"),
              HasSubstr("allowed: summary, source, world_size, [step], [shape], [body], [inject], "
                        "[noise], [sampling]"));
  EXPECT_THAT(error_in("[body]\nzzzzzzzzzz = 1\n"), Not(HasSubstr("did you mean")));
  EXPECT_THAT(error_in("\"shape.page_size\" = 64\n"), HasSubstr("unknown key"));
  EXPECT_THAT(error_in("\"a\\nb\" = 64\n"), HasSubstr("key `a\\x0ab`: unknown key"));
  EXPECT_THAT(error_in("[sampling]\nrecord.all = \"first\"\n"),
              HasSubstr("key `sampling.record.all`: unknown key; allowed: all_reduces"));
}

TEST_F(ScenarioErrorsTest, OfSeveralMistakesTheFirstInTheFileIsNamed) {
  EXPECT_THAT(error_in("[step]\npath = 3\n[shape]\nlayers = 0\n"), HasSubstr("key `step.path`"));
  EXPECT_THAT(error_in("[shape]\nlayers = 0\n[body]\nlayer_us = -1\n"),
              HasSubstr("key `shape.layers`"));
}

TEST_F(ScenarioErrorsTest, AWrongTypeIsNamedWithTheRightOne) {
  EXPECT_EQ(error_in("[shape]\npage_size = \"64\"\n"),
            "4:13: key `shape.page_size`: a string, where an integer belongs; allowed: a power of "
            "two, 1..4096 tokens");
  EXPECT_THAT(error_in("[shape]\npage_size = 64.0\n"),
              HasSubstr("a number with a fraction, where an integer belongs"));
  EXPECT_THAT(error_in("[shape]\nswa = 1\n"),
              HasSubstr("an integer, where a boolean belongs; allowed: true, false"));
  EXPECT_THAT(
      error_in("[step]\npath = true\n"),
      HasSubstr("a boolean, where a string belongs; allowed: aten, page_table_kernel, glue_graph, "
                "fused, fused_in_graph"));
  EXPECT_THAT(error_in("[body]\nlayer_us = 2026-01-01\n"),
              HasSubstr("a date or time, where a number belongs; allowed: 0..100000 us"));
  EXPECT_THAT(error_in("[shape]\ncapture_batch_sizes = 8\n"),
              HasSubstr("an integer, where an integer list belongs"));
  EXPECT_THAT(error_in("[shape]\ncapture_batch_sizes = [1, 2.5]\n"),
              HasSubstr("a list, where an integer list belongs"));
  EXPECT_THAT(error_in("shape = 3\n"), StartsWith("3:9: key `shape`: an integer, where a table"));
  EXPECT_THAT(error_in("[[shape]]\nswa = true\n"), HasSubstr("a list, where a table belongs"));
  EXPECT_THAT(error_in("[shape.swa]\n"), HasSubstr("key `shape.swa`: a table, where a boolean"));
  EXPECT_THAT(error_in("[shape]\nlayers = [[1], [2]]\n"),
              HasSubstr("key `shape.layers`: a list, where one value belongs"));
}

TEST_F(ScenarioErrorsTest, AValueOutOfRangeIsNamedWithTheRange) {
  EXPECT_EQ(error_in("[shape]\npage_size = 48\n"),
            "4:13: key `shape.page_size`: 48 is not a power of two; allowed: a power of two, "
            "1..4096 tokens");
  EXPECT_THAT(error_in("[shape]\npage_size = 8192\n"), HasSubstr("8192 is out of range"));
  EXPECT_THAT(error_in("[shape]\npage_size = 0\n"), HasSubstr("0 is out of range"));
  EXPECT_THAT(error_in("[shape]\npage_size = -64\n"), HasSubstr("-64 is out of range"));
  EXPECT_THAT(error_in("[shape]\nhidden_size = 2881\n"), HasSubstr("2881 is not a multiple of 8"));
  EXPECT_THAT(error_in("world_size = 0\n"), HasSubstr("allowed: 1..64 ranks"));
  EXPECT_THAT(error_in("[body]\nlayer_us = nan\n"), HasSubstr("nan is not a finite number"));
  EXPECT_THAT(error_in("[body]\nlayer_us = -inf\n"), HasSubstr("-inf is not a finite number"));
  EXPECT_THAT(error_in("[body]\nnodes_per_layer = 3\n"), HasSubstr("allowed: 4..256 nodes"));
  EXPECT_THAT(error_in("[inject]\ndelay_us = -0.5\n"), HasSubstr("-0.5 is out of range"));
  EXPECT_THAT(error_in("[shape]\ncapture_batch_sizes = [1, 8, 4]\n"),
              HasSubstr("4 comes after 8; allowed: increasing integers, 1..4096 requests"));
  EXPECT_THAT(error_in("[shape]\ncapture_batch_sizes = [8, 8]\n"), HasSubstr("8 comes after 8"));
  EXPECT_THAT(error_in("[shape]\ncapture_batch_sizes = [0, 8]\n"), HasSubstr("0 is out of range"));
  EXPECT_THAT(error_in("[shape]\nbatch_size = 99999999999999999999\n"), HasSubstr("not TOML"));
}

TEST_F(ScenarioErrorsTest, AWordOutsideTheAllowedSetIsNamedWithTheSet) {
  EXPECT_THAT(
      error_in("[step]\npath = \"fuzed\"\n"),
      StartsWith("4:8: key `step.path`: \"fuzed\" is not one of them (did you mean \"fused\"?); "
                 "allowed: aten, page_table_kernel, glue_graph, fused, fused_in_graph"));
  EXPECT_THAT(error_in("[body]\nall_reduce = \"two_trees\"\n"),
              HasSubstr("allowed: one_shot_pull, one_shot_push, two_shot, auto, nccl"));
  EXPECT_THAT(error_in("[body]\nfills = \"bake\"\n"),
              HasSubstr("(did you mean \"baked\"?); allowed: persistent, baked"));
  EXPECT_THAT(error_in("[step]\nmode = \"\"\n"), HasSubstr("allowed: decode"));
}

TEST_F(ScenarioErrorsTest, ACallOverheadThatIsNeitherNumberNorProfileIsNamedWithBoth) {
  const char* allowed = "; allowed: 0..1000000 ns, libtorch, python";
  EXPECT_THAT(
      error_in("[step]\nop_overhead_ns = \"pyhton\"\n"),
      HasSubstr(std::string("\"pyhton\" is not one of them (did you mean \"python\"?)") + allowed));
  EXPECT_THAT(error_in("[step]\nop_overhead_ns = -1\n"),
              HasSubstr(std::string("-1 is out of range") + allowed));
  EXPECT_THAT(error_in("[step]\nop_overhead_ns = 1.5\n"),
              HasSubstr(std::string("where an integer or name belongs") + allowed));
}

TEST_F(ScenarioErrorsTest, AnAxisNamesTheValueThatIsWrong) {
  EXPECT_THAT(error_in("[shape]\npage_size = [16, 48]\n"),
              StartsWith("4:18: key `shape.page_size`: 48 is not a power of two"));
  EXPECT_THAT(error_in("[shape]\npage_size = []\n"),
              StartsWith("4:13: key `shape.page_size`: an empty list; allowed: a power of two"));
  EXPECT_THAT(error_in("[shape]\ncapture_batch_sizes = []\n"), HasSubstr("an empty list"));
  EXPECT_THAT(error_in("[shape]\nbatch_size = [1, 8, 1]\n"), HasSubstr("1 stands twice"));
  EXPECT_THAT(error_in("world_size = [2, 4]\n"), HasSubstr("a list, where one value belongs"));
  EXPECT_THAT(error_in("[sampling]\nlaunches = [1]\n"), HasSubstr("a list, where one value"));
}

TEST_F(ScenarioErrorsTest, TooManyCasesAreRefused) {
  const std::string text =
      "[shape]\nbatch_size = [1,2,3,4,5,6,7,8]\nlayers = [1,2,3,4,5,6,7,8]\n"
      "hidden_size = [8,16,24,32,40,48,56,64]\n";
  EXPECT_EQ(load(text).cases.size(), 512u);
  EXPECT_THAT(error_in(text + "swa = [true, false]\n"),
              HasSubstr("the axes make 1024 cases up to here; allowed: at most 512 cases"));
}

TEST_F(ScenarioErrorsTest, ABatchThatNoGraphIsCapturedForIsRefusedWhereItStands) {
  EXPECT_EQ(
      error_in("[shape]\nbatch_size = [4, 16]\ncapture_batch_sizes = [1, 8]\n"),
      "4:18: key `shape.batch_size`: no graph is captured for 16 requests; allowed: 1..8, the "
      "largest of shape.capture_batch_sizes");
  EXPECT_THAT(error_in("[shape]\ncapture_batch_sizes = [1, 4]\n"),
              StartsWith("4:23: key `shape.batch_size`: no graph is captured for 8 requests"));
}

TEST_F(ScenarioErrorsTest, KeysThatContradictEachOtherAreRefused) {
  EXPECT_EQ(
      error_in("[shape]\ncontext_tokens = 8192\nmax_context_tokens = 4096\n"),
      "5:22: key `shape.max_context_tokens`: 4096 is less than shape.context_tokens; allowed: "
      "0 or at least 8192");
  EXPECT_THAT(error_in("[shape]\ncontext_tokens = 32\n"),
              StartsWith("4:18: key `shape.page_size`: 64 is more than shape.context_tokens; "
                         "allowed: a power of two, 1..32"));
  EXPECT_THAT(error_in("[inject]\nvictim = 2\n"),
              StartsWith("4:10: key `inject.victim`: 2 is no rank of world_size 2; allowed: 0..1"));
  EXPECT_THAT(error_in("[shape]\nbatch_size = 4096\ncontext_tokens = 1048576\n"),
              HasSubstr("4096 requests of 1048576 tokens need more KV slots"));
}

TEST_F(ScenarioErrorsTest, AMistakeOnTheCommandLineIsQuotedAsItsPlace) {
  EXPECT_EQ(error_in("", {"shape.page_size=48"}),
            "--set shape.page_size=48: key `shape.page_size`: 48 is not a power of two; allowed: a "
            "power of two, 1..4096 tokens");
  EXPECT_THAT(error_in("", {"shape.page_size=big"}), HasSubstr("a string, where an integer"));
  EXPECT_THAT(error_in("", {"shape.page_size"}),
              HasSubstr("no value is given; allowed: key=value"));
  EXPECT_THAT(error_in("", {"shape.page_size="}), HasSubstr("key `shape.page_size`: not TOML"));
  EXPECT_THAT(error_in("", {"shape.pagesize=64"}), HasSubstr("did you mean `shape.page_size`?"));
  EXPECT_THAT(error_in("", {"shape=64"}), HasSubstr("key `shape`: unknown key"));
  EXPECT_THAT(error_in("", {"=64"}), HasSubstr("no key is given; allowed: key=value"));
  EXPECT_THAT(error_in("", {"shape.batch_size=[]"}), HasSubstr("an empty list"));
  EXPECT_THAT(error_in("", {"shape.batch_size=[1"}), HasSubstr("not TOML"));
  EXPECT_THAT(error_in("", {"shape.layers=3\nother=4"}), HasSubstr("more than one value"));
  EXPECT_THAT(error_in("", {"step.path=fuzed"}), HasSubstr("did you mean \"fused\"?"));
  EXPECT_THAT(error_in("", {"world_size=[2,4]"}), HasSubstr("a list, where one value belongs"));
  EXPECT_THAT(error_in("[inject]\nvictim = 3\n", {"world_size=2"}), StartsWith("4:10: key"));
}

}  // namespace
}  // namespace tpjitter
