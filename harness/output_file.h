// A file that a command was asked to write: beside and renamed, so that an earlier one is replaced
// whole or not at all.
#pragma once

#include <filesystem>
#include <string>

namespace tpjitter {

// Throws ConfigError naming `flag`, for what cannot be written and for the files of a run directory.
void write_output_file(const std::filesystem::path& path, const std::string& text,
                       const std::string& flag);

}  // namespace tpjitter
