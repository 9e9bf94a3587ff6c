// Scenario files: what is accepted and what it becomes, and that the shipped files and their README
// agree with the program. `test_scenario --update-readme` writes scenarios/README.md.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <sstream>

#include "harness/contract/error.h"
#include "harness/contract/scenario.h"
#include "harness/contract/scenario_fields.h"
#include "tests/scenario_files.h"

namespace tpjitter {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::filesystem::path kScenarios = std::filesystem::path(TPJITTER_SOURCE_DIR) / "scenarios";

std::vector<std::string> case_names(const Scenario& scenario) {
  std::vector<std::string> names;
  for (const Scenario::Case& item : scenario.cases) names.push_back(item.name);
  return names;
}

TEST_F(ScenarioTest, AFileWithTheRequiredKeysAloneIsOneCaseOfDefaultsNamedByItsPath) {
  const Scenario scenario = load("");
  EXPECT_EQ(scenario.name, "some");
  EXPECT_EQ(scenario.summary, "s");
  EXPECT_EQ(scenario.source, "here");
  EXPECT_THAT(scenario.axes, ::testing::IsEmpty());
  ASSERT_THAT(case_names(scenario), ElementsAre("fused"));
  EXPECT_EQ(scenario.cases[0].config, CaseConfig{});
}

TEST_F(ScenarioTest, EveryKeyIsReadFromItsTable) {
  const Scenario scenario = load(R"(world_size = 4
[step]
mode = "decode"
path = "aten"
loop = "coupled"
coupling_wait = "mapped_flag"
op_overhead_ns = 1500
page_columns = "live"
[shape]
swa = true
batch_size = 3
capture_batch_sizes = [1, 2, 4]
context_tokens = 100
max_context_tokens = 4096
page_size = 16
hidden_size = 4096
layers = 5
[body]
layer_us = 12
nodes_per_layer = 7
all_reduce = "nccl"
fills = "baked"
pdl = true
[inject]
where = "before_launch"
victim = 3
delay_us = 7.5
every_steps = 10
seed = 9223372036854775807
[sampling]
warmup_steps = 0
steps = 17
block_steps = 8
repetitions = 2
launches = 3
record.all_reduces = "first"
)");
  EXPECT_EQ(scenario.world_size, 4);
  EXPECT_EQ(scenario.launches, 3);
  EXPECT_EQ(scenario.record_all_reduces, "first");
  CaseConfig expected;
  expected.path = "aten";
  expected.coupling_wait = "mapped_flag";
  expected.op_overhead_ns = 1500;
  expected.page_columns = "live";
  expected.swa = true;
  expected.batch_size = 3;
  expected.capture_batch_sizes = {1, 2, 4};
  expected.context_tokens = 100;
  expected.max_context_tokens = 4096;
  expected.page_size = 16;
  expected.hidden_size = 4096;
  expected.layers = 5;
  expected.layer_us = 12;
  expected.nodes_per_layer = 7;
  expected.all_reduce = "nccl";
  expected.fills = "baked";
  expected.pdl = true;
  expected.inject_where = "before_launch";
  expected.inject_victim = 3;
  expected.inject_delay_us = 7.5;
  expected.inject_every_steps = 10;
  expected.inject_seed = 9223372036854775807;
  expected.warmup_steps = 0;
  expected.steps = 17;
  expected.block_steps = 8;
  expected.repetitions = 2;
  ASSERT_EQ(scenario.cases.size(), 1u);
  EXPECT_EQ(scenario.cases[0].config, expected);
}

TEST_F(ScenarioTest, AxesAreCrossedInFieldTableOrderWhateverTheirOrderInTheFile) {
  const Scenario scenario = load(R"([shape]
batch_size = [1, 8]
swa = [false, true]
[step]
path = ["fused", "aten"]
)");
  EXPECT_THAT(case_names(scenario),
              ElementsAre("fused/no_swa/bs1", "fused/no_swa/bs8", "fused/swa/bs1", "fused/swa/bs8",
                          "aten/no_swa/bs1", "aten/no_swa/bs8", "aten/swa/bs1", "aten/swa/bs8"));
  EXPECT_EQ(scenario.cases[6].config.path, "aten");
  EXPECT_TRUE(scenario.cases[6].config.swa);
  EXPECT_EQ(scenario.cases[6].config.batch_size, 1);
  ASSERT_EQ(scenario.axes.size(), 3u);
  EXPECT_EQ(scenario.axes[0].key, "step.path");
  EXPECT_THAT(scenario.axes[0].labels, ElementsAre("fused", "aten"));
  EXPECT_EQ(scenario.axes[2].key, "shape.batch_size");
}

TEST_F(ScenarioTest, LabelsSayWhatAValueIs) {
  EXPECT_THAT(case_names(load("[body]\nlayer_us = [10, 12.5]\n")),
              ElementsAre("layer_us10", "layer_us12.5"));
  EXPECT_THAT(case_names(load("[shape]\nbatch_size = [8]\n")), ElementsAre("bs8"));
  EXPECT_THAT(case_names(load("[inject]\ndelay_us = 5\nwhere = [\"none\", \"before_launch\"]\n")),
              ElementsAre("inject_none", "inject_before_launch"));
  EXPECT_THAT(case_names(load("[step]\npage_columns = [\"all\", \"live\"]\n")),
              ElementsAre("columns_all", "columns_live"));
}

TEST_F(ScenarioTest, CallOverheadIsANumberOrTheNameOfAProfileAndBothMakeAnAxis) {
  const Scenario scenario =
      load("[step]\npath = \"aten\"\nop_overhead_ns = [250, \"python\", \"libtorch\"]\n");
  EXPECT_THAT(case_names(scenario), ElementsAre("op_ns250", "python", "libtorch"));
  EXPECT_EQ(scenario.cases[0].config.op_overhead_ns, OpOverhead(std::int64_t{250}));
  EXPECT_EQ(scenario.cases[1].config.op_overhead_ns, OpOverhead("python"));
  for (const Scenario::Case& c : scenario.cases) {
    const Json values = case_to_json(c.config);
    EXPECT_EQ(case_from_json(values), c.config);
  }
  EXPECT_EQ(case_to_json(scenario.cases[0].config)["step"]["op_overhead_ns"], 250);
  EXPECT_EQ(case_to_json(scenario.cases[1].config)["step"]["op_overhead_ns"], "python");
}

TEST_F(ScenarioTest, AListOfCapturedBatchSizesIsNoAxis) {
  const Scenario scenario = load("[shape]\ncapture_batch_sizes = [4, 8, 16]\n");
  EXPECT_THAT(case_names(scenario), ElementsAre("fused"));
  EXPECT_THAT(scenario.cases[0].config.capture_batch_sizes, ElementsAre(4, 8, 16));
}

TEST_F(ScenarioTest, ANameOnTheCommandLineReplacesTheFilesValue) {
  const std::string text = "[shape]\nbatch_size = [1, 2]\npage_size = 16\n";
  const Scenario scenario = load(text, {"shape.batch_size=4", "body.layer_us=2.5", "shape.swa=true",
                                        "step.path=aten", "summary=\"two words\"", "world_size=8"});
  EXPECT_THAT(case_names(scenario), ElementsAre("aten"));
  EXPECT_EQ(scenario.cases[0].config.batch_size, 4);
  EXPECT_EQ(scenario.cases[0].config.page_size, 16);
  EXPECT_EQ(scenario.cases[0].config.layer_us, 2.5);
  EXPECT_TRUE(scenario.cases[0].config.swa);
  EXPECT_EQ(scenario.summary, "two words");
  EXPECT_EQ(scenario.world_size, 8);
  EXPECT_EQ(scenario.overrides.size(), 6u);
  EXPECT_EQ(scenario.overrides[3], "step.path=aten");
}

TEST_F(ScenarioTest, AListOnTheCommandLineMakesAnAxisWithOrWithoutQuotes) {
  EXPECT_THAT(case_names(load("", {"shape.batch_size=[1, 8]"})), ElementsAre("bs1", "bs8"));
  EXPECT_THAT(case_names(load("", {"step.path=[\"aten\", 'fused']"})),
              ElementsAre("aten", "fused"));
  EXPECT_THAT(case_names(load("", {"step.path=[aten,fused_in_graph]"})),
              ElementsAre("aten", "fused_in_graph"));
  EXPECT_THAT(case_names(load("", {"shape.swa=[true, false]"})), ElementsAre("swa", "no_swa"));
}

TEST_F(ScenarioTest, TheLastOfTwoSettingsOfAKeyCounts) {
  EXPECT_EQ(load("", {"sampling.steps=5", "sampling.steps=6"}).cases[0].config.steps, 6);
}

// A value of the field's type inside its limits, each time another one.
FieldValue random_value(const ScenarioField& field, std::mt19937_64& random) {
  const FieldValue now = get_field(field, CaseConfig{});
  if (std::holds_alternative<bool>(now)) return random() % 2 == 0;
  if (const auto* either = std::get_if<IntegerOrName>(&field.limits)) {
    if (random() % 2 == 0) return std::string(either->names.values[random() % 2]);
    return static_cast<std::int64_t>(random() % (either->integer.max + 1));
  }
  if (std::holds_alternative<std::string>(now)) {
    const Choices& choices = std::get<Choices>(field.limits);
    std::size_t n = 0;
    while (n < choices.values.size() && choices.values[n] != nullptr) ++n;
    return std::string(choices.values[random() % n]);
  }
  if (std::holds_alternative<double>(now)) {
    const NumberLimits& limits = std::get<NumberLimits>(field.limits);
    return std::uniform_real_distribution<double>(limits.min, limits.max)(random);
  }
  const IntegerLimits& limits = std::get<IntegerLimits>(field.limits);
  if (std::holds_alternative<std::vector<std::int64_t>>(now)) {
    std::set<std::int64_t> list;
    for (std::size_t i = random() % 5; i > 0; --i) {
      list.insert(std::uniform_int_distribution<std::int64_t>(limits.min, limits.max)(random));
    }
    return std::vector<std::int64_t>(list.begin(), list.end());
  }
  if (limits.power_of_two) return std::int64_t{1} << random() % 13;
  const std::int64_t value =
      std::uniform_int_distribution<std::int64_t>(limits.min, limits.max)(random);
  return value - value % limits.multiple_of;
}

TEST(ScenarioJson, ACaseComesBackFromJsonTextAsItWas) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 200; ++i) {
    CaseConfig config;
    for (const ScenarioField& field : scenario_fields()) {
      if (field_in_case(field)) set_field(field, random_value(field, random), config);
    }
    const std::string text = case_to_json(config).dump();
    EXPECT_EQ(case_from_json(Json::parse(text)), config) << text;
  }
}

TEST(ScenarioJson, KeysAreGroupedByTableAndAbsentOnesGetTheirDefault) {
  const Json values = case_to_json(CaseConfig{});
  EXPECT_EQ(values["shape"]["batch_size"], 8);
  EXPECT_EQ(values["inject"]["where"], "none");
  EXPECT_EQ(values["shape"]["capture_batch_sizes"], Json::array());
  EXPECT_EQ(values.size(), 6u);
  EXPECT_EQ(case_from_json(Json::object()), CaseConfig{});
  EXPECT_EQ(case_from_json(Json::parse(R"({"shape": {"layers": 3, "later_key": 1}})")).layers, 3);
}

TEST(ScenarioJson, AValueOfTheWrongTypeOrOutOfRangeNamesItsKey) {
  const auto error_of = [](const char* text) -> std::string {
    try {
      case_from_json(Json::parse(text));
    } catch (const RecordError& error) {
      return error.what();
    }
    return "was accepted";
  };
  EXPECT_THAT(error_of(R"({"shape": {"layers": "3"}})"),
              HasSubstr("key `shape.layers`: no integer"));
  EXPECT_THAT(error_of(R"({"shape": {"layers": 0}})"), HasSubstr("0 is out of range"));
  EXPECT_THAT(error_of(R"({"step": {"path": "new"}})"), HasSubstr("key `step.path`"));
  EXPECT_THAT(error_of(R"({"shape": 3})"), HasSubstr("key `shape`: no object"));
  EXPECT_THAT(error_of("[]"), HasSubstr("no object"));
  EXPECT_THAT(error_of(R"({"inject": {"seed": 9223372036854775808}})"), HasSubstr("no integer"));
}

TEST(ScenarioFields, EveryRowIsWhole) {
  std::set<std::string> keys;
  std::set<std::string> labels;
  for (const ScenarioField& field : scenario_fields()) {
    EXPECT_TRUE(keys.insert(field.key).second) << field.key << " stands twice";
    EXPECT_THAT(std::string(field.help), ::testing::EndsWith(".")) << field.key;
    if (field_is_axis(field)) {
      const FieldValue value = get_field(field, CaseConfig{});
      EXPECT_EQ(field_problem(field, value), std::nullopt) << field.key;
      EXPECT_NE(field_label(field, value), "") << field.key;
      EXPECT_TRUE(labels.insert(field_label(field, value)).second)
          << field.key << " has the label of another key";
    }
  }
}

TEST(ShippedScenarios, AllLoad) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kScenarios)) {
    if (entry.path().extension() != ".toml") continue;
    ++files;
    SCOPED_TRACE(entry.path().string());
    const Scenario scenario = load_scenario(entry.path(), {});
    EXPECT_FALSE(scenario.cases.empty());
    std::set<std::string> names;
    for (const Scenario::Case& item : scenario.cases) {
      EXPECT_TRUE(names.insert(item.name).second) << item.name << " names two cases";
    }
  }
  EXPECT_GE(files, 4);
}

TEST(ShippedScenarios, ReadmeIsWhatTheFieldTableAndTheFilesSay) {
  std::ifstream stream(kScenarios / "README.md");
  std::stringstream text;
  text << stream.rdbuf();
  EXPECT_TRUE(text.str() == scenario_readme(kScenarios))
      << "scenarios/README.md is out of date: run build/bin/test_scenario --update-readme";
}

}  // namespace
}  // namespace tpjitter

int main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == "--update-readme") {
    const std::string text = tpjitter::scenario_readme(tpjitter::kScenarios);
    std::ofstream(tpjitter::kScenarios / "README.md", std::ios::binary) << text;
    return 0;
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
