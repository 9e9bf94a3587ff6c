// Time and memory of reports over a large generated record. The record is made once and kept in
// --dir; each format runs in a process of its own, the first of them twice, so that the files are in
// the page cache. Anonymous memory is what the report itself holds: the mapped rows are not in it.
//   bench_report [--rows 10000000] [--ranks 2] [--cases 3] [--dir DIR] [--formats text,md,...]
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <fstream>
#include <iostream>
#include <ostream>
#include <streambuf>
#include <thread>

#include "harness/contract/error.h"
#include "reports/report.h"
#include "tests/record_generator.h"

namespace tpjitter {
namespace {

// Takes everything and keeps its length.
class CountingBuffer : public std::streambuf {
 public:
  std::uint64_t bytes() const { return bytes_; }

 private:
  int overflow(int c) override {
    ++bytes_;
    return c;
  }
  std::streamsize xsputn(const char*, std::streamsize n) override {
    bytes_ += static_cast<std::uint64_t>(n);
    return n;
  }
  std::uint64_t bytes_ = 0;
};

std::uint64_t anonymous_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    std::uint64_t kib = 0;
    if (word == "RssAnon:" && status >> kib) return kib;
  }
  return 0;
}

// Largest anonymous memory of this process while it lives, looked at every millisecond.
class MemoryWatch {
 public:
  MemoryWatch()
      : thread_([this](const std::stop_token& stop) {
          while (!stop.stop_requested()) {
            most_ = std::max(most_.load(), anonymous_kib());
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
          }
        }) {}
  std::uint64_t most_kib() const { return most_; }

 private:
  std::atomic<std::uint64_t> most_{0};
  std::jthread thread_;
};

struct Result {
  double seconds = 0;
  double cpu_seconds = 0;
  std::uint64_t bytes = 0, anonymous_kib = 0;
  int exit_code = 0;
};

Result measure(const std::filesystem::path& directory, std::string format) {
  ReportOptions options;
  if (format == "csv-replays") {
    options.replays = true;
    format = "csv";
  }
  const MemoryWatch watch;
  CountingBuffer counter;
  std::ostream out(&counter);
  const auto begin = std::chrono::steady_clock::now();
  Result result;
  result.exit_code = report({directory}, format, out, options);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  result.cpu_seconds = static_cast<double>(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
                       static_cast<double>(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
  result.bytes = counter.bytes();
  result.anonymous_kib = watch.most_kib();
  return result;
}

// In a child, so that one format's memory is not another's.
Result measure_apart(const std::filesystem::path& directory, const std::string& format) {
  int ends[2];
  if (pipe(ends) != 0) throw RunError("no pipe");
  const pid_t child = fork();
  if (child == 0) {
    Result result;
    try {
      result = measure(directory, format);
    } catch (const std::exception& error) {
      std::cerr << error.what() << '\n';
      result.exit_code = -1;
    }
    const bool sent = write(ends[1], &result, sizeof result) == sizeof result;
    _exit(sent ? 0 : 1);
  }
  Result result;
  const bool got = read(ends[0], &result, sizeof result) == sizeof result;
  close(ends[0]);
  close(ends[1]);
  waitpid(child, nullptr, 0);
  if (!got) throw RunError(fmt::format("{}: the process that renders it died", format));
  return result;
}

void generate(const std::filesystem::path& directory, std::int64_t rows, int ranks, int cases,
              std::int64_t noise_ns) {
  GeneratorConfig config;
  config.world_size = ranks;
  config.launches = 4;
  config.block_steps = 200;
  config.noise_ns = noise_ns;
  config.cases.clear();
  for (int i = 0; i < cases; ++i) {
    GeneratedCase one;
    one.name = fmt::format("case{}", i);
    one.dispatch_ns = 20'000 + 50'000 * i;
    one.late_stage = LateStage::kDispatch;
    one.late_rotates = true;
    one.late_ns = 5'000 * i;
    config.cases.push_back(one);
  }
  config.steps = static_cast<int>(rows / (ranks * cases * config.launches));
  std::filesystem::create_directories(directory);
  write_run(directory, generate_run(config));
}

int bench(int argc, char** argv) {
  std::int64_t rows = 10'000'000, noise_ns = 2'000;
  int ranks = 2, cases = 3;
  std::filesystem::path directory =
      std::filesystem::temp_directory_path() / "tpjitter_bench_report";
  std::vector<std::string> formats = {"text", "md",          "json",    "html",
                                      "csv",  "csv-replays", "perfetto"};
  CLI::App app("Time and memory of reports over a large generated record");
  app.add_option("--rows", rows, "Phase rows of all ranks together")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--ranks", ranks)->capture_default_str();
  app.add_option("--cases", cases)->capture_default_str();
  app.add_option("--noise-ns", noise_ns, "What each stage takes more, at most, at random")
      ->capture_default_str();
  app.add_option("--dir", directory, "Where the record is kept")->capture_default_str();
  app.add_option("--formats", formats)->delimiter(',')->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  const auto record = directory / fmt::format("{}x{}x{}x{}", rows, ranks, cases, noise_ns);
  if (!std::filesystem::exists(record / "run.json")) {
    std::cout << "making " << record.string() << "\n";
    if (const pid_t child = fork(); child == 0) {
      generate(record, rows, ranks, cases, noise_ns);
      _exit(0);
    } else {
      waitpid(child, nullptr, 0);
    }
  }
  measure_apart(record, formats.front());
  std::cout << fmt::format(
      "{} rows, {} ranks, {} cases, {} ns of noise a stage, {} cores; files in the page cache\n",
      rows, ranks, cases, noise_ns, std::thread::hardware_concurrency());
  std::cout << "format        time s   CPU s   anonymous MiB   output MB   MB/s\n";
  for (const std::string& format : formats) {
    const Result r = measure_apart(record, format);
    const double mb = static_cast<double>(r.bytes) / 1e6;
    std::cout << fmt::format("{:<12} {:>7.2f} {:>7.2f} {:>15} {:>11.2f} {:>6.0f}{}\n", format,
                             r.seconds, r.cpu_seconds, r.anonymous_kib / 1024, mb, mb / r.seconds,
                             r.exit_code == 0 ? "" : fmt::format("  exit {}", r.exit_code));
  }
  std::cout
      << "Exact, whatever the size: n, every quantile (nearest rank), min, max, jitter, shares,\n"
         "and the points of the curves, which are at most 200 of each. Means are sums in\n"
         "integers divided once; means of stages are sums of doubles.\n";
  return 0;
}

}  // namespace
}  // namespace tpjitter

int main(int argc, char** argv) {
  try {
    return tpjitter::bench(argc, argv);
  } catch (const tpjitter::Error& error) {
    std::cerr << "bench_report: " << error.what() << '\n';
    return error.exit_code();
  }
}
