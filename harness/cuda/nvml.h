// A few facts from NVML, read only, loaded at run time: a build with CUDA must start where there is
// no driver. What NVML does not say is left out.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "harness/contract/run_info.h"

namespace tpjitter {

class Nvml {
 public:
  Nvml();  // never throws: without NVML everything is empty
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  std::optional<std::string> driver_version() const;  // "580.95.05"
  // Adds clocks (MHz), power limit (mW), persistence and MIG mode, reasons for lower clocks (NVML's
  // bits), the number of compute processes and of active NVLinks.
  void describe(const std::string& pci_bus_id, Json& gpu) const;

 private:
  struct Library;
  std::unique_ptr<Library> library_;  // null: not there
};

}  // namespace tpjitter
