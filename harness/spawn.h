// Starts this program again as a child, by exec: ranks and the noise process.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace tpjitter {

// `words` are the arguments after the program's name, and `--parent` with this process follows; of
// all descriptors the child inherits stdin, stdout, stderr and `inherited_fd`. Throws RunError.
pid_t spawn_self(std::vector<std::string> words, int inherited_fd);

// The child, first of all: it dies with the parent that it was told of. False: that one is gone
// already, perhaps before this process could look.
bool die_with_parent(pid_t parent);

}  // namespace tpjitter
