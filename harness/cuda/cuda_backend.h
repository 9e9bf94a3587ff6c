// The backend on real GPUs: rank r is device r. Free of CUDA headers, for the table of backends.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "harness/backend.h"

namespace tpjitter {

// Makes the rank's context and its arena, opens the peers' arenas. Collective. Throws RunError.
std::unique_ptr<Backend> make_cuda_backend(const RankContext& context);

// GPUs of this machine; 0 with the reason when there is no driver or no device. Makes no context.
int cuda_capacity(std::string* reason);
Json cuda_model();  // null: nothing is modelled
// Why a case cannot run on GPUs; empty: it can.
std::string cuda_skip_reason(const CaseConfig& config, int world_size);
// NUMA node that rank's GPU hangs on, from its PCI bus id. Makes no context.
std::optional<int> cuda_numa_node(int rank);
void describe_cuda(Json& environment, Json& versions);

// Pairs of the first `world_size` GPUs that cannot read each other's memory.
std::vector<std::pair<int, int>> gpus_without_peer_access(int world_size);

}  // namespace tpjitter
