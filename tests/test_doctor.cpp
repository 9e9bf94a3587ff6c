// The table of checks over machines that are not there: each fault has its finding, a good machine
// has none, and facts come from a root directory that the test makes.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "harness/contract/error.h"
#include "harness/doctor.h"
#include "harness/doctor_checks.h"
#include "harness/environment.h"

namespace tpjitter {
namespace {

MachineFacts good_machine() {
  MachineFacts facts;
  facts.asked = "cuda";
  facts.gpus = 2;
  facts.ranks = 2;
  Json gpu = {{"name", "NVIDIA H200"}, {"ecc", true},
              {"mps", false},          {"compute_mode", "default"},
              {"mig_mode", false},     {"persistence_mode", true},
              {"sm_clock_mhz", 1980},  {"max_sm_clock_mhz", 1980},
              {"throttle_reasons", 1}, {"processes", 0},
              {"nvlinks_active", 18},  {"numa_node", 0}};
  facts.environment = {{"cpus_allowed", {0, 1, 2, 3, 4, 5, 6, 7}},
                       {"numa_cpus", {"0-7", "8-15"}},
                       {"governor", "performance"},
                       {"smt_active", "0"},
                       {"isolated_cpus", "2-5"},
                       {"clocksource", "tsc"},
                       {"hypervisor", false},
                       {"cgroup_cpu_max", nullptr},
                       {"cgroup_throttled_us", 0},
                       {"load_average_1min", 0.3},
                       {"gpus", {gpu, gpu}},
                       {"gpus_without_peer_access", Json::array()}};
  facts.versions = {{"nvidia_driver", "580.95.05"},
                    {"cuda_runtime", "13.0"},
                    {"cuda_driver", "13.0"},
                    {"nccl", "2.27.7"}};
  facts.limits = {{"memfd", true},
                  {"shm_free_bytes", std::int64_t{1} << 34},
                  {"locked_memory_bytes", nullptr},
                  {"out", "/data"},
                  {"out_writable", true},
                  {"out_free_bytes", std::int64_t{1} << 36}};
  return facts;
}

Severity severity_of(const MachineFacts& facts, const std::string& code) {
  for (const Finding& finding : examine(facts)) {
    if (finding.code == code) return finding.severity;
  }
  return Severity::kOk;
}

TEST(Doctor, AGoodMachineIsReady) {
  const std::vector<Finding> findings = examine(good_machine());
  for (const Finding& finding : findings) {
    EXPECT_EQ(finding.severity, Severity::kOk) << finding.code << ": " << finding.text;
    EXPECT_FALSE(finding.text.empty()) << finding.code;
  }
  EXPECT_GE(findings.size(), 15u);
  EXPECT_EQ(doctor_json(good_machine(), findings)["status"], "ready");
}

struct Fault {
  const char* code;
  Severity severity;
  void (*make)(MachineFacts& facts);
};

constexpr Fault kFaults[] = {
    {"gpus", Severity::kUnusable,
     [](MachineFacts& f) {
       f.gpus = 0;
       f.no_gpu_reason = "no GPU: no driver";
     }},
    {"gpus", Severity::kAdvice,
     [](MachineFacts& f) {
       f.gpus = 0;
       f.asked = "auto";
     }},
    {"gpus", Severity::kUnusable, [](MachineFacts& f) { f.ranks = 4; }},
    {"gpus", Severity::kAdvice,
     [](MachineFacts& f) {
       f.gpus = 1;
       f.ranks = 1;
     }},
    {"driver", Severity::kAdvice, [](MachineFacts& f) { f.versions["nvidia_driver"] = nullptr; }},
    {"cuda_runtime", Severity::kUnusable,
     [](MachineFacts& f) { f.versions["cuda_driver"] = "12.9"; }},
    {"nccl", Severity::kAdvice, [](MachineFacts& f) { f.versions["nccl"] = nullptr; }},
    {"peer_access", Severity::kUnusable,
     [](MachineFacts& f) {
       f.environment["gpus_without_peer_access"] = {{0, 1}, {1, 0}};
     }},
    {"nvlink", Severity::kAdvice,
     [](MachineFacts& f) { f.environment["gpus"][1]["nvlinks_active"] = 0; }},
    {"mig", Severity::kUnusable,
     [](MachineFacts& f) { f.environment["gpus"][0]["mig_mode"] = true; }},
    {"compute_mode", Severity::kUnusable,
     [](MachineFacts& f) { f.environment["gpus"][1]["compute_mode"] = "exclusive"; }},
    {"mps", Severity::kUnusable, [](MachineFacts& f) { f.environment["gpus"][1]["mps"] = true; }},
    {"gpu_processes", Severity::kDoubtful,
     [](MachineFacts& f) { f.environment["gpus"][1]["processes"] = 1; }},
    {"gpu_throttled", Severity::kDoubtful,
     [](MachineFacts& f) { f.environment["gpus"][0]["throttle_reasons"] = 0x40; }},
    {"gpu_clocks", Severity::kAdvice,
     [](MachineFacts& f) { f.environment["gpus"][0]["sm_clock_mhz"] = 345; }},
    {"gpu_persistence", Severity::kAdvice,
     [](MachineFacts& f) { f.environment["gpus"][0]["persistence_mode"] = false; }},
    {"gpu_ecc", Severity::kAdvice,
     [](MachineFacts& f) { f.environment["gpus"][0]["ecc"] = false; }},
    {"gpu_numa", Severity::kDoubtful,
     [](MachineFacts& f) { f.environment["gpus"][1]["numa_node"] = 1; }},
    {"oversubscribed", Severity::kDoubtful,
     [](MachineFacts& f) { f.environment["cpus_allowed"] = {0}; }},
    {"oversubscribed", Severity::kAdvice,
     [](MachineFacts& f) {
       f.environment["cpus_allowed"] = {0, 1};
     }},
    {"cpu_governor", Severity::kDoubtful,
     [](MachineFacts& f) { f.environment["governor"] = "performance,powersave"; }},
    {"smt", Severity::kAdvice, [](MachineFacts& f) { f.environment["smt_active"] = "1"; }},
    {"cgroup_quota", Severity::kDoubtful,
     [](MachineFacts& f) { f.environment["cgroup_cpu_max"] = "200000 100000"; }},
    {"cgroup_quota", Severity::kAdvice,
     [](MachineFacts& f) { f.environment["cgroup_cpu_max"] = "800000 100000"; }},
    {"cgroup_throttled", Severity::kAdvice,
     [](MachineFacts& f) { f.environment["cgroup_throttled_us"] = 12'000'000; }},
    {"isolated_cpus", Severity::kAdvice,
     [](MachineFacts& f) { f.environment["isolated_cpus"] = "12-15"; }},
    {"machine_busy", Severity::kAdvice,
     [](MachineFacts& f) { f.environment["load_average_1min"] = 7.5; }},
    {"clocksource", Severity::kDoubtful,
     [](MachineFacts& f) { f.environment["clocksource"] = "hpet"; }},
    {"hypervisor", Severity::kAdvice, [](MachineFacts& f) { f.environment["hypervisor"] = true; }},
    {"shared_memory", Severity::kUnusable, [](MachineFacts& f) { f.limits["memfd"] = false; }},
    {"shared_memory", Severity::kAdvice,
     [](MachineFacts& f) { f.limits["shm_free_bytes"] = 1 << 20; }},
    {"locked_memory", Severity::kAdvice,
     [](MachineFacts& f) { f.limits["locked_memory_bytes"] = 65536; }},
    {"disk", Severity::kUnusable, [](MachineFacts& f) { f.limits["out_writable"] = false; }},
    {"disk", Severity::kAdvice, [](MachineFacts& f) { f.limits["out_free_bytes"] = 1 << 20; }},
};

TEST(Doctor, EachFaultHasItsFindingWithAdvice) {
  for (const Fault& fault : kFaults) {
    MachineFacts facts = good_machine();
    fault.make(facts);
    EXPECT_EQ(severity_of(facts, fault.code), fault.severity) << fault.code;
    for (const Finding& finding : examine(facts)) {
      if (finding.severity == Severity::kOk) continue;
      EXPECT_FALSE(finding.advice.empty()) << finding.code;
      EXPECT_EQ(finding.text.find('\n'), std::string::npos) << finding.code;
    }
  }
}

TEST(Doctor, EveryCheckOfTheTableIsTested) {
  std::vector<MachineCheck> checks(gpu_checks().begin(), gpu_checks().end());
  checks.insert(checks.end(), host_checks().begin(), host_checks().end());
  for (const MachineCheck& check : checks) {
    EXPECT_TRUE(std::any_of(std::begin(kFaults), std::end(kFaults), [&](const Fault& f) {
      return f.code == std::string(check.code);
    })) << check.code;
  }
}

TEST(Doctor, FactsThatAMachineDoesNotTellAreNoFindingsAndNoCrash) {
  MachineFacts facts;
  EXPECT_LE(worst_severity(examine(facts)), Severity::kAdvice);
  facts.gpus = 2;
  facts.environment = {{"gpus", {Json::object(), Json::object()}}};
  EXPECT_LE(worst_severity(examine(facts)), Severity::kAdvice);
}

TEST(Doctor, ExitCodesFollowTheWorstFinding) {
  EXPECT_EQ(doctor_exit_code(Severity::kOk), kExitPass);
  EXPECT_EQ(doctor_exit_code(Severity::kAdvice), kExitPass);
  EXPECT_EQ(doctor_exit_code(Severity::kDoubtful), kExitInconclusive);
  EXPECT_EQ(doctor_exit_code(Severity::kUnusable), kExitRunFailed);
}

TEST(Doctor, WithoutAGpuItSaysWhatStillWorks) {
  MachineFacts facts = good_machine();
  facts.asked = "auto";
  facts.gpus = 0;
  facts.no_gpu_reason = "no GPU: no driver";
  const std::vector<Finding> findings = examine(facts);
  const std::string text = doctor_text(facts, findings);
  EXPECT_NE(text.find("no GPU: no driver"), std::string::npos);
  EXPECT_NE(text.find("run --backend host"), std::string::npos);
  EXPECT_EQ(doctor_json(facts, findings)["backend"], "host");
  for (const Finding& finding : findings) EXPECT_NE(finding.code.substr(0, 4), "gpu_");
}

TEST(Doctor, ARunKeepsWhatTouchesItsFigures) {
  MachineFacts facts = good_machine();
  EXPECT_TRUE(environment_warnings(facts.environment, 2).empty());
  facts.environment["governor"] = "powersave";
  facts.environment["gpus"][0]["processes"] = 3;
  facts.environment["smt_active"] = "1";  // true of most servers: not in every report
  std::vector<std::string> codes;
  for (const RunWarning& warning : environment_warnings(facts.environment, 9)) {
    codes.push_back(warning.code);
  }
  EXPECT_EQ(codes, (std::vector<std::string>{"gpu_processes", "oversubscribed", "cpu_governor"}));
}

class Root {
 public:
  Root() {
    std::string name = ::testing::TempDir() + "tpjitter_root_XXXXXX";
    if (mkdtemp(name.data()) == nullptr) std::abort();
    path_ = name;
  }
  ~Root() { std::filesystem::remove_all(path_); }
  void write(const std::string& file, const std::string& text) const {
    std::filesystem::create_directories((path_ / file).parent_path());
    std::ofstream(path_ / file) << text;
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

TEST(Environment, ReadsAnotherMachineBelowItsRoot) {
  const Root root;
  const int cpu = read_environment().at("cpus_allowed").at(0).get<int>();
  root.write("proc/cpuinfo", "model name\t: Fast CPU\nflags\t\t: fpu hypervisor sse\n");
  root.write("sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/cpufreq/scaling_governor",
             "powersave\n");
  root.write("sys/devices/system/cpu/smt/active", "1\n");
  root.write("sys/devices/system/cpu/isolated", "4-7\n");
  root.write("sys/devices/system/node/node0/cpulist", "0-3\n");
  root.write("sys/devices/system/node/node1/cpulist", "4-7\n");
  root.write("sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet\n");
  const Json e = read_environment(root.path());
  EXPECT_EQ(e["cpu_model"], "Fast CPU");
  EXPECT_EQ(e["hypervisor"], true);
  EXPECT_EQ(e["governor"], "powersave");
  EXPECT_EQ(e["smt_active"], "1");
  EXPECT_EQ(e["isolated_cpus"], "4-7");
  EXPECT_EQ(e["numa_cpus"], (Json{"0-3", "4-7"}));
  EXPECT_EQ(e["clocksource"], "hpet");
  EXPECT_TRUE(e["cgroup_cpu_max"].is_null());
  EXPECT_TRUE(e["cgroup_throttled_us"].is_null());

  const Root empty;
  const Json nothing = read_environment(empty.path());
  for (const char* key : {"governor", "cpu_model", "clocksource", "smt_active", "isolated_cpus"}) {
    EXPECT_TRUE(nothing[key].is_null()) << key;
  }
}

TEST(Environment, TheTightestQuotaOfTheCgroupsAboveCounts) {
  const Root two;
  two.write("proc/self/cgroup", "0::/pod/job\n");
  two.write("sys/fs/cgroup/cpu.max", "max 100000\n");
  two.write("sys/fs/cgroup/pod/cpu.max", "150000 100000\n");
  two.write("sys/fs/cgroup/pod/job/cpu.max", "400000 100000\n");
  two.write("sys/fs/cgroup/pod/cpu.stat", "nr_periods 9\nnr_throttled 4\nthrottled_usec 250000\n");
  EXPECT_EQ(read_environment(two.path())["cgroup_cpu_max"], "150000 100000");
  EXPECT_EQ(cgroup_throttled_us(two.path()), 250'000);

  const Root one;
  one.write("proc/self/cgroup", "4:memory:/x\n3:cpu,cpuacct:/job\n");
  one.write("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "50000\n");
  one.write("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
  one.write("sys/fs/cgroup/cpu,cpuacct/job/cpu.stat", "nr_throttled 4\nthrottled_time 7000000\n");
  EXPECT_EQ(read_environment(one.path())["cgroup_cpu_max"], "50000 100000");
  EXPECT_EQ(cgroup_throttled_us(one.path()), 7'000);

  const Root none;
  none.write("proc/self/cgroup", "0::/\n");
  none.write("sys/fs/cgroup/cpu.max", "max 100000\n");
  EXPECT_TRUE(read_environment(none.path())["cgroup_cpu_max"].is_null());
}

}  // namespace
}  // namespace tpjitter
