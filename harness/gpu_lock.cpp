#include "harness/gpu_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>

#include "harness/contract/error.h"

namespace tpjitter {

int lock_gpu(const std::string& uuid, const std::filesystem::path& directory) {
  if (uuid.empty()) return -1;
  const std::filesystem::path path = directory / ("tpjitter-" + uuid + ".lock");
  // flock needs no write access, and a sticky directory lets nobody open another user's file for it.
  int fd = open(path.c_str(), O_RDONLY | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -1;  // no lock file, no exclusion: not worth failing a run for
  if (flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
  const bool taken = errno == EWOULDBLOCK;
  close(fd);
  if (!taken) return -1;
  throw RunError(fmt::format("GPU {} is used by another tpjitter run ({} is locked); wait for it",
                             uuid, path.string()));
}

}  // namespace tpjitter
