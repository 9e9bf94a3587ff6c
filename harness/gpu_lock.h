// One run a GPU: two would measure each other. By the GPU's UUID, so that it does not matter how each
// run numbers them.
#pragma once

#include <filesystem>
#include <string>

namespace tpjitter {

// The lock is the descriptor's, and so ends with the process whatever ends it. Returns the
// descriptor; -1 for no UUID or where no lock file can be made. Throws RunError when another run
// holds the GPU.
int lock_gpu(const std::string& uuid, const std::filesystem::path& directory = "/tmp");

}  // namespace tpjitter
