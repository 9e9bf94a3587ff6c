#include "harness/output_file.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "harness/contract/error.h"

namespace tpjitter {

void write_output_file(const std::filesystem::path& path, const std::string& text,
                       const std::string& flag) {
  const std::string name = path.filename().string();
  if (name == "run.json" || (name.starts_with("rank") && name.ends_with(".npy"))) {
    throw ConfigError(
        fmt::format("{} {}: is a file of a run directory; name another", flag, path.string()));
  }
  const std::filesystem::path draft = path.string() + ".tmp";
  std::ofstream file(draft, std::ios::binary);
  file << text;
  file.close();
  std::error_code error;
  if (file) std::filesystem::rename(draft, path, error);
  if (!file || error) {
    const std::string why = error ? error.message() : std::strerror(errno);
    std::filesystem::remove(draft, error);
    throw ConfigError(fmt::format("{} {}: cannot be written: {}", flag, path.string(), why));
  }
}

}  // namespace tpjitter
