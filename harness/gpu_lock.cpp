#include "harness/gpu_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include "harness/contract/error.h"

namespace tpjitter {

int lock_gpu(const std::string& uuid, const std::filesystem::path& directory) {
  if (uuid.empty()) return -1;
  const std::filesystem::path path = directory / ("tpjitter-" + uuid + ".lock");
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0) return -1;  // no lock file, no exclusion: not worth failing a run for
  if (flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
  close(fd);
  throw RunError(fmt::format("GPU {} is used by another tpjitter run ({} is locked); wait for it",
                             uuid, path.string()));
}

}  // namespace tpjitter
