// What a record says about its backend against what only the other one leaves behind, and about its
// cases against their rows and types. A record that was edited, or put together of two, must not
// show modelled times as a GPU's, nor take the clocks of GPUs for one. What a hand-made record does
// not have proves nothing.
#pragma once

#include <string>
#include <vector>

#include "reports/run_reader.h"

namespace tpjitter {

// Each as "environment.gpus lists 2 GPUs"; empty: nothing proves it.
std::vector<std::string> proofs_of_gpus(const RunInfo& info);
std::vector<std::string> proofs_of_modelled_device(const Run& run);  // rows are read by then

// Whether all ranks keep the host's clock: said so, and nothing proves GPUs.
bool keeps_host_clock(const RunInfo& info);

// A contradiction is one problem that names everything which speaks against the backend.
void check_backend(Run* run);

// Values of the wrong type, counts below 0, rows of a case that was skipped.
void check_cases(Run* run);

}  // namespace tpjitter
