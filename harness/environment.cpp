#include "harness/environment.h"

#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "harness/affinity.h"
#include "harness/build_info.h"

namespace tpjitter {
namespace {

// First line of a small file; null when it is not there.
Json line_of(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return nullptr;
  return line;
}

Json cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(':');
    if (line.starts_with("model name") && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  return nullptr;
}

bool has_hypervisor() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("flags")) return line.find(" hypervisor") != std::string::npos;
  }
  return false;
}

}  // namespace

Json read_environment() {
  utsname name{};
  uname(&name);
  double load[1] = {0};
  const int loads = getloadavg(load, 1);
  int nodes = 0;
  while (std::filesystem::exists(fmt::format("/sys/devices/system/node/node{}", nodes))) ++nodes;
  Json e;
  e["host"] = name.nodename;
  e["kernel"] = name.release;
  e["machine"] = name.machine;
  e["cpu_model"] = cpu_model();
  e["cpus_online"] = sysconf(_SC_NPROCESSORS_ONLN);
  e["cpus_allowed"] = allowed_cpus();
  e["numa_nodes"] = nodes;
  e["hypervisor"] = has_hypervisor();
  e["governor"] = line_of("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
  e["smt_active"] = line_of("/sys/devices/system/cpu/smt/active");
  e["isolated_cpus"] = line_of("/sys/devices/system/cpu/isolated");
  e["clocksource"] = line_of("/sys/devices/system/clocksource/clocksource0/current_clocksource");
  e["cgroup_cpu_max"] = line_of("/sys/fs/cgroup/cpu.max");
  if (loads == 1) {
    e["load_average_1min"] = load[0];
  } else {
    e["load_average_1min"] = nullptr;
  }
  return e;
}

std::vector<RunWarning> environment_warnings(const Json& e, int ranks) {
  std::vector<RunWarning> warnings;
  const int cpus = static_cast<int>(e.at("cpus_allowed").size());
  if (ranks > cpus) {
    warnings.push_back(
        {"oversubscribed",
         fmt::format("{} ranks share {} CPUs: skew holds the scheduler's time slices; run on a "
                     "machine with a core a rank, or read orders of magnitude only",
                     ranks, cpus),
         std::nullopt});
  }
  const Json& quota = e.at("cgroup_cpu_max");
  if (quota.is_string() && !quota.get<std::string>().starts_with("max")) {
    warnings.push_back({"cgroup_quota",
                        "cgroup cpu.max is " + quota.get<std::string>() +
                            ": spinning ranks can be throttled; lift the quota",
                        std::nullopt});
  }
  const Json& governor = e.at("governor");
  if (governor.is_string() && governor != "performance") {
    warnings.push_back({"cpu_governor",
                        "CPU governor is " + governor.get<std::string>() +
                            ": clocks move under load; set `performance`",
                        std::nullopt});
  }
  const Json& load = e.at("load_average_1min");
  if (load.is_number() && load.get<double>() > 0.5 * cpus) {
    warnings.push_back({"machine_busy",
                        fmt::format("load average was {:.1f} on {} CPUs before the run: other work "
                                    "is in the figures; stop it",
                                    load.get<double>(), cpus),
                        std::nullopt});
  }
  const Json& clocksource = e.at("clocksource");
  if (clocksource.is_string() && clocksource != "tsc" && clocksource != "kvm-clock" &&
      clocksource != "arch_sys_counter") {
    warnings.push_back({"clocksource",
                        "clocksource is " + clocksource.get<std::string>() +
                            ": a host stamp may be a system call; see overhead.stamp_ns",
                        std::nullopt});
  }
  return warnings;
}

Json build_versions() {
  return {{"tpjitter", TPJITTER_VERSION},
          {"compiler", TPJITTER_COMPILER},
          {"build_type", TPJITTER_BUILD_TYPE},
          {"sanitize", TPJITTER_SANITIZE}};
}

const char* git_revision() { return TPJITTER_GIT_REVISION; }

}  // namespace tpjitter
