#include "harness/spawn.h"

#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstring>

#include "harness/contract/error.h"

extern char** environ;

namespace tpjitter {

pid_t spawn_self(std::vector<std::string> words, int inherited_fd) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  // dup2 onto itself clears close-on-exec in the child only.
  posix_spawn_file_actions_adddup2(&actions, inherited_fd, inherited_fd);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);

  words.insert(words.begin(), "tpjitter");
  words.insert(words.end(), {"--parent", std::to_string(getpid())});
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_t pid = -1;
  const int error =
      posix_spawn(&pid, "/proc/self/exe", &actions, &attributes, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) {
    throw RunError(
        fmt::format("tpjitter {} could not be started: {}", words[1], std::strerror(error)));
  }
  return pid;
}

bool die_with_parent(pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  return getppid() == parent;
}

}  // namespace tpjitter
