// Reads format 1.0: magic, version, 16-bit header length, a Python dict, the data.
#include "tests/npy_arrays.h"

#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>

namespace tpjitter::test {

std::vector<std::int32_t> NpyArray::as_int32() const {
  if (is_int64) throw std::runtime_error("fixture: array is int64, int32 wanted");
  std::vector<std::int32_t> values(bytes.size() / 4);
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

std::vector<std::int64_t> NpyArray::as_int64() const {
  if (!is_int64) {
    const std::vector<std::int32_t> narrow = as_int32();
    return {narrow.begin(), narrow.end()};
  }
  std::vector<std::int64_t> values(bytes.size() / 8);
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

NpyArray read_npy(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  const std::string file((std::istreambuf_iterator<char>(stream)),
                         std::istreambuf_iterator<char>());
  const auto fail = [&](const char* what) {
    return std::runtime_error("fixture " + path.string() + ": " + what);
  };
  if (file.size() < 10 || file.compare(0, 6, "\x93NUMPY") != 0) throw fail("not a .npy file");
  const std::size_t header_length =
      static_cast<unsigned char>(file[8]) + 256 * std::size_t{static_cast<unsigned char>(file[9])};
  const std::string header = file.substr(10, header_length);
  NpyArray array;
  array.is_int64 = header.find("'<i8'") != std::string::npos;
  if (!array.is_int64 && header.find("'<i4'") == std::string::npos) throw fail("no <i4 or <i8");
  if (header.find("'fortran_order': False") == std::string::npos) throw fail("not in C order");
  const std::size_t open = header.find('(');
  const std::size_t close = header.find(')');
  if (open == std::string::npos || close == std::string::npos) throw fail("no shape");
  std::int64_t count = 1;
  for (std::size_t at = open + 1; at < close;) {
    std::size_t used = 0;
    array.shape.push_back(std::stoll(header.substr(at, close - at), &used));
    count *= array.shape.back();
    at += used;
    while (at < close && (header[at] == ',' || header[at] == ' ')) ++at;
  }
  const std::size_t data = 10 + header_length;
  const std::size_t size = static_cast<std::size_t>(count) * (array.is_int64 ? 8 : 4);
  if (file.size() - data != size) throw fail("size differs from its shape");
  array.bytes.resize(size);
  if (size > 0) std::memcpy(array.bytes.data(), file.data() + data, size);
  return array;
}

}  // namespace tpjitter::test
