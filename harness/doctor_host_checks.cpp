#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "harness/affinity.h"
#include "harness/doctor_checks.h"

namespace tpjitter {
namespace {

using Found = std::optional<Verdict>;
constexpr Severity kOk = Severity::kOk, kAdvice = Severity::kAdvice,
                   kDoubtful = Severity::kDoubtful, kUnusable = Severity::kUnusable;

int allowed_cpu_count(const MachineFacts& f) {
  return static_cast<int>(env(f, "cpus_allowed").size());
}

Found cores(const MachineFacts& f) {
  const int cpus = allowed_cpu_count(f);
  if (cpus == 0) return std::nullopt;
  if (f.ranks > cpus) {
    return Verdict{kDoubtful,
                   fmt::format("{} ranks share {} CPUs: skew holds the scheduler's time slices",
                               f.ranks, cpus),
                   "run on a machine with a core a rank, or read orders of magnitude only"};
  }
  const std::string text = fmt::format("{} CPUs for {} ranks", cpus, f.ranks);
  if (f.ranks == cpus) {
    return Verdict{kAdvice, text + ": none is left for the launcher and the machine",
                   "use fewer ranks than CPUs"};
  }
  return Verdict{kOk, text, ""};
}

Found governor(const MachineFacts& f) {
  const Json& governor = env(f, "governor");
  if (!governor.is_string()) return std::nullopt;
  const std::string text = "CPU governor is " + governor.get<std::string>();
  if (governor == "performance") return Verdict{kOk, text, ""};
  return Verdict{kDoubtful, text + ": clocks move under load", "set `performance`"};
}

Found smt(const MachineFacts& f) {
  const Json& active = env(f, "smt_active");
  if (!active.is_string()) return std::nullopt;
  if (active == "0") return Verdict{kOk, "SMT is off", ""};
  return Verdict{kAdvice, "SMT is on: work on a core's other thread slows a rank",
                 "keep the sibling threads of the ranks' cores idle, or turn SMT off"};
}

double quota_cpus(const Json& cpu_max) {
  if (!cpu_max.is_string()) return 0;
  std::stringstream words(cpu_max.get<std::string>());
  double quota = 0, period = 0;
  return words >> quota >> period && quota > 0 && period > 0 ? quota / period : 0;
}

Found cgroup_quota(const MachineFacts& f) {
  const double cpus = quota_cpus(env(f, "cgroup_cpu_max"));
  if (cpus == 0) return std::nullopt;
  const std::string text =
      fmt::format("the cgroup may use {:.4g} CPUs (cpu.max {}): spinning ranks can be throttled",
                  cpus, env(f, "cgroup_cpu_max").get<std::string>());
  return Verdict{cpus < f.ranks + 1 ? kDoubtful : kAdvice, text, "lift the quota"};
}

Found cgroup_throttled(const MachineFacts& f) {
  const Json& us = env(f, "cgroup_throttled_us");
  if (!us.is_number_integer()) return std::nullopt;
  if (us == 0) return Verdict{kOk, "the cgroup was never throttled", ""};
  return Verdict{kAdvice,
                 fmt::format("the cgroup was throttled for {:.3g} s since it was made",
                             us.get<double>() * 1e-6),
                 "look at the run's own warnings: they say what it was throttled for"};
}

Found isolated_cpus(const MachineFacts& f) {
  const Json& isolated = env(f, "isolated_cpus");
  if (!isolated.is_string() || isolated == "") {
    return Verdict{kOk, "no CPU is isolated from the scheduler (isolcpus= would be the quietest)",
                   ""};
  }
  const auto cpus = parse_cpu_list(isolated.get<std::string>());
  const Json& allowed = env(f, "cpus_allowed");
  const auto usable = std::count_if(cpus.begin(), cpus.end(), [&](int cpu) {
    return std::find(allowed.begin(), allowed.end(), cpu) != allowed.end();
  });
  const std::string text =
      fmt::format("isolated CPUs {}, {} of them allowed", isolated.get<std::string>(), usable);
  if (usable >= f.ranks) return Verdict{kOk, text, ""};
  return Verdict{kAdvice, text, "start the run on the isolated CPUs (taskset)"};
}

Found machine_busy(const MachineFacts& f) {
  const Json& load = env(f, "load_average_1min");
  const int cpus = allowed_cpu_count(f);
  if (!load.is_number() || cpus == 0) return std::nullopt;
  const std::string text =
      fmt::format("load average was {:.1f} on {} CPUs", load.get<double>(), cpus);
  if (load.get<double>() <= 0.5 * cpus) return Verdict{kOk, text, ""};
  return Verdict{kAdvice, text + ": other work may be in the figures",
                 "stop it, and wait a minute"};
}

Found clocksource(const MachineFacts& f) {
  const Json& source = env(f, "clocksource");
  if (!source.is_string()) return std::nullopt;
  const std::string text = "clocksource is " + source.get<std::string>();
  if (source == "tsc" || source == "kvm-clock" || source == "arch_sys_counter")
    return Verdict{kOk, text, ""};
  return Verdict{kDoubtful, text + ": a host stamp may be a system call",
                 "boot with clocksource=tsc, or see overhead.stamp_ns"};
}

Found hypervisor(const MachineFacts& f) {
  if (env(f, "hypervisor") != true) return std::nullopt;
  return Verdict{kAdvice, "this is a virtual machine: its CPUs can be taken away without a trace",
                 "compare tails only with machines of the same kind"};
}

Found shared_memory(const MachineFacts& f) {
  if (fact(f.limits, "memfd") == false) {
    return Verdict{kUnusable, "memfd_create fails: ranks cannot share memory",
                   "allow it (seccomp)"};
  }
  constexpr double kNcclBytes = 64 << 20;
  const Json& shm = fact(f.limits, "shm_free_bytes");
  if (!shm.is_number()) return std::nullopt;
  const std::string text =
      fmt::format("/dev/shm has {:.0f} MiB free", shm.get<double>() / (1 << 20));
  if (shm.get<double>() >= kNcclBytes || !f.on_gpus()) return Verdict{kOk, text, ""};
  return Verdict{kAdvice, text + ": NCCL can fail", "give the container more (--shm-size)"};
}

Found locked_memory(const MachineFacts& f) {
  const Json& bytes = fact(f.limits, "locked_memory_bytes");
  if (!f.on_gpus() || !bytes.is_number()) return std::nullopt;
  return Verdict{kAdvice,
                 fmt::format("locked memory is limited to {:.0f} KiB: CUDA's pinned memory "
                             "is not, but InfiniBand's is",
                             bytes.get<double>() / 1024),
                 "ulimit -l unlimited, if NCCL is to use InfiniBand"};
}

Found disk(const MachineFacts& f) {
  const Json& bytes = fact(f.limits, "out_free_bytes");
  if (!bytes.is_number()) return std::nullopt;
  const std::string place =
      fact(f.limits, "out").is_string() ? fact(f.limits, "out") : Json("--out");
  if (fact(f.limits, "out_writable") == false) {
    return Verdict{kUnusable, place + " cannot be written to", "name another place with --out"};
  }
  const std::string text =
      fmt::format("{:.1f} GiB are free at {}", bytes.get<double>() / (1 << 30), place);
  if (bytes.get<double>() >= (1 << 30)) return Verdict{kOk, text, ""};
  return Verdict{kAdvice,
                 text + ": a row takes 232 bytes a rank and rebuild, reserved at the start",
                 "free space, or lower sampling.steps"};
}

constexpr MachineCheck kChecks[] = {
    {"oversubscribed", kWarnDoubtful, cores},
    {"cpu_governor", kWarnDoubtful, governor},
    {"smt", kWarnNever, smt},
    {"cgroup_quota", kWarnAdvice, cgroup_quota},
    {"cgroup_throttled", kWarnNever, cgroup_throttled},
    {"isolated_cpus", kWarnNever, isolated_cpus},
    {"machine_busy", kWarnAdvice, machine_busy},
    {"clocksource", kWarnDoubtful, clocksource},
    {"hypervisor", kWarnNever, hypervisor},
    {"shared_memory", kWarnNever, shared_memory},
    {"locked_memory", kWarnNever, locked_memory},
    {"disk", kWarnNever, disk},
};

}  // namespace

std::span<const MachineCheck> host_checks() { return kChecks; }

}  // namespace tpjitter
