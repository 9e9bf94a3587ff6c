// Where tables live: the same classes keep them in host memory, for the checker, and on a GPU.
#pragma once

#include <cstddef>
#include <deque>
#include <vector>

namespace tpjitter {

// What a poisoned byte is: no path writes words of it.
inline constexpr unsigned char kPoisonByte = 0x7f;

class TableMemory {
 public:
  virtual ~TableMemory() = default;
  // Zeroed; stays until this goes.
  virtual void* allocate(std::size_t bytes) = 0;
  // Both are over when they return. Before timing only.
  virtual void fill(void* to, unsigned char value, std::size_t bytes) = 0;
  virtual void write(void* to, const void* from, std::size_t bytes) = 0;
  virtual void read(void* to, const void* from, std::size_t bytes) = 0;  // to host memory
};

class HostTableMemory final : public TableMemory {
 public:
  void* allocate(std::size_t bytes) override;
  void fill(void* to, unsigned char value, std::size_t bytes) override;
  void write(void* to, const void* from, std::size_t bytes) override;
  void read(void* to, const void* from, std::size_t bytes) override { write(to, from, bytes); }

 private:
  std::deque<std::vector<std::byte>> blocks_;  // each aligned for any integer
};

}  // namespace tpjitter
