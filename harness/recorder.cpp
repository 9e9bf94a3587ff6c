#include "harness/recorder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>

#include "harness/contract/error.h"
#include "harness/contract/npy.h"

namespace tpjitter {
namespace fs = std::filesystem;
namespace {

void write_all(int fd, const void* data, std::size_t bytes, std::int64_t offset,
               const fs::path& path) {
  const char* p = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = pwrite(fd, p, bytes, offset);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      throw RunError(fmt::format("{}: cannot write: {}; what was written before is kept",
                                 path.string(), std::strerror(n == 0 ? ENOSPC : errno)));
    }
    p += n;
    offset += n;
    bytes -= static_cast<std::size_t>(n);
  }
}

// report.html is what `report --format html` writes beside a run: of another run it would lie.
bool is_run_file(const std::string& name) {
  return name == "run.json" || name == "run.json.tmp" || name == "report.html" ||
         (name.starts_with("rank") && name.ends_with(".npy"));
}

// The schema stands first, so that a run.json that was cut off is still known for what it is.
bool begins_as_run(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string begin(256, '\0');
  file.read(begin.data(), static_cast<std::streamsize>(begin.size()));
  begin.resize(static_cast<std::size_t>(file.gcount()));
  return begin.find("\"tpjitter.run/") != std::string::npos;
}

}  // namespace

void check_run_directory(const fs::path& directory, bool overwrite) {
  std::error_code error;
  const fs::file_status status = fs::status(directory, error);
  if (status.type() == fs::file_type::none) {  // not "there is none", which is no error here
    throw ConfigError(
        fmt::format("--out {}: cannot be looked at: {}", directory.string(), error.message()));
  }
  if (!fs::exists(status)) return;
  if (!fs::is_directory(status)) {
    throw ConfigError(fmt::format("--out {}: exists and is no directory", directory.string()));
  }
  const bool is_run = fs::exists(directory / "run.json", error);
  const bool empty = fs::is_empty(directory, error);
  if (error) {
    throw ConfigError(
        fmt::format("--out {}: cannot be read: {}", directory.string(), error.message()));
  }
  if (!is_run && !empty) {
    throw ConfigError(fmt::format(
        "--out {}: exists and is not a run; nothing was touched, name another directory",
        directory.string()));
  }
  // Whatever else has a file of this name: its directory is not ours to replace.
  if (is_run && !begins_as_run(directory / "run.json")) {
    throw ConfigError(
        fmt::format("--out {}: its run.json is not one of tpjitter; nothing was touched, name "
                    "another directory",
                    directory.string()));
  }
  if (is_run && !overwrite) {
    throw ConfigError(
        fmt::format("--out {}: holds a run; pass --overwrite to replace it", directory.string()));
  }
  if (access(directory.c_str(), W_OK | X_OK) != 0) {
    throw ConfigError(fmt::format("--out {}: cannot be written to: {}", directory.string(),
                                  std::strerror(errno)));
  }
}

RunDirectoryLock::RunDirectoryLock(const fs::path& directory, bool overwrite) {
  std::error_code error;
  fs::create_directories(directory, error);
  if (error && !fs::exists(directory)) {
    throw ConfigError(
        fmt::format("--out {}: cannot be made: {}", directory.string(), error.message()));
  }
  fd_ = open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd_ >= 0 && flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    close(fd_);
    throw ConfigError(
        fmt::format("--out {}: a run is in progress there; wait for it or name "
                    "another directory",
                    directory.string()));
  }
  try {
    check_run_directory(directory, overwrite);
    for (const auto& entry : fs::directory_iterator(directory)) {
      if (is_run_file(entry.path().filename().string())) fs::remove(entry.path());
    }
  } catch (...) {
    if (fd_ >= 0) close(fd_);
    throw;
  }
}

RunDirectoryLock::~RunDirectoryLock() {
  if (fd_ >= 0) close(fd_);
}

Recorder::Recorder(const fs::path& directory, int world_size, std::int64_t rows_per_rank) {
  files_.resize(world_size);
  for (int k = 0; k < world_size; ++k) {
    File& file = files_[k];
    file.path = directory / fmt::format("rank{}.phases.npy", k);
    file.fd = open(file.path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (file.fd < 0) {
      throw RunError(
          fmt::format("{}: cannot be made: {}", file.path.string(), std::strerror(errno)));
    }
    const std::string header = npy_header(phase_row_fields(), sizeof(PhaseRow), 0);
    file.data_begin = static_cast<std::int64_t>(header.size());
    const auto bytes = static_cast<off_t>(header.size() + sizeof(PhaseRow) * rows_per_rank);
    if (const int error = posix_fallocate(file.fd, 0, bytes); error != 0) {
      // Some file systems keep what fitted: the disk would stay full, and run.json unwritten.
      std::error_code ignored;
      for (const File& made : files_) fs::resize_file(made.path, 0, ignored);
      throw RunError(
          fmt::format("{}: cannot reserve {} bytes for {} rows: {}; free space or lower "
                      "sampling.steps",
                      file.path.string(), bytes, rows_per_rank, std::strerror(error)));
    }
    write_header(file);
  }
}

Recorder::~Recorder() {
  for (File& file : files_) {
    if (file.fd >= 0) close(file.fd);
  }
}

void Recorder::write_header(const File& file) {
  const std::string header =
      npy_header(phase_row_fields(), sizeof(PhaseRow), static_cast<std::uint64_t>(file.rows));
  write_all(file.fd, header.data(), header.size(), 0, file.path);
}

void Recorder::append(int rank, std::span<const PhaseRow> rows) {
  if (rows.empty()) return;
  File& file = files_[rank];
  const auto row_bytes = static_cast<std::int64_t>(sizeof(PhaseRow));
  write_all(file.fd, rows.data(), rows.size_bytes(), file.data_begin + file.rows * row_bytes,
            file.path);
  file.rows += static_cast<std::int64_t>(rows.size());
  write_header(file);
}

void Recorder::finish() {
  for (File& file : files_) {
    const auto bytes = file.data_begin + file.rows * static_cast<std::int64_t>(sizeof(PhaseRow));
    if (ftruncate(file.fd, static_cast<off_t>(bytes)) != 0 || fsync(file.fd) != 0) {
      throw RunError(
          fmt::format("{}: cannot be closed: {}", file.path.string(), std::strerror(errno)));
    }
  }
}

}  // namespace tpjitter
