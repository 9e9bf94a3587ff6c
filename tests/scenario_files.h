// Scenario files made up by tests.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "harness/contract/error.h"
#include "harness/contract/scenario.h"

namespace tpjitter {

inline const std::string kRequired = "summary = \"s\"\nsource = \"here\"\n";

class ScenarioTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "tpjitter_scenario_XXXXXX");
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    directory_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::filesystem::path write(const std::string& text) {
    const auto file = directory_ / "some.toml";
    std::ofstream(file, std::ios::binary) << text;
    return file;
  }
  // After the two required lines: the first line of `text` is line 3.
  Scenario load(const std::string& text, const std::vector<std::string>& overrides = {}) {
    return load_scenario(write(kRequired + text), overrides);
  }
  std::string error_of(const std::filesystem::path& file,
                       const std::vector<std::string>& overrides = {}) {
    try {
      load_scenario(file, overrides);
    } catch (const ConfigError& error) {
      EXPECT_EQ(error.exit_code(), kExitUsage);
      const std::string message = error.what();
      EXPECT_EQ(message.find('\n'), std::string::npos) << message;
      const std::string prefix = directory_.string() + "/some.toml:";
      return message.rfind(prefix, 0) == 0 ? message.substr(prefix.size()) : message;
    }
    ADD_FAILURE() << "was accepted";
    return "";
  }
  // The message without the file's name: "LINE:COLUMN: key ...".
  std::string error_in(const std::string& text, const std::vector<std::string>& overrides = {}) {
    return error_of(write(kRequired + text), overrides);
  }
  std::filesystem::path directory_;
};

}  // namespace tpjitter
