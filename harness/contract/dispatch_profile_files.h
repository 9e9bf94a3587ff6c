// The files of harness/contract/dispatch_profiles, embedded by dispatch_profiles/embed.cmake.
#pragma once

#include <span>

namespace tpjitter {

struct DispatchProfileFile {
  const char* name;  // "python"
  const char* text;  // JSON
};
std::span<const DispatchProfileFile> dispatch_profile_files();

}  // namespace tpjitter
