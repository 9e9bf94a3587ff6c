// What a bench_* program must know of the library's flags before the library has read them.
#pragma once

#include <cstring>

namespace tpjitter {

// Rows are only listed, for which no GPU is needed.
inline bool asks_for_list(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    if (std::strncmp(argv[i], "--benchmark_list_tests", 22) == 0) {
      return std::strcmp(argv[i] + 22, "=false") != 0;
    }
  }
  return false;
}

}  // namespace tpjitter
