#include "harness/contract/npy.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <string_view>

#include "harness/contract/error.h"

namespace tpjitter {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::size_t kAlignment = 64;       // of the first row, as NumPy itself does
constexpr std::size_t kMaxCountDigits = 20;  // of a 64-bit row count

// Bytes of one element of a NumPy type string such as "<i8" or "|V4"; 0 = not understood.
std::size_t type_bytes(std::string_view type) {
  if (type.size() < 3 || std::string_view("<|>=").find(type[0]) == std::string_view::npos) return 0;
  std::size_t bytes = 0;
  const auto [end, error] = std::from_chars(type.data() + 2, type.data() + type.size(), bytes);
  return error == std::errc() && end == type.data() + type.size() && bytes <= 4096 ? bytes : 0;
}

// Reads the Python literal of a .npy header: just the grammar that NumPy writes for 1-D structured
// arrays. Anything else is an error, never a guess.
class HeaderParser {
 public:
  HeaderParser(std::string_view text, std::string file) : text_(text), file_(std::move(file)) {}

  void parse(std::vector<NpyFile::Field>* fields, std::size_t* row_size, std::uint64_t* rows) {
    bool has_descr = false, has_shape = false;
    expect('{');
    while (!accept('}')) {
      const std::string key = quoted();
      expect(':');
      if (key == "descr") {
        parse_descr(fields, row_size);
        has_descr = true;
      } else if (key == "shape") {
        expect('(');
        *rows = number();
        accept(',');
        if (!accept(')')) fail("the array must have one dimension");
        has_shape = true;
      } else if (key == "fortran_order") {
        if (!word("False") && !word("True")) fail("fortran_order must be False");
      } else {
        fail(fmt::format("header key '{}' is not known", key));
      }
      if (!accept(',') && peek() != '}') fail("the header dictionary is damaged");
    }
    if (!has_descr || !has_shape) fail("the header lacks 'descr' or 'shape'");
  }

 private:
  [[noreturn]] void fail(const std::string& problem) const {
    throw RecordError(
        fmt::format("{}: {}; it is no tpjitter row file or is damaged", file_, problem),
        kExitRunFailed);
  }
  char peek() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool accept(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!accept(c)) fail(fmt::format("header byte {}: expected '{}'", at_, c));
  }
  bool word(std::string_view w) {
    peek();
    if (text_.substr(at_, w.size()) != w) return false;
    at_ += w.size();
    return true;
  }
  std::string quoted() {
    const char quote = peek();
    if (quote != '\'' && quote != '"') fail(fmt::format("header byte {}: expected a string", at_));
    const std::size_t end = text_.find(quote, ++at_);
    if (end == std::string_view::npos) fail("a string in the header does not end");
    const std::string value(text_.substr(at_, end - at_));
    at_ = end + 1;
    return value;
  }
  std::uint64_t number() {
    peek();
    std::uint64_t value = 0;
    const auto [end, error] =
        std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
    if (error != std::errc()) fail(fmt::format("header byte {}: expected a row count", at_));
    at_ = static_cast<std::size_t>(end - text_.data());
    return value;
  }
  void parse_descr(std::vector<NpyFile::Field>* fields, std::size_t* row_size) {
    if (peek() != '[') fail("the rows have no named fields");
    expect('[');
    std::size_t offset = 0;
    while (!accept(']')) {
      expect('(');
      std::string name = quoted();
      expect(',');
      std::string type = quoted();
      if (!accept(')')) fail(fmt::format("field '{}' is not a single number", name));
      const std::size_t bytes = type_bytes(type);
      if (bytes == 0) fail(fmt::format("field '{}' has type '{}'", name, type));
      if (!name.empty()) fields->push_back({std::move(name), std::move(type), offset});
      offset += bytes;
      if (!accept(',') && peek() != ']') fail("the field list is damaged");
    }
    if (offset == 0) fail("the rows are empty");
    *row_size = offset;
  }

  std::string_view text_;
  std::string file_;
  std::size_t at_ = 0;
};

}  // namespace

std::string npy_header(std::span<const NpyField> fields, std::size_t row_size, std::uint64_t rows) {
  std::string dict = "{'descr': [";
  std::size_t at = 0;
  const auto pad_to = [&](std::size_t offset) {
    if (offset > at) dict += fmt::format("('', '|V{}'), ", offset - at);
    at = offset;
  };
  for (const NpyField& field : fields) {
    pad_to(field.offset);
    dict += fmt::format("('{}', '{}'), ", field.name, field.type);
    at += type_bytes(field.type);
  }
  pad_to(row_size);
  dict += "], 'fortran_order': False, 'shape': (";
  const std::string count = fmt::format("{}", rows);
  const std::string tail = ",), }";
  // magic, version (2), length (2), dict with the longest count, newline
  const std::size_t longest = kMagic.size() + 4 + dict.size() + kMaxCountDigits + tail.size() + 1;
  const std::size_t total = (longest + kAlignment - 1) / kAlignment * kAlignment;
  const std::size_t text_size = total - kMagic.size() - 4;

  std::string header(kMagic);
  header += '\x01';
  header += '\x00';
  header += static_cast<char>(text_size & 0xff);
  header += static_cast<char>(text_size >> 8);
  header += dict + count + tail;
  header.resize(total - 1, ' ');
  header += '\n';
  return header;
}

NpyFile::NpyFile(const std::filesystem::path& path) {
  const std::string file = path.string();
  // A FIFO would block the open until somebody writes.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    throw RecordError(fmt::format("{}: cannot be opened: {}", file, std::strerror(errno)),
                      kExitRunFailed);
  }
  struct stat status {};
  int error = fstat(fd, &status) == 0 ? 0 : errno;
  if (error == 0 && !S_ISREG(status.st_mode)) {
    close(fd);
    throw RecordError(fmt::format("{}: is not a regular file", file), kExitRunFailed);
  }
  if (error == 0 && status.st_size > 0) {
    map_bytes_ = static_cast<std::size_t>(status.st_size);
    void* map = mmap(nullptr, map_bytes_, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) {
      error = errno;
    } else {
      map_ = map;
    }
  }
  close(fd);
  if (error != 0) {
    throw RecordError(fmt::format("{}: cannot be mapped: {}", file, std::strerror(error)),
                      kExitRunFailed);
  }
  try {
    parse_header(file);
  } catch (...) {  // the destructor does not run for a half-made object
    if (map_ != nullptr) munmap(map_, map_bytes_);
    throw;
  }
}

void NpyFile::parse_header(const std::string& file) {
  const auto damaged = [&](const char* problem) {
    return RecordError(fmt::format("{}: {}; it is no .npy file or is damaged", file, problem),
                       kExitRunFailed);
  };
  const char* bytes = static_cast<const char*>(map_);
  if (map_bytes_ < kMagic.size() + 4) throw damaged("too short for a .npy header");
  if (std::string_view(bytes, kMagic.size()) != kMagic) throw damaged("no .npy magic");
  const auto byte = [&](std::size_t i) {
    return std::size_t{static_cast<unsigned char>(bytes[i])};
  };
  const std::size_t version = byte(kMagic.size());
  std::size_t at = kMagic.size() + 2;
  std::size_t text_size = byte(at) | byte(at + 1) << 8;
  at += 2;
  if (version == 2 || version == 3) {
    if (map_bytes_ < at + 2) throw damaged("too short for a .npy header");
    text_size |= byte(at) << 16 | byte(at + 1) << 24;
    at += 2;
  } else if (version != 1) {
    throw damaged("unknown .npy version");
  }
  if (text_size > map_bytes_ - at) throw damaged("the header is cut off");
  HeaderParser(std::string_view(bytes + at, text_size), file)
      .parse(&fields_, &row_size_, &declared_rows_);
  data_ = reinterpret_cast<const std::byte*>(bytes + at + text_size);
  capacity_rows_ = (map_bytes_ - at - text_size) / row_size_;
  rows_ = std::min(declared_rows_, capacity_rows_);
}

NpyFile::~NpyFile() {
  if (map_ != nullptr) munmap(map_, map_bytes_);
}

}  // namespace tpjitter
