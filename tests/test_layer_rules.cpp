// scripts/check_layers.sh on small made-up trees: each layer rule is seen to be broken and named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class CheckLayersTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = std::filesystem::temp_directory_path() / "tpjitter_layers_XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void write(const std::string& file, const std::string& text) {
    std::filesystem::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }
  // The script's output; its exit status goes to `status_`.
  std::string check() {
    const std::string command =
        std::string(TPJITTER_SOURCE_DIR) + "/scripts/check_layers.sh " + root_.string() + " 2>&1";
    std::FILE* pipe = popen(command.c_str(), "r");
    std::string output;
    std::array<char, 512> chunk;
    while (std::fgets(chunk.data(), chunk.size(), pipe) != nullptr) output += chunk.data();
    status_ = WEXITSTATUS(pclose(pipe));
    return output;
  }
  // What the script says of one line in an otherwise empty tree.
  std::string check_line(const std::string& file, const std::string& line) {
    write(file, "// comment\n" + line + "\n");
    std::string output = check();
    std::filesystem::remove(root_ / file);
    return output;
  }

  std::filesystem::path root_;
  int status_ = -1;
};

TEST_F(CheckLayersTest, EachLayerMayUseItsOwn) {
  write("kernels/a.cu", "#include <cub/cub.cuh>\n#include <cstdint>\n#include \"kernels/a.h\"\n");
  write("harness/contract/a.cpp", "#include <fmt/format.h>\n#include <nlohmann/json.hpp>\n");
  write("harness/cuda/a.cpp", "#include <cuda_runtime.h>\n#include <nccl.h>\n");
  write("harness/torch/a.cpp", "#include <ATen/ATen.h>\n");
  write("harness/host/a.cpp", "#include <sys/mman.h>\n#include \"kernels/a.h\"\n");
  write("harness/main.cpp", "#include \"harness/run.h\"\n#include \"reports/report.h\"\n");
  write("reports/a.cpp", "#include <boost/math/tools/roots.hpp>\n");
  write("tests/a.cpp", "#include \"reports/report.h\"\n#include \"harness/run.h\"\n");
  write("tests/gpu/a.cu", "#include <cuda_runtime.h>\n");
  EXPECT_EQ(check(), "");
  EXPECT_EQ(status_, 0);
}

TEST_F(CheckLayersTest, EachBrokenRuleIsNamedWithFileAndLine) {
  const std::array<std::array<const char*, 2>, 16> kBroken = {{
      {"kernels/a.cu", "#include \"harness/contract/error.h\""},
      {"kernels/a.h", "#include <cuda_runtime.h>"},
      {"kernels/a.cpp", "#include <unistd.h>"},
      {"harness/contract/a.h", "#include \"harness/run.h\""},
      {"harness/contract/a.cpp", "#include <cuda_runtime.h>"},
      {"harness/contract/a.h", "#include \"kernels/a.h\""},
      {"harness/run.cpp", "#include \"reports/report.h\""},
      {"harness/host/a.cpp", "  #  include <cuda_runtime.h>"},
      {"harness/run.cpp", "#include <nccl.h>"},
      {"harness/cuda/a.cpp", "#include <ATen/ATen.h>"},
      {"kernels/b.cpp", "#include <c10/core/Stream.h>"},
      {"reports/a.cpp", "#include \"harness/run.h\""},
      {"reports/a.cpp", "#include \"kernels/a.h\""},
      {"reports/a.cpp", "#include <cuda/std/span>"},
      {"tests/test_a.cpp", "#include <cuda_runtime.h>"},
      {"reports/a.cpp", "#include \"tests/a.h\""},
  }};
  for (const auto& [file, line] : kBroken) {
    SCOPED_TRACE(std::string(file) + ": " + line);
    EXPECT_THAT(check_line(file, line), StartsWith(std::string(file) + ":2: "));
    EXPECT_EQ(status_, 1);
  }
}

TEST_F(CheckLayersTest, AHeaderIsIncludedByItsPathFromTheRoot) {
  EXPECT_THAT(check_line("reports/a.cpp", "#include \"report.h\""),
              HasSubstr("report.h is not included by its path from the repository root"));
}

TEST_F(CheckLayersTest, FmtStaysOutOfHeaders) {
  EXPECT_THAT(check_line("reports/a.h", "#include <fmt/format.h>"),
              HasSubstr("belongs in .cpp files only"));
}

TEST_F(CheckLayersTest, ATreeWithoutSourcesIsAnErrorAndNotASuccess) {
  EXPECT_THAT(check(), HasSubstr("no source folders"));
  EXPECT_EQ(status_, 2);
}

}  // namespace
