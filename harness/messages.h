// Lines for people, on stderr. A stderr that is full or closed must not end a measurement, so
// nothing here throws or raises a signal (SIGPIPE is ignored while a run lasts).
#pragma once

#include <unistd.h>

#include <string>

namespace tpjitter {

inline void print_message(const std::string& text) {
  const char* p = text.data();
  std::size_t left = text.size();
  while (left > 0) {
    const ssize_t n = write(STDERR_FILENO, p, left);
    if (n <= 0) return;
    p += n;
    left -= static_cast<std::size_t>(n);
  }
}

}  // namespace tpjitter
