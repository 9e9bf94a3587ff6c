// A directory for one generated run, removed at the end of the test.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <string>

#include "reports/run_reader.h"
#include "reports/summary.h"
#include "tests/record_generator.h"

namespace tpjitter {

class RunDirectory {
 public:
  RunDirectory() {
    std::string name = ::testing::TempDir() + "tpjitter_run_XXXXXX";
    if (mkdtemp(name.data()) == nullptr) std::abort();
    path_ = name;
  }
  explicit RunDirectory(const GeneratedRun& run) : RunDirectory() { write_run(path_, run); }
  explicit RunDirectory(const GeneratorConfig& config) : RunDirectory(generate_run(config)) {}
  ~RunDirectory() { std::filesystem::remove_all(path_); }
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }
  Run read() const { return read_run(path_); }
  Summary summary() const { return summarize(read()); }

 private:
  std::filesystem::path path_;
};

}  // namespace tpjitter
