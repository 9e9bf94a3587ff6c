// The launcher's side of the record: one rank<K>.phases.npy per rank, reserved beforehand, appended
// to between blocks. What has been appended survives a kill of anything: the header is rewritten
// after the rows it counts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "harness/contract/phase_row.h"

namespace tpjitter {

class Recorder {
 public:
  // Creates the files with room for `rows_per_rank` rows each. Throws RunError (disk full,
  // read-only) naming the file.
  Recorder(const std::filesystem::path& directory, int world_size, std::int64_t rows_per_rank);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  void append(int rank, std::span<const PhaseRow> rows);  // throws RunError naming the file
  std::int64_t rows(int rank) const { return files_[rank].rows; }
  void finish();  // gives back what was reserved and not used; throws RunError

 private:
  struct File {
    std::filesystem::path path;
    int fd = -1;
    std::int64_t rows = 0;
    std::int64_t data_begin = 0;  // bytes
  };
  void write_header(const File& file);
  std::vector<File> files_;
};

// Throws ConfigError if a run may not be written to `directory`: it exists and is not a run, is a
// run and may not be replaced, or cannot be written to. Changes nothing.
void check_run_directory(const std::filesystem::path& directory, bool overwrite);

// Makes the output directory and holds it while a run lasts: another run into it is refused. An
// existing run is removed with `overwrite`, its own files and nothing else. Throws ConfigError.
class RunDirectoryLock {
 public:
  RunDirectoryLock(const std::filesystem::path& directory, bool overwrite);
  ~RunDirectoryLock();
  RunDirectoryLock(const RunDirectoryLock&) = delete;
  RunDirectoryLock& operator=(const RunDirectoryLock&) = delete;

 private:
  int fd_ = -1;
};

}  // namespace tpjitter
