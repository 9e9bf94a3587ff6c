// Subcommands with a file of their own, harness/command_<name>.cpp. Each adds its flags to the
// program and sets the exit code when it is called.
#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <string>
#include <vector>

namespace tpjitter {

void add_run_command(CLI::App& app, const std::vector<std::string>& command_line, int& exit_code);
void add_plan_command(CLI::App& app, int& exit_code);
// The hidden ones of ranks and noise.
void add_process_commands(CLI::App& app, int& exit_code);
void add_list_command(CLI::App& app, int& exit_code);
void add_report_command(CLI::App& app, int& exit_code);
void add_doctor_command(CLI::App& app, int& exit_code);
// gate, compare, baseline
void add_gate_commands(CLI::App& app, int& exit_code);
void add_history_command(CLI::App& app, int& exit_code);
void add_selftest_command(CLI::App& app, int& exit_code);

// What `report RUN` does, for `run` too.
int print_report(const std::filesystem::path& run);

// For flags whose value may not be empty.
inline CLI::Validator not_empty() {
  return {[](const std::string& value) { return std::string(value.empty() ? "is empty" : ""); }, "",
          "not_empty"};
}

}  // namespace tpjitter
