#include "harness/output_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <optional>
#include <string_view>

#include "harness/contract/error.h"

namespace tpjitter {
namespace {

// /dev/stdout, /dev/fd/3 and the like: the descriptor. By its name the file behind it would be
// opened anew, and lose what stands before and behind.
std::optional<int> descriptor_of(const std::string& path) {
  if (path == "/dev/stdout") return STDOUT_FILENO;
  if (path == "/dev/stderr") return STDERR_FILENO;
  for (const std::string_view folder : {"/dev/fd/", "/proc/self/fd/"}) {
    if (!path.starts_with(folder)) continue;
    int number = 0;
    const char* begin = path.data() + folder.size();
    const char* end = path.data() + path.size();
    if (std::from_chars(begin, end, number).ptr == end && begin != end) return number;
  }
  return std::nullopt;
}

// Returns errno; 0: all is written.
int write_to(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t done = write(descriptor, text.data(), text.size());
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return errno;
    text.remove_prefix(static_cast<std::size_t>(done));
  }
  return 0;
}

}  // namespace

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
  const auto fail = [&](const std::string& why) {
    return ConfigError(fmt::format("{} {}: cannot be written: {}", flag, path.string(), why));
  };
  if (const auto descriptor = descriptor_of(path.string())) {
    if (const int problem = write_to(*descriptor, text)) throw fail(std::strerror(problem));
    return;
  }
  std::error_code error;
  const std::filesystem::path target =
      std::filesystem::is_symlink(path, error) ? std::filesystem::canonical(path, error) : path;
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
