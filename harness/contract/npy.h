// NumPy .npy files of structured rows (format 1.0 to 3.0): what the recorder appends to and the
// reports map. Layout: magic, version, padded header dict, rows. numpy.load(mmap_mode='r') opens
// it. The one hard thing: a file may be longer than its header says (reserved by posix_fallocate,
// or appended to by a launcher that died before it rewrote the header) or shorter (truncated copy).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "harness/contract/phase_row.h"

namespace tpjitter {

// Header bytes for `rows` rows of `row_size` bytes; fields in offset order, gaps become padding.
// Always the same length for the same fields and row size, so that the row count can be rewritten
// in place with one pwrite at offset 0; a multiple of 64, so that the rows are aligned.
std::string npy_header(std::span<const NpyField> fields, std::size_t row_size, std::uint64_t rows);

// A read-only mapping of a .npy file. Fields are looked up by name, so that a file made by another
// version (more fields, another order) is still readable.
class NpyFile {
 public:
  explicit NpyFile(const std::filesystem::path& path);  // throws RecordError
  ~NpyFile();
  NpyFile(const NpyFile&) = delete;
  NpyFile& operator=(const NpyFile&) = delete;

  struct Field {
    std::string name;
    std::string type;  // "<i8", ...
    std::size_t offset;
  };
  const std::vector<Field>& fields() const { return fields_; }
  std::size_t row_size() const { return row_size_; }
  std::uint64_t rows() const { return rows_; }  // min(declared_rows, capacity_rows)
  std::uint64_t declared_rows() const { return declared_rows_; }  // what the header says
  std::uint64_t capacity_rows() const { return capacity_rows_; }  // whole rows that the file holds
  // i < capacity_rows(). Caution: rows past rows() were never declared; they may be all zero.
  const std::byte* row(std::uint64_t i) const { return data_ + i * row_size_; }

 private:
  void parse_header(const std::string& file);

  std::vector<Field> fields_;
  std::size_t row_size_ = 0;
  std::uint64_t rows_ = 0;
  std::uint64_t declared_rows_ = 0;
  std::uint64_t capacity_rows_ = 0;
  void* map_ = nullptr;
  std::size_t map_bytes_ = 0;
  const std::byte* data_ = nullptr;
};

}  // namespace tpjitter
