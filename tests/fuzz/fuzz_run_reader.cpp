// libFuzzer over a run directory: the input is cut into run.json and the files of two ranks, and the
// record that they make is read, analysed and rendered in every format. Whatever it holds must end
// in a report or in an Error, never in a crash, a hang or endless memory.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "harness/contract/error.h"
#include "reports/report.h"
#include "reports/summary.h"

namespace {

constexpr const char* kFiles[] = {"run.json", "rank0.phases.npy", "rank1.phases.npy"};

const std::filesystem::path& scratch() {
  static const std::filesystem::path directory = [] {
    std::string name = (std::filesystem::temp_directory_path() / "tpjitter_fuzz_XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) std::abort();
    return std::filesystem::path(name);
  }();
  return directory;
}

// Overwritten in place: a new file for each input would be most of the time.
void put(const char* name, const std::uint8_t* data, std::size_t size) {
  const int fd = open((scratch() / name).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(size)) != 0 ||
      pwrite(fd, data, size, 0) != static_cast<ssize_t>(size)) {
    std::abort();
  }
  close(fd);
}

}  // namespace

// Two 32-bit lengths, then the bytes of the three files: the last takes what is left.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::uint32_t lengths[2] = {};
  if (size < sizeof lengths) return 0;
  std::memcpy(lengths, data, sizeof lengths);
  data += sizeof lengths;
  size -= sizeof lengths;
  for (int i = 0; i < 3; ++i) {
    const std::size_t length = i < 2 ? lengths[i] % (size + 1) : size;
    put(kFiles[i], data, length);
    data += length;
    size -= length;
  }
  try {
    std::vector<tpjitter::AnalysedRun> runs(1);
    runs[0].run = tpjitter::read_run(scratch());
    runs[0].summary = tpjitter::summarize(runs[0].run, &runs[0].details).document;
    tpjitter::ReportOptions replays, steps;
    replays.replays = true;
    steps.steps = tpjitter::StepRange{0, 3};
    for (const tpjitter::Exporter& exporter : tpjitter::exporters()) {
      std::ostringstream out;
      exporter.write(runs, {}, out);
      if (exporter.format == std::string_view("csv")) exporter.write(runs, replays, out);
      if (exporter.format == std::string_view("perfetto")) exporter.write(runs, steps, out);
    }
  } catch (const tpjitter::Error&) {  // one line that says what is wrong
  }
  return 0;
}
