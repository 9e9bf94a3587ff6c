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

// Makes or checks the output directory. An existing run needs `overwrite`, which removes that run's
// own files and nothing else. Throws ConfigError.
void prepare_run_directory(const std::filesystem::path& directory, bool overwrite);

}  // namespace tpjitter
