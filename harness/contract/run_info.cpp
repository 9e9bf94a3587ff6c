#include "harness/contract/run_info.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <sstream>
#include <unordered_set>

#include "harness/contract/error.h"

namespace tpjitter {
namespace {

constexpr std::size_t kMaxDepth = 64;  // of nested arrays and objects

// Builds a document and refuses what nlohmann's own parser lets pass: duplicate keys and integers
// that would lose digits as a double.
class StrictBuilder : public nlohmann::json_sax<Json> {
 public:
  StrictBuilder(const std::string& text, const std::string& file) : text_(text), file_(file) {}
  Json take() { return std::move(root_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t& digits) override {
    if (digits.find_first_of(".eE") == string_t::npos) {
      fail(fmt::format("integer {} does not fit in 64 bits", digits));
    }
    return add(value);
  }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t&) override { fail("binary data"); }
  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    if (!keys_.back().insert(name).second) fail(fmt::format("key '{}' appears twice", name));
    pending_ = std::move(name);
    return true;
  }
  bool parse_error(std::size_t position, const std::string& token,
                   const nlohmann::json::exception& error) override {
    const std::size_t at = std::min(position, text_.size());
    const auto begin = text_.begin();
    const auto end = begin + static_cast<std::ptrdiff_t>(at);
    const auto line = 1 + std::count(begin, end, '\n');
    const auto column = end - std::find(std::make_reverse_iterator(end), text_.rend(), '\n').base();
    const std::string_view number = not_finite(at, token, error.id);
    if (!number.empty()) {
      throw RecordError(fmt::format("{}:{}:{}: {} is {}, not a finite number", file_, line, column,
                                    value_place(), number),
                        kExitRunFailed);
    }
    const bool cut_off = at == text_.size() && error.id == 101;
    throw RecordError(fmt::format("{}:{}:{}: not valid JSON near '{}'{}", file_, line, column,
                                  token.substr(0, 40), cut_off ? "; the file ends too early" : ""),
                      kExitRunFailed);
  }

 private:
  // What programs write for a number that is none, where the parser stopped; else empty.
  std::string_view not_finite(std::size_t stopped_at, const std::string& token, int error) const {
    constexpr int kNumberOverflow = 406;
    const std::string_view text(text_);
    if (error == kNumberOverflow) return text.substr(stopped_at - token.size(), token.size());
    if (stopped_at == 0) return {};
    // It stopped behind the first letter.
    const bool minus = stopped_at >= 2 && text[stopped_at - 2] == '-';
    const std::string_view rest = text.substr(stopped_at - (minus ? 2 : 1));
    for (const std::string_view word :
         {"NaN", "-NaN", "nan", "-nan", "Infinity", "-Infinity", "inf", "-inf"}) {
      if (rest.starts_with(word)) return rest.substr(0, word.size());
    }
    return {};
  }
  // "key `benchmarks[0].real_time` (BM_x/8)": of the value that comes next; its object's name too.
  std::string value_place() const {
    std::string path;
    for (std::size_t i = 0; i < open_.size(); ++i) {
      const Json& inside = *open_[i];
      const bool last = i + 1 == open_.size();
      if (inside.is_array()) {
        path += fmt::format("[{}]", inside.size() - (last ? 0 : 1));
      } else {
        path += (path.empty() ? "" : ".") + (last ? pending_ : std::prev(inside.end()).key());
      }
    }
    if (path.empty()) return "the document";
    std::string place = fmt::format("key `{}`", path);
    const Json& object = *open_.back();
    if (object.is_object() && object.contains("name") && object["name"].is_string()) {
      place += fmt::format(" ({})", object["name"].get<std::string>());
    }
    return place;
  }
  [[noreturn]] void fail(const std::string& problem) const {
    throw RecordError(fmt::format("{}: not strict JSON: {}", file_, problem), kExitRunFailed);
  }
  Json* place(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    // Not operator[]: ordered_json would search all keys again.
    auto& members = parent.get_ref<Json::object_t&>();
    members.push_back({std::move(pending_), std::move(value)});
    return &members.back().second;
  }
  bool add(Json value) {
    place(std::move(value));
    return true;
  }
  bool open(Json empty) {
    if (open_.size() >= kMaxDepth) fail(fmt::format("nested deeper than {}", kMaxDepth));
    open_.push_back(place(std::move(empty)));
    keys_.emplace_back();
    return true;
  }
  bool close() {
    open_.pop_back();
    keys_.pop_back();
    return true;
  }

  const std::string& text_;
  const std::string& file_;
  Json root_;
  std::vector<Json*> open_;  // stable: a parent does not grow while a child is open
  std::vector<std::unordered_set<std::string>> keys_;
  std::string pending_;
};

void write_value(const Json& value, int depth, std::string* out) {
  const std::string indent(static_cast<std::size_t>(depth + 1) * 2, ' ');
  if (value.is_number_float() && !std::isfinite(value.get<double>())) {
    throw Error("a number in a JSON document is not finite", kExitRunFailed);
  }
  const bool plain_array =
      value.is_array() &&
      std::none_of(value.begin(), value.end(), [](auto& v) { return v.is_structured(); });
  if (!value.is_structured() || value.empty()) {
    *out += value.dump(-1, ' ', false, Json::error_handler_t::replace);
  } else if (plain_array) {
    *out += '[';
    for (std::size_t i = 0; i < value.size(); ++i) {
      if (i > 0) *out += ", ";
      write_value(value[i], depth, out);
    }
    *out += ']';
  } else {
    *out += value.is_array() ? "[" : "{";
    bool first = true;
    for (const auto& [key, member] : value.items()) {
      *out += first ? "\n" : ",\n";
      first = false;
      *out += indent;
      if (value.is_object()) {
        *out += Json(key).dump(-1, ' ', false, Json::error_handler_t::replace) + ": ";
      }
      write_value(member, depth + 1, out);
    }
    *out += '\n' + indent.substr(2) + (value.is_array() ? "]" : "}");
  }
}

[[noreturn]] void fail_write(const std::filesystem::path& path) {
  throw RunError(fmt::format("{}: cannot be written: {}; check the disk and its permissions",
                             path.string(), std::strerror(errno)));
}

// Throws with the file closed and removed, so that no half of it stays behind.
void write_and_sync(const std::filesystem::path& path, const std::string& text) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) fail_write(path);
  bool ok = true;
  for (std::size_t done = 0; ok && done < text.size();) {
    const ssize_t n = write(fd, text.data() + done, text.size() - done);
    if (n > 0) done += static_cast<std::size_t>(n);
    ok = n > 0 || (n < 0 && errno == EINTR);
  }
  ok = ok && fsync(fd) == 0;
  const int error = errno;
  close(fd);
  if (!ok) {
    unlink(path.c_str());
    errno = error;
    fail_write(path);
  }
}

}  // namespace

Json parse_strict_json(const std::string& text, const std::string& file) {
  StrictBuilder builder(text, file);
  Json::sax_parse(text, &builder);
  return builder.take();
}

std::string json_text(const Json& document) {
  std::string text;
  write_value(document, 0, &text);
  return text + '\n';
}

void write_run_json(const std::filesystem::path& run_directory, const RunInfo& info) {
  const std::filesystem::path target = run_directory / "run.json";
  const std::filesystem::path beside = run_directory / "run.json.tmp";
  write_and_sync(beside, json_text(run_info_to_json(info)));
  if (rename(beside.c_str(), target.c_str()) != 0) fail_write(target);
  const int directory = open(run_directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory >= 0) {
    fsync(directory);  // best effort: some file systems cannot sync a directory
    close(directory);
  }
}

RunInfo read_run_json(const std::filesystem::path& run_directory) {
  const std::filesystem::path path = run_directory / "run.json";
  std::error_code error;
  if (std::filesystem::is_regular_file(run_directory, error)) {
    throw RecordError(
        fmt::format("{}: is a file; give the run directory that it is in", run_directory.string()),
        kExitUsage);
  }
  if (!std::filesystem::is_directory(run_directory, error)) {
    throw RecordError(
        fmt::format("{}: no such directory; give the directory that tpjitter run --out "
                    "made",
                    run_directory.string()),
        kExitUsage);
  }
  if (!std::filesystem::exists(path, error)) {
    throw RecordError(fmt::format("{}: has no run.json, so it is no tpjitter run directory",
                                  run_directory.string()),
                      kExitUsage);
  }
  // Before it is opened: a FIFO would block.
  if (!std::filesystem::is_regular_file(path, error)) {
    throw RecordError(fmt::format("{}: is not a regular file, so this is no tpjitter run directory",
                                  path.string()),
                      kExitUsage);
  }
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  if (!stream) {
    throw RecordError(fmt::format("{}: cannot be read: {}", path.string(), std::strerror(errno)),
                      kExitRunFailed);
  }
  return run_info_from_json(parse_strict_json(text.str(), path.string()), path.string());
}

}  // namespace tpjitter
