#include "harness/cuda/nvml.h"

#include <dlfcn.h>

namespace tpjitter {
namespace {

// NVML's C interface, as far as it is used; values from nvml.h of CUDA 13.0.
using Device = struct nvmlDevice_st*;
constexpr int kSuccess = 0;
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

  template <class Function>
  bool load(const char* name, Function& function) const {
    function = reinterpret_cast<Function>(dlsym(handle, name));
    return function != nullptr;
  }
  bool load_all() {
    handle = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    return handle != nullptr && load("nvmlInit_v2", init) && load("nvmlShutdown", shutdown) &&
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
}

}  // namespace tpjitter
