#include "harness/output_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "harness/contract/error.h"

namespace tpjitter {

void write_output_file(const std::filesystem::path& path, const std::string& text,
                       const std::string& flag) {
  if (path == "-") {
    throw ConfigError(fmt::format("{} -: names no file; /dev/stdout is standard output", flag));
  }
  const std::string name = path.filename().string();
  if (name == "run.json" || (name.starts_with("rank") && name.ends_with(".npy"))) {
    throw ConfigError(
        fmt::format("{} {}: is a file of a run directory; name another", flag, path.string()));
  }
  std::error_code error;
  const std::filesystem::path target =
      std::filesystem::is_symlink(path, error) ? std::filesystem::canonical(path, error) : path;
  const auto fail = [&](const std::string& why) {
    return ConfigError(fmt::format("{} {}: cannot be written: {}", flag, path.string(), why));
  };
  if (target.empty()) throw fail(error.message());
  // A device or a pipe is written to and never replaced.
  const bool straight =
      std::filesystem::exists(target, error) && !std::filesystem::is_regular_file(target, error);
  const std::filesystem::path draft =
      straight ? target : std::filesystem::path(target.string() + fmt::format(".{}.tmp", getpid()));
  std::ofstream file(draft, std::ios::binary);
  file << text;
  file.close();
  error.clear();
  const std::string problem = file ? "" : std::strerror(errno);
  if (file && !straight) std::filesystem::rename(draft, target, error);
  if (file && !error) return;
  const std::string why = error ? error.message() : problem;
  std::error_code ignored;
  if (!straight) std::filesystem::remove(draft, ignored);
  throw fail(why);
}

}  // namespace tpjitter
