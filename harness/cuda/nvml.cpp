#include "harness/cuda/nvml.h"

#include <dlfcn.h>

namespace tpjitter {
namespace {

// NVML's C interface, as far as it is used; values from nvml.h of CUDA 13.0.
using Device = struct nvmlDevice_st*;
constexpr int kSuccess = 0;
constexpr int kInsufficientSize = 7;
constexpr unsigned kMaxNvLinks = 18;
constexpr int kClockSm = 1;
constexpr int kClockMemory = 2;

}  // namespace

struct Nvml::Library {
  void* handle = nullptr;
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*driver_version)(char*, unsigned) = nullptr;
  int (*device_by_pci_bus_id)(const char*, Device*) = nullptr;
  int (*clock)(Device, int, unsigned*) = nullptr;
  int (*max_clock)(Device, int, unsigned*) = nullptr;
  int (*power_limit)(Device, unsigned*) = nullptr;
  int (*persistence)(Device, int*) = nullptr;
  int (*mig_mode)(Device, unsigned*, unsigned*) = nullptr;
  // Not in every driver: null then.
  int (*nvlink_state)(Device, unsigned, unsigned*) = nullptr;
  int (*processes)(Device, unsigned*, void*) = nullptr;
  int (*throttle_reasons)(Device, unsigned long long*) = nullptr;

  template <class Function>
  bool load(const char* name, Function& function) const {
    function = reinterpret_cast<Function>(dlsym(handle, name));
    return function != nullptr;
  }
  bool load_all() {
    handle = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) return false;
    load("nvmlDeviceGetNvLinkState", nvlink_state);
    load("nvmlDeviceGetComputeRunningProcesses_v3", processes);
    load("nvmlDeviceGetCurrentClocksThrottleReasons", throttle_reasons);
    return load("nvmlInit_v2", init) && load("nvmlShutdown", shutdown) &&
           load("nvmlSystemGetDriverVersion", driver_version) &&
           load("nvmlDeviceGetHandleByPciBusId_v2", device_by_pci_bus_id) &&
           load("nvmlDeviceGetClockInfo", clock) && load("nvmlDeviceGetMaxClockInfo", max_clock) &&
           load("nvmlDeviceGetEnforcedPowerLimit", power_limit) &&
           load("nvmlDeviceGetPersistenceMode", persistence) &&
           load("nvmlDeviceGetMigMode", mig_mode);
  }
};

Nvml::Nvml() : library_(std::make_unique<Library>()) {
  if (library_->load_all() && library_->init() == kSuccess) return;
  if (library_->handle != nullptr) dlclose(library_->handle);
  library_.reset();
}

Nvml::~Nvml() {
  if (!library_) return;
  library_->shutdown();
  dlclose(library_->handle);
}

std::optional<std::string> Nvml::driver_version() const {
  char text[96] = {};
  if (!library_ || library_->driver_version(text, sizeof text) != kSuccess) return std::nullopt;
  return text;
}

void Nvml::describe(const std::string& pci_bus_id, Json& gpu) const {
  Device device = nullptr;
  if (!library_ || library_->device_by_pci_bus_id(pci_bus_id.c_str(), &device) != kSuccess) return;
  const auto add = [&](const char* key, auto&& read) {
    unsigned value = 0;
    if (read(&value) == kSuccess) gpu[key] = value;
  };
  add("sm_clock_mhz", [&](unsigned* v) { return library_->clock(device, kClockSm, v); });
  add("max_sm_clock_mhz", [&](unsigned* v) { return library_->max_clock(device, kClockSm, v); });
  add("memory_clock_mhz", [&](unsigned* v) { return library_->clock(device, kClockMemory, v); });
  add("power_limit_mw", [&](unsigned* v) { return library_->power_limit(device, v); });
  int persistence = 0;
  if (library_->persistence(device, &persistence) == kSuccess) {
    gpu["persistence_mode"] = persistence != 0;
  }
  unsigned mig = 0;
  unsigned pending = 0;
  if (library_->mig_mode(device, &mig, &pending) == kSuccess) gpu["mig_mode"] = mig != 0;
  if (library_->throttle_reasons != nullptr) {
    unsigned long long reasons = 0;
    if (library_->throttle_reasons(device, &reasons) == kSuccess) {
      gpu["throttle_reasons"] = static_cast<std::uint64_t>(reasons);
    }
  }
  if (library_->processes != nullptr) {
    unsigned count = 0;  // room for none: only their number is wanted
    const int status = library_->processes(device, &count, nullptr);
    if (status == kSuccess || status == kInsufficientSize) gpu["processes"] = count;
  }
  if (library_->nvlink_state == nullptr) return;
  int active = 0;
  for (unsigned link = 0; link < kMaxNvLinks; ++link) {
    unsigned on = 0;
    if (library_->nvlink_state(device, link, &on) == kSuccess && on != 0) ++active;
  }
  gpu["nvlinks_active"] = active;
}

}  // namespace tpjitter
