// `tpjitter doctor`: this machine's readiness, each finding with what to do. Changes nothing.
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "harness/contract/scenario.h"
#include "harness/doctor.h"
#include "harness/subcommands.h"

namespace tpjitter {

void add_doctor_command(CLI::App& app, int& exit_code) {
  struct Flags {
    std::string backend = "auto", out = ".";
    int ranks = 0;
    bool json = false;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* doctor = app.add_subcommand("doctor", "What makes figures doubtful on this machine");
  doctor->add_option("--backend", flags->backend, "auto, cuda or host")->capture_default_str();
  doctor->add_option("--world-size", flags->ranks, "Ranks (default: one a GPU, or 2)")
      ->check(CLI::Range(1, kMaxWorldSize));
  doctor->add_option("--out", flags->out, "Where runs will be written")->capture_default_str();
  doctor->add_flag("--json", flags->json, "As JSON (tpjitter.doctor/1)");
  doctor->callback([flags, &exit_code] {
    const MachineFacts facts = read_machine(flags->backend, flags->ranks, flags->out);
    const std::vector<Finding> findings = examine(facts);
    std::cout << (flags->json ? json_text(doctor_json(facts, findings))
                              : doctor_text(facts, findings));
    exit_code = doctor_exit_code(worst_severity(findings));
  });
}

}  // namespace tpjitter
