#include "harness/environment.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "harness/affinity.h"
#include "harness/build_info.h"

namespace tpjitter {
namespace {

namespace fs = std::filesystem;

// First line of a small file; null when it is not there or empty.
Json line_of(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return nullptr;
  return line;
}

// "model name", "flags" of the first CPU.
Json cpuinfo(const fs::path& root, std::string_view key) {
  std::ifstream file(root / "proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(':');
    if (line.starts_with(key) && colon != std::string::npos && colon + 2 <= line.size()) {
      return line.substr(colon + 2);
    }
  }
  return nullptr;
}

// The governors of the CPUs that we may use: one word where all have the same.
Json governors(const fs::path& root, const std::vector<int>& cpus) {
  std::set<std::string> found;
  for (const int cpu : cpus) {
    const Json governor =
        line_of(root / fmt::format("sys/devices/system/cpu/cpu{}/cpufreq/scaling_governor", cpu));
    if (governor.is_string()) found.insert(governor.get<std::string>());
  }
  if (found.empty()) return nullptr;
  std::string text;
  for (const std::string& governor : found) text += (text.empty() ? "" : ",") + governor;
  return text;
}

Json numa_cpus(const fs::path& root) {
  Json nodes = Json::array();
  for (int node = 0;; ++node) {
    const Json cpus = line_of(root / fmt::format("sys/devices/system/node/node{}/cpulist", node));
    if (cpus.is_null()) return nodes;
    nodes.push_back(cpus);
  }
}

// Directories of our cgroup and those above it that may hold a CPU quota: version 2, then 1.
std::vector<fs::path> cgroup_directories(const fs::path& root) {
  std::vector<fs::path> directories;
  std::ifstream file(root / "proc/self/cgroup");
  const fs::path mount = root / "sys/fs/cgroup";
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    fs::path base = mount;
    if (!controllers.empty()) {
      if (("," + controllers + ",").find(",cpu,") == std::string::npos) continue;
      base /= controllers;
      if (!fs::exists(base)) base = mount / "cpu";
    }
    fs::path own = fs::path(line.substr(second + 1)).relative_path();
    for (; !own.empty(); own = own.parent_path()) directories.push_back(base / own);
    directories.push_back(base);
  }
  directories.push_back(mount);  // in a container the path above may be the host's
  return directories;
}

// "QUOTA PERIOD" of the tightest quota, as in cpu.max; null where there is none.
Json cgroup_cpu_max(const fs::path& root) {
  Json tightest = nullptr;
  double least = 0;
  for (const fs::path& directory : cgroup_directories(root)) {
    std::string text;
    if (const Json max = line_of(directory / "cpu.max"); max.is_string()) {
      text = max.get<std::string>();
    } else if (const Json quota = line_of(directory / "cpu.cfs_quota_us"); quota.is_string()) {
      const Json period = line_of(directory / "cpu.cfs_period_us");
      text = quota.get<std::string>() + " " + (period.is_string() ? period.get<std::string>() : "");
    }
    std::stringstream words(text);
    double quota = 0, period = 0;
    if (!(words >> quota >> period) || quota <= 0 || period <= 0) continue;
    if (!tightest.is_null() && quota / period >= least) continue;
    least = quota / period;
    tightest = text;
  }
  return tightest;
}

// Name of the mount's nearest directory that exists.
fs::path existing_parent(fs::path path) {
  std::error_code error;
  path = fs::absolute(path, error).lexically_normal();
  while (!fs::exists(path, error) && path.has_relative_path()) path = path.parent_path();
  return path;
}

Json free_bytes(const fs::path& path) {
  struct statvfs s {};
  if (statvfs(path.c_str(), &s) != 0) return nullptr;
  return static_cast<std::int64_t>(s.f_bavail) * static_cast<std::int64_t>(s.f_frsize);
}

}  // namespace

std::optional<std::int64_t> cgroup_throttled_us(const fs::path& root) {
  std::optional<std::int64_t> most;
  for (const fs::path& directory : cgroup_directories(root)) {
    std::ifstream file(directory / "cpu.stat");
    std::string key;
    for (std::int64_t value = 0; file >> key >> value;) {
      if (key == "throttled_time") value /= 1000;  // version 1, ns
      if (key != "throttled_time" && key != "throttled_usec") continue;
      most = std::max(most.value_or(0), value);
    }
  }
  return most;
}

Json read_environment(const fs::path& root) {
  utsname name{};
  uname(&name);
  double load[1] = {0};
  const int loads = getloadavg(load, 1);
  const std::vector<int> cpus = allowed_cpus();
  const fs::path system = root / "sys/devices/system";
  const Json flags = cpuinfo(root, "flags");
  const Json nodes = numa_cpus(root);
  const auto throttled = cgroup_throttled_us(root);
  Json e;
  e["host"] = name.nodename;
  e["kernel"] = name.release;
  e["machine"] = name.machine;
  e["cpu_model"] = cpuinfo(root, "model name");
  e["cpus_online"] = sysconf(_SC_NPROCESSORS_ONLN);
  e["cpus_allowed"] = cpus;
  e["numa_nodes"] = nodes.size();
  e["numa_cpus"] = nodes;
  e["hypervisor"] = flags.is_string() &&
                    (flags.get<std::string>() + " ").find(" hypervisor ") != std::string::npos;
  e["governor"] = governors(root, cpus);
  e["smt_active"] = line_of(system / "cpu/smt/active");
  e["isolated_cpus"] = line_of(system / "cpu/isolated");
  e["nohz_full_cpus"] = line_of(system / "cpu/nohz_full");
  e["clocksource"] = line_of(system / "clocksource/clocksource0/current_clocksource");
  e["cgroup_cpu_max"] = cgroup_cpu_max(root);
  e["cgroup_throttled_us"] = throttled ? Json(*throttled) : Json(nullptr);
  e["load_average_1min"] = loads == 1 ? Json(load[0]) : Json(nullptr);
  return e;
}

Json read_limits(const fs::path& out) {
  const int fd = memfd_create("tpjitter-doctor", MFD_CLOEXEC);
  if (fd >= 0) close(fd);
  rlimit locked{};
  const bool known = getrlimit(RLIMIT_MEMLOCK, &locked) == 0 && locked.rlim_cur != RLIM_INFINITY;
  const fs::path place = existing_parent(out);
  return {{"memfd", fd >= 0},
          {"shm_free_bytes", free_bytes("/dev/shm")},
          {"locked_memory_bytes",
           known ? Json(static_cast<std::int64_t>(locked.rlim_cur)) : Json(nullptr)},
          {"out", place.string()},
          {"out_writable", access(place.c_str(), W_OK) == 0},
          {"out_free_bytes", free_bytes(place)}};
}

Json build_versions() {
  return {{"tpjitter", TPJITTER_VERSION},
          {"compiler", TPJITTER_COMPILER},
          {"build_type", TPJITTER_BUILD_TYPE},
          {"sanitize", TPJITTER_SANITIZE}};
}

const char* git_revision() { return TPJITTER_GIT_REVISION; }

}  // namespace tpjitter
