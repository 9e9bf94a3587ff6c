// `tpjitter selftest`: injects known delays, through the ordinary launcher into an ordinary run
// directory, and judges from that record alone what the analysis finds of them.
#include <fmt/format.h>
#include <stdlib.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <memory>

#include "harness/backend.h"
#include "harness/contract/error.h"
#include "harness/launcher.h"
#include "harness/messages.h"
#include "harness/recorder.h"
#include "harness/selftest.h"
#include "harness/subcommands.h"
#include "reports/run_reader.h"
#include "reports/selftest.h"

namespace tpjitter {
namespace {

namespace fs = std::filesystem;

struct Flags {
  RunOptions run;
  int ranks = 2;
  int delays = 0;   // 0: by the backend
  fs::path record;  // judge this one, measure nothing
  bool json = false;
};

// Removed with what is in it.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string name = (fs::temp_directory_path() / "tpjitter-selftest-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) {
      throw ConfigError(
          fmt::format("{}: cannot be made: {}; pass --out", name, std::strerror(errno)));
    }
    path_ = name;
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

// Fewer ranks than two have nobody to wait for.
void check_capacity(const Flags& flags) {
  std::string reason;
  const BackendEntry& backend = find_backend(flags.run.backend);
  const int capacity = backend.capacity(&reason);
  if (capacity >= 2 || capacity == 0) return;  // 0: the launcher says why
  throw ConfigError(
      fmt::format("selftest needs two ranks, but backend `{}` has room for {} ({}); use --backend "
                  "host to model the device",
                  backend.name, capacity, reason));
}

void measure(const Flags& flags, const fs::path& directory) {
  RunOptions options = flags.run;
  options.out = directory;
  const bool on_host = std::string(find_backend(options.backend).name) == "host";
  if (!on_host) options.step_pause_ns = kSelftestPauseOnGpusNs;
  const int delays = flags.delays != 0 ? flags.delays
                     : on_host         ? kSelftestDelays
                                       : kSelftestDelaysOnGpus;
  options.command = {"tpjitter",     "selftest",
                     "--backend",    options.backend,
                     "--world-size", std::to_string(flags.ranks),
                     "--delays",     std::to_string(delays)};
  const RunOutcome outcome = run_scenario(selftest_scenario(flags.ranks, delays), options);
  if (!outcome.complete) throw RunError("selftest: the run failed: " + outcome.reason);
}

int judge(const Flags& flags, const fs::path& directory) {
  const Run run = read_run(directory);
  const Json document = selftest(run);
  if (!flags.record.empty() && document["rows"].empty()) {
    throw ConfigError(
        fmt::format("--record {}: no case of it injects delays; give the directory of "
                    "a `selftest --out`",
                    directory.string()));
  }
  if (flags.json) {
    std::cout << json_text(document);
  } else {
    write_selftest_text(document, std::cout);
  }
  std::cout.flush();
  if (run.info.status != "complete") return kExitRunFailed;
  return document["pass"].get<bool>() ? kExitPass : kExitRegressed;
}

int run_selftest(const Flags& flags) {
  if (!flags.record.empty()) return judge(flags, flags.record);
  check_capacity(flags);
  if (!flags.run.out.empty()) {
    check_run_directory(flags.run.out, flags.run.overwrite);
    measure(flags, flags.run.out);
    return judge(flags, flags.run.out);
  }
  const TemporaryDirectory directory;
  measure(flags, directory.path());
  const int exit_code = judge(flags, directory.path());
  if (exit_code != kExitPass && !flags.run.quiet) {
    print_message("tpjitter: --out DIR keeps the record; `tpjitter report DIR` shows each case\n");
  }
  return exit_code;
}

}  // namespace

void add_selftest_command(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<Flags>();
  CLI::App* selftest =
      app.add_subcommand("selftest", "Injected delays against what the record gives back of them");
  selftest->add_option("--backend", flags->run.backend, "auto, cuda or host")
      ->capture_default_str();
  selftest->add_option("--world-size", flags->ranks, "Ranks")
      ->check(CLI::Range(2, kMaxWorldSize))
      ->capture_default_str();
  selftest->add_option("--out", flags->run.out, "Run directory to keep (default: a temporary one)")
      ->check(not_empty());
  selftest->add_flag("--overwrite", flags->run.overwrite, "Replace the run that --out holds");
  selftest
      ->add_option("--delays", flags->delays,
                   fmt::format("Delays of each rank in a case; a p95 needs 200 (default: {}, on "
                               "GPUs {})",
                               kSelftestDelays, kSelftestDelaysOnGpus))
      ->check(CLI::Range(40, 4000));
  selftest
      ->add_option("--record", flags->record, "Judge an earlier selftest's run directory instead")
      ->excludes("--out");
  selftest->add_flag("--json", flags->json, "As JSON (tpjitter.selftest/1)");
  selftest->add_flag("--quiet", flags->run.quiet, "No progress on stderr")
      ->envname("TPJITTER_QUIET");
  selftest
      ->add_option("--deadline-scale", flags->run.deadline_scale,
                   "Stretches every deadline, for sanitizer builds")
      ->check(CLI::Range(0.01, 1000.0));
  selftest->callback([flags, &exit_code] { exit_code = run_selftest(*flags); });
}

}  // namespace tpjitter
