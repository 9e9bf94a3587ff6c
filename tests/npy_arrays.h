// A reader of plain one-type .npy arrays for fixtures (the product's own reader takes structured
// rows only).
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace tpjitter::test {

struct NpyArray {
  bool is_int64 = false;  // else int32
  std::vector<std::int64_t> shape;
  std::vector<std::byte> bytes;

  std::vector<std::int32_t> as_int32() const;
  std::vector<std::int64_t> as_int64() const;  // widens
};

// Throws std::runtime_error naming the file for anything but a C-order '<i4' or '<i8' array.
NpyArray read_npy(const std::filesystem::path& path);

}  // namespace tpjitter::test
