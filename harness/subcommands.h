// Subcommands with a file of their own, harness/command_<name>.cpp. Each adds its flags to the
// program and sets the exit code when it is called.
#pragma once

namespace CLI {
class App;
}

namespace tpjitter {

void add_doctor_command(CLI::App& app, int& exit_code);
// gate, compare, baseline
void add_gate_commands(CLI::App& app, int& exit_code);
void add_history_command(CLI::App& app, int& exit_code);
void add_selftest_command(CLI::App& app, int& exit_code);

}  // namespace tpjitter
