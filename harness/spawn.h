// Starts this program again as a child, by exec: ranks and the noise process.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace tpjitter {

// `words` are the arguments after the program's name; of all descriptors the child inherits stdin,
// stdout, stderr and `inherited_fd`. Throws RunError.
pid_t spawn_self(std::vector<std::string> words, int inherited_fd);

}  // namespace tpjitter
