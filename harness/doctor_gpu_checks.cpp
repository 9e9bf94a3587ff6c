#include <fmt/format.h>

#include <algorithm>

#include "harness/affinity.h"
#include "harness/doctor_checks.h"

namespace tpjitter {
namespace {

using Found = std::optional<Verdict>;
constexpr Severity kOk = Severity::kOk, kAdvice = Severity::kAdvice,
                   kDoubtful = Severity::kDoubtful, kUnusable = Severity::kUnusable;

// Indices of the GPUs of the ranks for which `is` holds, as "0, 2"; empty: none.
template <class Is>
std::string gpus_where(const MachineFacts& f, Is is) {
  std::string list;
  const Json& gpus = env(f, "gpus");
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    if (is(gpus[i])) list += fmt::format("{}{}", list.empty() ? "" : ", ", i);
  }
  return list;
}

// A check of each GPU's fact `key`, where any of them tells it. `bad.text` has {} for the GPUs that
// fail.
template <class IsBad>
Found each_gpu(const MachineFacts& f, const char* key, IsBad is_bad, const char* ok,
               const Verdict& bad) {
  const auto tells = [&](const Json& gpu) { return !fact(gpu, key).is_null(); };
  if (!f.on_gpus() || gpus_where(f, tells).empty()) return std::nullopt;
  const std::string with = gpus_where(f, is_bad);
  if (with.empty()) return Verdict{kOk, ok, ""};
  return Verdict{bad.severity, fmt::format(fmt::runtime(bad.text), with), bad.advice};
}

Found gpus(const MachineFacts& f) {
  if (f.asked == "host") return std::nullopt;
  constexpr const char* kStillWorks =
      "without a GPU these work: plan, list, run --backend host, report and everything that reads "
      "records; for GPU figures run on a machine with NVIDIA GPUs and their driver";
  if (f.gpus == 0) {
    return Verdict{f.asked == "cuda" ? kUnusable : kAdvice,
                   fmt::format("{}; the host backend models the device",
                               f.no_gpu_reason.empty() ? "no GPU" : f.no_gpu_reason),
                   kStillWorks};
  }
  if (f.ranks > f.gpus) {
    return Verdict{f.asked == "cuda" ? kUnusable : kDoubtful,
                   fmt::format("{} GPUs for {} ranks", f.gpus, f.ranks),
                   "lower --world-size, or check CUDA_VISIBLE_DEVICES"};
  }
  if (f.gpus == 1) {
    return Verdict{kAdvice,
                   "one GPU: dispatch and launch times are real, but there is no peer to "
                   "wait for",
                   "for skew and waits use two or more GPUs, or --backend host"};
  }
  std::string names;
  for (const Json& gpu : env(f, "gpus")) {
    const std::string name = fact(gpu, "name").is_string() ? fact(gpu, "name") : Json("GPU");
    if (names.find(name) == std::string::npos) names += (names.empty() ? "" : ", ") + name;
  }
  return Verdict{kOk, fmt::format("{} GPUs ({})", f.gpus, names), ""};
}

// A library that a run can do without.
Found version(const MachineFacts& f, const char* key, const char* name, const char* missing,
              const char* advice) {
  if (!f.on_gpus()) return std::nullopt;
  const Json& found = fact(f.versions, key);
  if (!found.is_string()) return Verdict{kAdvice, missing, advice};
  return Verdict{kOk, fmt::format("{} {}", name, found.get<std::string>()), ""};
}

Found driver(const MachineFacts& f) {
  return version(f, "nvidia_driver", "driver",
                 "NVML cannot be loaded: clocks, MIG and other processes are not seen",
                 "make libnvidia-ml.so.1 visible");
}
Found nccl(const MachineFacts& f) {
  return version(f, "nccl", "NCCL",
                 "NCCL is not in this build: cases with all_reduce = \"nccl\" are skipped",
                 "build where nccl.h and libnccl are found");
}

Found cuda_runtime(const MachineFacts& f) {
  const Json &runtime = fact(f.versions, "cuda_runtime"),
             &by_driver = fact(f.versions, "cuda_driver");
  if (!f.on_gpus() || !runtime.is_string() || !by_driver.is_string()) return std::nullopt;
  const std::string text = fmt::format("CUDA {}, the driver supports {}",
                                       runtime.get<std::string>(), by_driver.get<std::string>());
  const int need = std::atoi(runtime.get<std::string>().c_str());
  if (std::atoi(by_driver.get<std::string>().c_str()) < need) {
    return Verdict{
        kUnusable, text,
        fmt::format("install a driver for CUDA {}, or build with an older toolkit", need)};
  }
  return Verdict{kOk, text, ""};
}

Found peer_access(const MachineFacts& f) {
  const Json& pairs = env(f, "gpus_without_peer_access");
  if (!f.on_gpus() || f.gpus < 2 || !pairs.is_array()) return std::nullopt;
  if (pairs.empty()) return Verdict{kOk, "all GPUs reach each other's memory", ""};
  return Verdict{kUnusable, "GPUs that cannot reach each other: " + pairs.dump(),
                 "choose GPUs of one NVLink or PCIe domain with CUDA_VISIBLE_DEVICES; in a virtual "
                 "machine or with the IOMMU on, peers can be hidden"};
}

Found nvlink(const MachineFacts& f) {
  if (f.gpus < 2) return std::nullopt;
  return each_gpu(f, "nvlinks_active",
                  [](const Json& gpu) { return fact(gpu, "nvlinks_active") == 0; },
                  "NVLink is up on every GPU",
                  {kAdvice, "GPU {} has no active NVLink: all-reduces go over PCIe",
                   "compare only with machines wired alike"});
}

// GPUs with a setting that is wrong in itself: "... on GPU 0, 2: what it means".
Found setting(const MachineFacts& f, const char* key, bool bad, Severity severity, const char* text,
              const char* means, const char* advice) {
  if (!f.on_gpus()) return std::nullopt;
  const std::string with = gpus_where(f, [&](const Json& gpu) { return fact(gpu, key) == bad; });
  if (with.empty()) return std::nullopt;
  return Verdict{severity, fmt::format("{} on GPU {}: {}", text, with, means), advice};
}

Found mig(const MachineFacts& f) {
  return setting(f, "mig_mode", true, kUnusable, "MIG mode is", "slices have no peers",
                 "run on whole GPUs");
}
Found mps(const MachineFacts& f) {
  return setting(f, "mps", true, kUnusable, "MPS is", "other clients would be measured too",
                 "stop the MPS daemon");
}
Found gpu_persistence(const MachineFacts& f) {
  return setting(f, "persistence_mode", false, kAdvice, "persistence mode is off",
                 "each start loads the driver's state anew",
                 "`nvidia-smi -pm 1`, or the persistence daemon");
}
Found gpu_ecc(const MachineFacts& f) {
  return setting(f, "ecc", false, kAdvice, "ECC is off", "memory is faster than on servers with it",
                 "compare only with GPUs set alike");
}

Found compute_mode(const MachineFacts& f) {
  const auto is_bad = [](const Json& gpu) {
    const Json& mode = fact(gpu, "compute_mode");
    return mode.is_string() && mode != "default";
  };
  return each_gpu(
      f, "compute_mode", is_bad, "compute mode is default",
      {kUnusable, "GPU {} is in exclusive or prohibited mode: peers cannot open its memory",
       "set it to default with `nvidia-smi -c 0`"});
}

Found gpu_processes(const MachineFacts& f) {
  const auto is_bad = [](const Json& gpu) {
    const Json& processes = fact(gpu, "processes");
    return processes.is_number() && processes > 0;
  };
  return each_gpu(f, "processes", is_bad, "no other process is on the GPUs",
                  {kDoubtful, "another process is on GPU {}: its kernels are in the figures",
                   "end it, or take other GPUs with CUDA_VISIBLE_DEVICES"});
}

Found gpu_throttled(const MachineFacts& f) {
  const auto is_bad = [](const Json& gpu) {
    // NVML: software power cap, hardware slowdown, software and hardware thermal, power brake.
    constexpr std::uint64_t kSlowed = 0x4 | 0x8 | 0x20 | 0x40 | 0x80;
    const Json& reasons = fact(gpu, "throttle_reasons");
    return reasons.is_number_integer() && (reasons.get<std::uint64_t>() & kSlowed) != 0;
  };
  return each_gpu(f, "throttle_reasons", is_bad, "no GPU is throttled",
                  {kDoubtful, "GPU {} is slowed by heat or its power limit",
                   "let it cool, raise the power limit, and compare the clocks in the record"});
}

Found gpu_clocks(const MachineFacts& f) {
  const auto is_bad = [](const Json& gpu) {
    const Json &now = fact(gpu, "sm_clock_mhz"), &most = fact(gpu, "max_sm_clock_mhz");
    return now.is_number() && most.is_number() && now < most;
  };
  return each_gpu(
      f, "max_sm_clock_mhz", is_bad, "SM clocks are at their maximum",
      {kAdvice,
       "GPU {} is below its maximum SM clock: an idle GPU clocks down, and the first steps pay "
       "for it",
       "lock the clocks with `nvidia-smi -lgc` where that is allowed; warm-up steps help"});
}

Found gpu_numa(const MachineFacts& f) {
  const Json &nodes = env(f, "numa_cpus"), &allowed = env(f, "cpus_allowed");
  const auto is_bad = [&](const Json& gpu) {
    const Json& node = fact(gpu, "numa_node");
    if (!node.is_number_integer() || node.get<std::size_t>() >= nodes.size()) return false;
    const auto cpus = parse_cpu_list(nodes[node.get<std::size_t>()].get<std::string>());
    return std::none_of(cpus.begin(), cpus.end(), [&](int cpu) {
      return std::find(allowed.begin(), allowed.end(), cpu) != allowed.end();
    });
  };
  return each_gpu(
      f, "numa_node", is_bad, "each GPU has allowed CPUs on its NUMA node",
      {kDoubtful,
       "no allowed CPU is on the NUMA node of GPU {}: its rank launches over the socket link",
       "allow the CPUs of that node (taskset, cpuset)"});
}

constexpr MachineCheck kChecks[] = {
    {"gpus", kWarnNever, gpus},
    {"driver", kWarnNever, driver},
    {"cuda_runtime", kWarnNever, cuda_runtime},
    {"nccl", kWarnNever, nccl},
    {"peer_access", kWarnNever, peer_access},
    {"nvlink", kWarnNever, nvlink},
    {"mig", kWarnNever, mig},
    {"compute_mode", kWarnNever, compute_mode},
    {"mps", kWarnNever, mps},
    {"gpu_processes", kWarnDoubtful, gpu_processes},
    {"gpu_throttled", kWarnDoubtful, gpu_throttled},
    {"gpu_clocks", kWarnNever, gpu_clocks},
    {"gpu_persistence", kWarnNever, gpu_persistence},
    {"gpu_ecc", kWarnNever, gpu_ecc},
    {"gpu_numa", kWarnDoubtful, gpu_numa},
};

}  // namespace

std::span<const MachineCheck> gpu_checks() { return kChecks; }

}  // namespace tpjitter
