// The seam between the rank process and the two backends: one virtual call a step, timing inside
// the backend (harness/step.h). A backend owns the device side of one rank.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "harness/contract/phase_row.h"
#include "harness/contract/run_info.h"
#include "harness/contract/scenario.h"
#include "harness/control.h"

namespace tpjitter {

// What every backend gets. Outlives the backend.
struct RankContext {
  int rank = 0;
  int world_size = 1;
  ControlSegment* control = nullptr;  // barriers, exchange, abort word, stages
};

// What a case's verification found; summed over blocks by the rank.
struct CaseChecks {
  bool bit_equal = true;  // every path equals the reference, before timing
  std::int64_t steps_checked = 0;
  std::int64_t checksum_failures = 0;
  std::string first_failure;  // "rank 1, step 12, phase normal_decode: ..." or empty
};

class Backend {
 public:
  virtual ~Backend() = default;

  // Allocation, capture, instantiation, upload and the bit-equality check of every path over this
  // case's first inputs. Collective: every rank calls it with the same case. Throws on failure.
  virtual CaseChecks prepare(const CaseConfig& config) = 0;

  // Calls, launches, copies and syncs of a step's rebuilds, and of each (path_operations.h).
  virtual Json operations() const = 0;

  // One decode step, `rows.size()` = phases of the step. `step` counts from 0 with the first
  // warm-up step of the case and never skips. Fills every host field of the rows but launch,
  // case_index, repetition, step and sequence. Nothing in it allocates, locks, logs or throws,
  // except when the run fails.
  virtual void run_step(std::int64_t step, std::span<PhaseRow> rows) = 0;

  // Waits for the device, drains its stamps into the rows of the block just run (all steps since
  // the last call; fewer rows than steps when warm-up is discarded: empty span), compares every
  // step's checksum with the expected one.
  virtual CaseChecks finish_block(std::span<PhaseRow> rows) = 0;

  // Empty-graph launches and zero-skew all-reduces. Collective. `config` gives all-reduce and size.
  virtual RunControl controls(const CaseConfig& config) = 0;

  // Samples of this rank's device clock against the host's and the peers', one object for each pair
  // of clocks (`clock.points` of reports/RECORD.md), without launch and when; null from a device
  // that keeps the host's clock. Collective; outside the stamped parts, the device idle.
  // `with_host`: also against the host's clock.
  virtual Json calibrate_clocks(bool with_host) {
    static_cast<void>(with_host);
    return nullptr;
  }

  // {"name", "uuid"} of the device.
  virtual std::string device_name() const = 0;
  virtual std::string device_uuid() const = 0;
};

int phases_per_step(const CaseConfig& config);

// One row of the table in backends.cpp.
struct BackendEntry {
  const char* name;  // "host", "cuda"
  const char* summary;
  // Number of ranks this machine can carry; 0: not usable here, with the reason.
  int (*capacity)(std::string* reason);
  std::unique_ptr<Backend> (*make)(const RankContext& context);
  // Constants of the model, for run.json; null for real devices.
  Json (*model)();
  // Why this case cannot run here; empty: it can.
  std::string (*skip_reason)(const CaseConfig& config, int world_size);
  // NUMA node that rank r should be born on; none: anywhere. Makes no device context.
  std::optional<int> (*numa_node)(int rank);
  // Adds device, driver and library facts.
  void (*describe)(Json& environment, Json& versions);
};
std::span<const BackendEntry> backends();
const BackendEntry& find_backend(const std::string& name);  // "auto" picks; throws ConfigError

}  // namespace tpjitter
