// The program. Parses flags, calls a command, catches once, turns errors into exit codes.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <string>
#include <system_error>
#include <vector>

#include "harness/contract/error.h"
#include "harness/messages.h"
#include "harness/subcommands.h"

namespace {

using namespace tpjitter;

// What a command printed has to arrive: a full disk behind stdout is an error, whatever was printed.
int check_stdout(int exit_code) {
  std::cout.flush();
  if (std::cout && std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return exit_code;
  print_message(fmt::format("tpjitter: stdout: cannot be written: {}\n", std::strerror(errno)));
  return exit_code == kExitPass ? static_cast<int>(kExitRunFailed) : exit_code;
}

// A word where a command belongs: named, with the commands that there are.
void check_command(const CLI::App& app, int argc, char** argv) {
  if (app.get_require_subcommand_min() == 0 || argc == 0 || argv[0][0] == '-') return;
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) {
    if (command->get_name() == argv[0]) return check_command(*command, argc - 1, argv + 1);
    if (!command->get_group().empty()) names.push_back(command->get_name());
  }
  throw ConfigError(
      fmt::format("{}: no such command; there are: {}", argv[0], fmt::join(names, ", ")));
}

int parse_and_run(int argc, char** argv) {
  CLI::App app{"tpjitter measures how far apart tensor-parallel ranks launch, and what it costs"};
  app.require_subcommand(1);
  app.set_version_flag("--version", TPJITTER_VERSION);
  int exit_code = kExitPass;

  add_run_command(app, {argv, argv + argc}, exit_code);
  add_plan_command(app, exit_code);
  add_list_command(app, exit_code);
  add_report_command(app, exit_code);
  add_doctor_command(app, exit_code);
  add_gate_commands(app, exit_code);
  add_history_command(app, exit_code);
  add_selftest_command(app, exit_code);
  add_process_commands(app, exit_code);

  check_command(app, argc - 1, argv + 1);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // help, version
    print_message(fmt::format("tpjitter: {}; see tpjitter --help\n", error.what()));
    return kExitUsage;
  }
  return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return check_stdout(parse_and_run(argc, argv));
  } catch (const tpjitter::Error& error) {
    print_message(fmt::format("tpjitter: {}\n", error.what()));
    return error.exit_code();
  } catch (const std::system_error& error) {  // fmt's, of a stdout that takes no more
    print_message(fmt::format("tpjitter: the output cannot be written: {}\n", error.what()));
    return tpjitter::kExitRunFailed;
  } catch (const std::exception& error) {
    print_message(fmt::format("tpjitter: internal error: {}\n", error.what()));
    return tpjitter::kExitRunFailed;
  }
}
