#include "harness/affinity.h"

#include <fmt/format.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace tpjitter {
namespace {

cpu_set_t set_of(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(cpu, &set);
  return set;
}

}  // namespace

std::vector<int> allowed_cpus() {
  cpu_set_t set;
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

std::vector<int> parse_cpu_list(const std::string& text) {
  std::vector<int> cpus;
  std::stringstream list(text);
  for (std::string part; std::getline(list, part, ',');) {
    int first = 0;
    const char* end = part.data() + part.size();
    const auto parsed = std::from_chars(part.data(), end, first);
    if (parsed.ec != std::errc()) continue;
    int last = first;
    if (parsed.ptr < end && *parsed.ptr == '-') std::from_chars(parsed.ptr + 1, end, last);
    for (int cpu = first; cpu <= last && cpu < CPU_SETSIZE; ++cpu) cpus.push_back(cpu);
  }
  return cpus;
}

std::vector<int> cpus_of_numa_node(int node) {
  std::ifstream file(fmt::format("/sys/devices/system/node/node{}/cpulist", node));
  std::string text;
  std::getline(file, text);
  return parse_cpu_list(text);
}

std::optional<int> numa_node_of_cpu(int cpu) {
  for (int node = 0; node < 64; ++node) {
    if (std::filesystem::exists(fmt::format("/sys/devices/system/node/node{}/cpu{}", node, cpu))) {
      return node;
    }
  }
  return std::nullopt;
}

bool bind_to_numa_node(int node) {
  const std::vector<int> allowed = allowed_cpus();
  std::vector<int> cpus;
  for (const int cpu : cpus_of_numa_node(node)) {
    if (std::binary_search(allowed.begin(), allowed.end(), cpu)) cpus.push_back(cpu);
  }
  if (cpus.empty()) return false;
  const cpu_set_t set = set_of(cpus);
  if (sched_setaffinity(0, sizeof set, &set) != 0) return false;
  const unsigned long mask = 1ul << node;
  syscall(SYS_set_mempolicy, MPOL_PREFERRED, &mask, 64);  // a refusal only costs locality
  return true;
}

bool pin_timed_thread(int cpu) {
  const pid_t self = static_cast<pid_t>(syscall(SYS_gettid));
  std::vector<int> others = allowed_cpus();
  std::erase(others, cpu);
  std::error_code error;
  if (!others.empty()) {
    const cpu_set_t set = set_of(others);
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task", error)) {
      const pid_t thread = std::stoi(entry.path().filename().string());
      if (thread != self) sched_setaffinity(thread, sizeof set, &set);
    }
  }
  const cpu_set_t one = set_of({cpu});
  return sched_setaffinity(0, sizeof one, &one) == 0;
}

std::optional<int> core_for_rank(const std::vector<int>& cpus, int rank, int ranks_here) {
  const int num_cpus = static_cast<int>(cpus.size());
  if (ranks_here > num_cpus) return std::nullopt;
  return cpus[static_cast<std::size_t>(rank) * num_cpus / ranks_here];
}

}  // namespace tpjitter
