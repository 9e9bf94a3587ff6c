// Where a rank runs: NUMA binding at birth, one core for the timed thread once everything is up.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace tpjitter {

std::vector<int> allowed_cpus();               // of this thread, ascending
std::vector<int> cpus_of_numa_node(int node);  // from sysfs; empty when unknown
std::optional<int> numa_node_of_cpu(int cpu);
std::vector<int> parse_cpu_list(const std::string& text);  // "0-3,8"

// Keeps this thread (and what it starts later) on the node's CPUs that it may use, and its memory
// there. False: nothing changed.
bool bind_to_numa_node(int node);

// Pins this thread to `cpu` and moves every other thread of the process off it, where there is
// another CPU to go to. False when refused.
bool pin_timed_thread(int cpu);

// The core for `rank` of `ranks_here`, spread over `cpus`; none when there are more ranks than
// cores, because a pinned rank could not move away from another one.
std::optional<int> core_for_rank(const std::vector<int>& cpus, int rank, int ranks_here);

}  // namespace tpjitter
