// The backend that needs no GPU: real rank processes, clocks, dispatch code and exchange over a
// modelled device. It shows what a machine's CPUs do to its ranks; device times are the model's.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "harness/backend.h"

namespace tpjitter {

std::unique_ptr<Backend> make_host_backend(const RankContext& context);
int host_capacity(std::string* reason);
Json host_model();
std::string host_skip_reason(const CaseConfig& config, int world_size);
std::optional<int> host_numa_node(int rank);
void describe_host(Json& environment, Json& versions);

}  // namespace tpjitter
